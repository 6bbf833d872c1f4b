"""Containerfile, compose.yaml and the Helm chart: what they name exists, parses and loads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dblake import __version__
from dblake.config import load_config
from tests.e2e.test_docs import parse_command
from tests.support.wheel import HOME

COMPOSE: dict[str, Any] = yaml.safe_load((HOME / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONTAINERFILE = (HOME / "Containerfile").read_text(encoding="utf-8")
CHART = HOME / "conf" / "helm" / "dblake"
OURS = sorted(name for name, service in SERVICES.items() if service["image"].startswith("dblake:"))


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Return the files of the checkout that a service mounts, by their path in the container."""
    parts = [volume.split(":") for volume in service.get("volumes", ()) if volume.startswith("./")]
    assert all(mode == "ro" for _, _, mode in parts)
    return {target: HOME / file for file, target, _ in parts}


def test_compose_is_valid_by_its_schema() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
         str(HOME / "compose.yaml")], capture_output=True, text=True, check=False, timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_mounts_files_that_exist() -> None:
    files = [file for service in SERVICES.values() for file in mounts(service).values()]
    assert len(files) > 10 and [file for file in files if not file.is_file()] == []


def test_compose_publishes_ports_on_loopback_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) >= 4 and all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", OURS)
def test_compose_command_parses_and_its_configuration_loads(name: str) -> None:
    command: list[str] = SERVICES[name]["command"]
    parse_command(" ".join(["./spark-submit.sh", *command]))
    config = load_config(mounts(SERVICES[name])[command[command.index("--conf") + 1]])
    assert config.source.host in SERVICES and config.source.password.target in SERVICES[name]["environment"]
    assert config.outputs["bus"]


def test_compose_keeps_every_server_that_a_copy_depends_on() -> None:
    """A copy whose server is another one after `down` and `up` is rejected at every start."""
    for name, folder in (
        ("postgres", "/var/lib/postgresql/data"), ("mariadb", "/var/lib/mysql"), ("kafka", "/var/lib/kafka/data"),
    ):
        assert f"{name}:{folder}" in SERVICES[name]["volumes"] and name in COMPOSE["volumes"]
    with_admin = {name for name in OURS if "ADMIN_PASSWORD" in SERVICES[name]["environment"]}
    assert with_admin == {"shop-preflight", "stock-preflight"}


def test_compose_monitors_every_source() -> None:
    scraped = yaml.safe_load((HOME / "conf/compose/prometheus.yaml").read_text())["scrape_configs"][0]
    (targets,) = [each["targets"] for each in scraped["static_configs"]]
    for target in targets:
        name, port = target.split(":")
        assert SERVICES[name]["command"][0] == "up" and port in SERVICES[name]["command"]
    source = yaml.safe_load((HOME / "conf/compose/grafana.yaml").read_text())["datasources"][0]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"
    assert "/var/lib/grafana/dashboards/dblake.json" in mounts(SERVICES["grafana"])


def test_containerfile_copies_what_exists_and_runs_without_root() -> None:
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE)
    copied = [name for line in lines for name in line.split()]
    assert len(copied) > 10 and [name for name in copied if not (HOME / name).exists()] == []
    targets = re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)[1:]
    for target in targets:
        if re.match(r"\S+ AS (light|spark)\n", target):
            assert "\nUSER 10001:10001\n" in target and target.index("USER") > target.rindex("COPY")
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (chosen,) = re.findall(r"^ARG EXTRAS=(\S+)$", CONTAINERFILE, re.MULTILINE)
    assert set(chosen.split(",")) <= set(extras) and "spark" not in chosen
    assert (HOME / ".dockerignore").read_text() == (HOME / ".containerignore").read_text()


def test_chart_has_valid_configuration_and_version(tmp_path: Path) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    file = tmp_path / "dblake.yaml"
    file.write_text(json.dumps(values["configuration"]))
    password = load_config(file).source.password
    assert [secret["name"] for secret in values["secrets"]] == [password.target]
    templates = "\n".join(file.read_text() for file in CHART.glob("templates/*.yaml"))
    args = re.findall(r"^ *args: \[(.*)\]$", templates, re.MULTILINE)
    assert len(args) == 3
    for line in args:
        words = re.sub(r"{{ range.*end }}", "", line).replace("{{ .Values.metrics.port | quote }}", "9187")
        parse_command("./spark-submit.sh " + words.replace(",", "").replace('"', ""))
