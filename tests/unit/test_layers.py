"""Who may import whom: the two halves meet in the landing table and nowhere else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]

MODULES = {
    ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
    for root, folder in (
        (HOME / "lib", "dblake"), (HOME, "pipelines"), (HOME, "jobs"), (HOME, "trials"), (HOME, "tools"),
    )
    for file in sorted((root / folder).rglob("*.py"))
}

CONFIG = ("dblake.config",)
LEFT = ("dblake.source", "dblake.mask", "dblake.capture", "dblake.landing.table")
RIGHT = (
    "dblake.reconcile", "dblake.redecode", "dblake.events", "dblake.state", "dblake.sql", "dblake.maintenance",
    "dblake.quality", "dblake.spark",
)
SHARED = ("dblake.core", "dblake.lake", "dblake.formats", "dblake.landing", "dblake.decode")
DRIVERS = ("psycopg2", "pymysql", "pymysqlreplication")
JVM = ("pyspark", "delta", "py4j")

# Modules below the first do not import anything below the second.
NEVER = [
    (("dblake",), ("pipelines", "jobs", "trials", "tools")),
    (("pipelines",), ("jobs", "trials", "tools")),
    (("jobs",), ("trials", "tools")),
    # What both halves share imports neither half, no configuration and no Spark.
    (SHARED, ("dblake.source", "dblake.mask", "dblake.capture", "dblake.status", *CONFIG, *RIGHT, *JVM, *DRIVERS)),
    (("dblake.core",), ("dblake.lake", "dblake.formats", "dblake.landing", "dblake.decode")),
    (("dblake.lake",), ("dblake.formats", "dblake.landing", "dblake.decode")),
    (("dblake.formats",), ("dblake.lake", "dblake.landing", "dblake.decode")),
    (("dblake.landing",), ("dblake.decode",)),
    (("dblake.decode",), ("dblake.lake", "dblake.landing.table")),
    (("dblake.source",), ("dblake.capture", "dblake.lake", "dblake.landing.table", "dblake.decode")),
    # Between a source and capture: neither knows of it.
    (("dblake.source", "dblake.capture"), ("dblake.mask",)),
    (("dblake.mask",), ("dblake.capture", "dblake.lake", "dblake.landing.table", "dblake.config", *DRIVERS)),
    (LEFT, (*RIGHT, *JVM, "dblake.status")),
    (RIGHT, (*LEFT, *DRIVERS, "dblake.status")),
    (("dblake.status",), (*JVM, *DRIVERS, "dblake.source", *CONFIG)),
    # Along the path: no step imports a later one.
    (("dblake.events",), ("dblake.reconcile", "dblake.redecode", "dblake.state", "dblake.sql")),
    (("dblake.reconcile",), ("dblake.redecode", "dblake.state", "dblake.sql", "dblake.maintenance")),
    (("dblake.redecode",), ("dblake.state", "dblake.sql", "dblake.maintenance")),
    (("dblake.state",), ("dblake.sql", "dblake.maintenance", "dblake.quality")),
]

# Anything but the standard library and ours is imported below these only.
ONLY_THERE = {
    "psycopg2": ("dblake.source.postgres",),
    "pymysql": ("dblake.source.mysql",),
    "pymysqlreplication": ("dblake.source.mysql",),
    "kazoo": ("dblake.capture.zookeeper",),
    # Delta tables are read and written by the packages that own them; a Delta log answers without a JVM.
    "deltalake": ("dblake.lake", "dblake.landing.table", "dblake.status", "pipelines.status", "trials", *RIGHT),
    "great_expectations": ("dblake.quality.validation",),
    "pyspark": (*RIGHT, "pipelines.quickstart", "jobs"),
    "delta": RIGHT,
    "pydantic": ("dblake.config", "tools.reference"),
    "pydantic_core": ("tools.reference",),
    "yaml": ("dblake.config.file",),
    "airflow": ("pipelines.airflow", "trials.airflow"),
    "click": ("jobs", "trials"),
    "rich": ("jobs", "trials", "pipelines.quickstart"),
    "prometheus_client": ("dblake.status.metrics",),
    "pythonjsonlogger": ("jobs.cli.frame",),
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


def cycles(modules: dict[str, set[str]]) -> list[str]:
    """Every module that imports itself through others."""
    reached: dict[str, set[str]] = {m: {n for n in names if n in modules and n != m} for m, names in modules.items()}
    changed = True
    while changed:
        changed = False
        for names in reached.values():
            more = set().union(*(reached[name] for name in names)) - names if names else set()
            if more:
                names |= more
                changed = True
    return sorted(module for module, names in reached.items() if module in names)


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("dblake.core.names", "dblake.landing.columns", False),
        ("dblake.lake.log", "pyspark.sql", False),
        ("dblake.lake.frontier", "dblake.state.run", False),
        ("dblake.lake.layout", "dblake.core.names", True),
        ("dblake.formats.mysql_types", "dblake.landing.columns", False),
        ("dblake.landing.table", "dblake.lake.locks", True),
        ("dblake.landing.columns", "dblake.events.schema", False),
        ("dblake.decode.pgoutput", "pandas", False),
        ("dblake.decode.batch", "dblake.lake.layout", False),
        ("dblake.source.memory.source", "psycopg2.extras", False),
        ("dblake.source.postgres.log", "dblake.lake.log", False),
        ("dblake.mask.rows", "dblake.decode.batch", True),
        ("dblake.mask.source", "dblake.capture.loop", False),
        ("dblake.capture.loop", "pyspark.sql", False),
        ("dblake.capture.loop", "dblake.core.source", True),
        ("dblake.capture.dumps", "dblake.mask.rules", False),
        ("dblake.events.schema", "dblake.reconcile.windows", False),
        ("dblake.reconcile.windows", "dblake.landing.columns", True),
        ("dblake.reconcile.windows", "dblake.landing.table", False),
        ("dblake.reconcile.stream", "jobs.reconcile", False),
        ("dblake.reconcile.stream", "pyspark.sql", True),
        ("dblake.reconcile.stream", "dblake.state.run", False),
        ("dblake.redecode.run", "dblake.reconcile.microbatch", True),
        ("dblake.redecode.run", "dblake.state.restate", False),
        ("dblake.state.merge", "dblake.source.postgres", False),
        ("dblake.state.merge", "psycopg2", False),
        ("dblake.state.restate", "dblake.redecode.ledger", True),
        ("dblake.sql.views", "dblake.state.shape", True),
        ("dblake.quality.user_suite", "great_expectations.core", False),
        ("dblake.quality.validation", "great_expectations.core", True),
        ("dblake.quality.landing", "dblake.landing.table", False),
        ("dblake.quality.run", "great_expectations", False),
        ("dblake.maintenance.run", "dblake.status.lag", False),
        ("dblake.status.lag", "pyspark.sql", False),
        ("dblake.status.report", "dblake.config", False),
        ("pipelines.capture", "airflow.sdk", False),
        ("pipelines.capture", "click", False),
        ("pipelines.capture", "deltalake", False),
        ("pipelines.airflow.dags", "airflow.sdk", True),
        ("jobs.state", "trials.airflow.trial", False),
    ],
)
def test_layer_rules_reject_known_violations(module: str, imported: str, allowed: bool) -> None:
    assert (breaches({module: {imported}}) == []) is allowed


def test_cycle_search_finds_known_cycles() -> None:
    graph = {"a": {"b", "os"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles(graph) == ["a", "b", "c"]


def test_imports_respect_layer_rules() -> None:
    assert "dblake.core.names" in MODULES
    assert breaches({module: imports(file) for module, file in MODULES.items()}) == []


def test_imports_form_no_cycle() -> None:
    assert cycles({module: imports(file) for module, file in MODULES.items()}) == []


def test_modules_have_no_catch_all_names() -> None:
    catch_all = {"utils", "util", "common", "helpers", "misc"}
    assert [module for module in MODULES if catch_all & set(module.split("."))] == []


def test_modules_all_have_docstrings() -> None:
    assert [m for m, file in MODULES.items() if not ast.get_docstring(ast.parse(file.read_text("utf-8")))] == []
