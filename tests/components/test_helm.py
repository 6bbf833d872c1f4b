"""conf/helm: what the chart renders is valid for Kubernetes, and has secrets by reference alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dblake.config import load_config
from tests.support.report import note_version
from tests.support.roots import call, go_program
from tests.support.wheel import HOME

CHART = HOME / "conf" / "helm" / "dblake"
_HELM = ("helm.sh/helm/v3/cmd/helm", "v3.22.0")
_KUBECONFORM = ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")
#: The module whose tests carry the OpenAPI document of Kubernetes 1.37.
_OPENAPI = "k8s.io/kubectl@v0.37.0", "testdata/openapi/swagger.json"


def render(*options: str) -> str:
    note_version("helm", _HELM[1])
    return call(str(go_program(*_HELM)), "template", "shop", str(CHART), *options)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a JSON schema per kind, which allows no key that the API does not know."""
    folder = tmp_path_factory.mktemp("schemas")
    module = json.loads(call("go", "mod", "download", "-json", _OPENAPI[0]))
    definitions = json.loads(Path(module["Dir"], _OPENAPI[1]).read_text(encoding="utf-8"))["definitions"]
    for name, definition in definitions.items():
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
        elif name.endswith(("IntOrString", "Quantity")):
            definitions[name] = {"type": ["string", "integer", "number"]}
    text = json.dumps({"definitions": definitions}).replace('"#/definitions/', '"definitions.json#/definitions/')
    (folder / "definitions.json").write_text(text)
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].partition(".")[0]
            file = "-".join(filter(None, (kind["kind"].lower(), group, kind["version"]))) + ".json"
            (folder / file).write_text(json.dumps({"$ref": f"definitions.json#/definitions/{name}"}))
    return folder


def conform(schemas: Path, resources: str) -> subprocess.CompletedProcess[str]:
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    return subprocess.run(
        [str(go_program(*_KUBECONFORM)), "-strict", "-summary", "-schema-location", location], input=resources,
        capture_output=True, text=True, check=False, timeout=120,
    )


VALUES = [
    (),
    ("--set", "volumeClaim=lake", "--set", "run.options={--check,never}", "--set", "nodeSelector.disk=ssd",
     "--set", "env.AWS_REGION=eu-west-1", "--set-string", "env.ONE=1"),
]


@pytest.mark.parametrize("options", VALUES, ids=["default", "volume"])
def test_chart_renders_valid_resources(schemas: Path, options: tuple[str, ...]) -> None:
    resources = render(*options)
    done = conform(schemas, resources)
    assert done.returncode == 0 and "4 resources found" in done.stdout and "Valid: 4" in done.stdout, done.stdout
    misspelled = resources.replace("concurrencyPolicy", "concurencyPolicy")
    assert conform(schemas, misspelled).returncode == 1


def test_chart_configuration_loads(tmp_path: Path) -> None:
    resources: dict[str, dict[str, Any]] = {each["kind"]: each for each in yaml.safe_load_all(render())}
    file = tmp_path / "dblake.yaml"
    file.write_text(resources["ConfigMap"]["data"]["dblake.yaml"])
    config = load_config(file)
    assert (config.source.name, config.status.listen) == ("shop", "0.0.0.0")
    assert config.source.password.target == "SHOP_PASSWORD"
    (capture, metrics) = resources["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "shop", "key": "password"}}
    assert capture["env"] == metrics["env"] == [{"name": "SHOP_PASSWORD", "valueFrom": reference}]
    assert capture["args"][0] == "capture" and metrics["readinessProbe"]["httpGet"]["path"] == "/metrics"
