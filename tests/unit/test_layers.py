"""Who may import whom: the two halves meet in the landing table and nowhere else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]

MODULES = {
    ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
    for root, folder in ((HOME / "lib", "dblake"), (HOME, "pipelines"), (HOME, "jobs"))
    for file in sorted((root / folder).rglob("*.py"))
}

LEFT = ("dblake.source", "dblake.mask", "dblake.capture", "dblake.landing.table")
CONFIG = ("dblake.config", "dblake.config_file")
RIGHT = ("dblake.reconcile", "dblake.events", "dblake.state", "dblake.consume", "dblake.quality", "dblake.spark")
DRIVERS = ("psycopg2", "pymysql", "pymysqlreplication")
JVM = ("pyspark", "delta", "py4j")

# Modules below the first do not import anything below the second.
NEVER = [
    (("dblake",), ("pipelines", "jobs")),
    (("pipelines",), ("jobs",)),
    (("dblake.core",), ("dblake.source", "dblake.capture", "dblake.landing", "dblake.decode", *CONFIG, *RIGHT)),
    (("dblake.decode",), ("dblake.source", "dblake.capture", "dblake.landing.table", *CONFIG, *RIGHT)),
    (("dblake.landing",), ("dblake.source", "dblake.capture", "dblake.decode", *CONFIG, *RIGHT)),
    (("dblake.source",), ("dblake.capture", "dblake.landing.table", "dblake.decode", *RIGHT)),
    # Between a source and capture: neither knows of it.
    (("dblake.source", "dblake.capture"), ("dblake.mask",)),
    (("dblake.mask",), ("dblake.capture", "dblake.landing.table", "dblake.config", *DRIVERS)),
    (LEFT, (*RIGHT, *JVM)),
    (RIGHT, (*LEFT, *DRIVERS)),
]

# Anything but the standard library and ours is imported below these only.
ONLY_THERE = {
    "psycopg2": ("dblake.source.postgres",),
    "pymysql": ("dblake.source.mysql",),
    "pymysqlreplication": ("dblake.source.mysql",),
    "kazoo": ("dblake.capture.zookeeper",),
    # state.table and pipelines ask a Delta log how far it is, for which Spark has no call and would take seconds.
    "deltalake": ("dblake.landing", "dblake.state.table", "pipelines"),
    "great_expectations": ("dblake.quality.validation",),
    "pyspark": (*RIGHT, "pipelines"),
    "delta": (*RIGHT, "pipelines"),
    "pydantic": ("dblake.config", "dblake.reference"),
    "pydantic_core": ("dblake.reference",),
    "yaml": ("dblake.config_file",),
    "airflow": ("pipelines.airflow",),
    "click": ("pipelines", "jobs"),
    "rich": ("pipelines", "jobs"),
    "prometheus_client": ("pipelines.metrics",),
    "pythonjsonlogger": ("pipelines.cli",),
}


def imports(file: Path) -> set[str]:
    """Every module a file imports, wherever in it, by full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the layer"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def below(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def breaches(modules: dict[str, set[str]]) -> list[str]:
    """Every import that breaks a rule, as ``importer → imported``."""
    found = set()
    for module, names in modules.items():
        for name in names:
            if any(below(module, who) and below(name, what) for who, what in NEVER):
                found.add(f"{module} → {name}")
            if any(below(name, (alien,)) and not below(module, where) for alien, where in ONLY_THERE.items()):
                found.add(f"{module} → {name}")
            decoders_know = ("dblake", "numpy", "pyarrow", *sys.stdlib_module_names)
            if below(module, ("dblake.decode",)) and not below(name, decoders_know):
                found.add(f"{module} → {name}")
    return sorted(found)


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("dblake.core.names", "dblake.landing.columns", False),
        ("dblake.state.merge", "dblake.source.postgres", False),
        ("dblake.state.merge", "psycopg2", False),
        ("dblake.capture.loop", "pyspark.sql", False),
        ("dblake.capture.loop", "dblake.core.source", True),
        ("dblake.landing.columns", "dblake.events.schema", False),
        ("dblake.mask.rows", "dblake.decode.batch", True),
        ("dblake.mask.source", "dblake.capture.loop", False),
        ("dblake.capture.dumps", "dblake.mask.rules", False),
        ("dblake.reconcile.windows", "dblake.landing.columns", True),
        ("dblake.reconcile.windows", "dblake.landing.table", False),
        ("dblake.decode.pgoutput", "pandas", False),
        ("dblake.source.memory.source", "psycopg2.extras", False),
        ("dblake.events.schema", "pipelines.paths", False),
        ("dblake.quality.own", "great_expectations.core", False),
        ("dblake.quality.validation", "great_expectations.core", True),
        ("dblake.quality.landing", "dblake.landing.table", False),
        ("pipelines.check", "great_expectations", False),
        ("pipelines.reconcile", "jobs.reconcile", False),
        ("pipelines.reconcile", "pyspark.sql", True),
        ("pipelines.capture", "airflow.sdk", False),
        ("pipelines.airflow.dags", "airflow.sdk", True),
    ],
)
def test_the_rules_bite(module: str, imported: str, allowed: bool) -> None:
    assert (breaches({module: {imported}}) == []) is allowed


def test_no_import_breaks_a_rule() -> None:
    assert "dblake.core.names" in MODULES
    assert breaches({module: imports(file) for module, file in MODULES.items()}) == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert [module for module in MODULES if drawers & set(module.split("."))] == []


def test_every_module_says_what_it_is_for() -> None:
    assert [m for m, file in MODULES.items() if not ast.get_docstring(ast.parse(file.read_text("utf-8")))] == []
