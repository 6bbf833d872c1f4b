"""The file of ``doctor``: what is removed from a configuration, and what comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dblake.base.core.source import Check
from dblake.operate.status.bug_report import Findings, build_bug_report, redact
from jobs.doctor import doctor


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({"source": {"password": "${env:P}"}}, {"source": {"password": "${env:P}"}}),
        ({"source": {"password": "hunter2"}}, {"source": {"password": "(removed)"}}),
        ({"source": {"password": 12345678}}, {"source": {"password": "(removed)"}}),
        ({"password": {"value": "hunter2", "of": ["x", None]}},
         {"password": {"value": "(removed)", "of": ["(removed)", None]}}),
        ({"headers": {"Authorization": "Bearer abc"}}, {"headers": {"Authorization": "(removed)"}}),
        ({"alerts": {"webhook": "https://hooks/T/B/SECRET", "command": "curl -H x", "timeout_seconds": 10}},
         {"alerts": {"webhook": "(removed)", "command": "(removed)", "timeout_seconds": 10}}),
        ({"url": "https://host/x?token=t"}, {"url": "https://host/x?(removed)"}),
        ({"mask": {"key": "0123"}}, {"mask": {"key": "(removed)"}}),
        ({"outputs": {"a": {"headers": {"api_token": "t", "accept": "json"}}}},
         {"outputs": {"a": {"headers": {"api_token": "(removed)", "accept": "json"}}}}),
        ({"url": "https://ann:hunter2@host/x"}, {"url": "https://(removed)@host/x"}),
        ({"tables": ["https://t@h"], "primary_keys": ["id"], "port": 1},
         {"tables": ["https://(removed)@h"], "primary_keys": ["id"], "port": 1}),
    ],
)  # fmt: skip
def test_configuration_is_shown_without_secrets(configuration: dict[str, object], expected: dict[str, object]) -> None:
    assert redact(configuration) == expected


def test_errors_problems_and_unmet_checks_come_first() -> None:
    status = {"problems": [{"code": "late", "table": None, "detail": "events lag\nby 5 min", "next": "run reconcile"}]}
    checks = [Check("connect", True, "fine"), Check("wal_level", False, "is replica", "ALTER SYSTEM …")]
    text = build_bug_report({"dblake": "1.0"}, Findings({"warehouse": "lake"}, checks, status, {"sql": "gone"}))
    assert text.split("## Configuration")[0] == (
        "# dblake doctor\n\n## Errors while this file was written\n\n- sql: gone\n\n## Problems of status\n\n"
        "- late : events lag by 5 min\n\n## Unmet checks of preflight\n\n- wal_level: is replica\n\n"
        "## Versions\n\n- dblake 1.0\n\n"
    )


def test_doctor_with_faulty_configuration_reports_the_fault(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("warehouse: lake\nsource: {name: shop, password: hunter2}\n")
    output = tmp_path / "report.md"
    done = CliRunner().invoke(doctor, ["--conf", str(tmp_path / "shop.yaml"), "--output", str(output)])
    assert done.exit_code == 0, done.exception
    text = output.read_text()
    assert "- configuration: " in text and "source.password" in text and '"password": "(removed)"' in text
    assert "hunter2" not in text


def test_doctor_without_configuration_lists_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBLAKE_CONF", raising=False)
    output = tmp_path / "report.md"
    assert CliRunner().invoke(doctor, ["--output", str(output)]).exit_code == 0
    assert "- pyarrow " in output.read_text()
