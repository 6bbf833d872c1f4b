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
LEFT = ("dblake.source", "dblake.mask", "dblake.imports", "dblake.capture", "dblake.landing.table")
RIGHT = (
    "dblake.reconcile", "dblake.redecode", "dblake.events", "dblake.state", "dblake.read", "dblake.sql",
    "dblake.maintenance", "dblake.quality", "dblake.spark", "dblake.cycle",
)
VERIFYING = ("dblake.verification",)
COMPARING = tuple(
    f"dblake.verification.{m}" for m in ("arrays", "compare", "landed", "ledger", "run", "state_rows", "touched")
)
CONSUMERS = ("dblake.consume", "dblake.outputs", "dblake.changes")
WRITING = ("dblake.reconcile", "dblake.redecode", "dblake.maintenance", "dblake.quality", "dblake.cycle")
SHARED = ("dblake.core", "dblake.lake", "dblake.formats", "dblake.landing", "dblake.decode")
DRIVERS = ("psycopg2", "pymysql", "pymysqlreplication")
JVM = ("pyspark", "delta", "py4j")

# Modules below the first do not import anything below the second.
NEVER = [
    (("dblake",), ("pipelines", "jobs", "trials", "tools")),
    (("pipelines",), ("jobs", "trials", "tools")),
    (("jobs",), ("trials", "tools")),
    # What both halves share imports neither half, no configuration and no Spark.
    (SHARED, ("dblake.source", "dblake.mask", "dblake.capture", "dblake.status", *VERIFYING, *CONFIG, *RIGHT, *JVM,
              *DRIVERS)),
    (("dblake.zookeeper",), ("dblake.lake", "dblake.landing", *LEFT, *CONSUMERS, *CONFIG, *RIGHT, *JVM)),
    (("dblake.core",), ("dblake.lake", "dblake.formats", "dblake.landing", "dblake.decode")),
    (("dblake.lake",), ("dblake.formats", "dblake.landing", "dblake.decode")),
    (("dblake.formats",), ("dblake.lake", "dblake.landing", "dblake.decode")),
    (("dblake.landing",), ("dblake.decode",)),
    (("dblake.decode",), ("dblake.lake", "dblake.landing.table")),
    (("dblake.source",), ("dblake.capture", "dblake.lake", "dblake.landing.table", "dblake.decode")),
    (("dblake.imports",), ("dblake.capture", "dblake.mask", "dblake.landing.table", "dblake.lake.tables", *CONFIG,
                           *DRIVERS)),
    (("dblake.source", "dblake.mask"), ("dblake.imports",)),
    # Between a source and capture: neither knows of it.
    (("dblake.source", "dblake.capture"), ("dblake.mask",)),
    (("dblake.mask",), ("dblake.capture", "dblake.lake", "dblake.landing.table", "dblake.config", *DRIVERS)),
    (LEFT, (*RIGHT, *JVM, "dblake.status", *VERIFYING)),
    (RIGHT, (*LEFT, *DRIVERS, "dblake.status")),
    # Consumers run without Spark, database drivers of sources and a configuration file.
    (CONSUMERS, (*LEFT, *JVM, "dblake.status", *CONFIG)),
    (("dblake.consume",), ("dblake.outputs", *DRIVERS)),
    # `dblake.sql.lake` is the front of all readings, subscriptions among them.
    ((*SHARED, *LEFT, *sorted({*RIGHT} - {"dblake.sql", *CONSUMERS})), CONSUMERS),
    (("dblake.status",), (*JVM, *DRIVERS, "dblake.source", *CONFIG)),
    # The page shows what `status` and the tables hold; of capture it knows the states of a dump.
    (("dblake.report",), (*JVM, *DRIVERS, *(set(LEFT) - {"dblake.capture"}), *CONSUMERS, *CONFIG, *WRITING)),
    ((*SHARED, *LEFT, *RIGHT, *CONSUMERS, *VERIFYING, "dblake.status"), ("dblake.report",)),
    # Of a verification only its requests know of capture; the comparison reads tables.
    (VERIFYING, (*JVM, *DRIVERS, "dblake.source", "dblake.mask", "dblake.landing.table", "dblake.status", *CONFIG)),
    (COMPARING, ("dblake.capture",)),
    # Along the path: no step imports a later one.
    (("dblake.events",), ("dblake.reconcile", "dblake.redecode", "dblake.state", "dblake.sql")),
    (("dblake.reconcile",), ("dblake.redecode", "dblake.state", "dblake.sql", "dblake.maintenance")),
    (("dblake.redecode",), ("dblake.state", "dblake.sql", "dblake.maintenance")),
    (("dblake.state",), ("dblake.read", "dblake.sql", "dblake.maintenance", "dblake.quality")),
    (("dblake.read",), ("dblake.sql", "dblake.maintenance", "dblake.quality")),
    ((*RIGHT[:-1], "dblake.status"), ("dblake.cycle",)),
]

# Tables of the lake are opened by what packages share about them, by each package's runner and table, and here.
RUNNERS = ("run", "stream", "table")
DELTA_READERS = (
    "dblake.changes.span", "dblake.maintenance.compaction", "dblake.maintenance.event_compaction",
    "dblake.quality.pending", "dblake.quality.pinned", "dblake.quality.selection",
    "dblake.read.event_log", "dblake.read.reading", "dblake.read.resolve", "dblake.read.rows", "dblake.read.tail",
    "dblake.read.versions",
    "dblake.consume.dead_letters", "dblake.consume.event_table", "dblake.consume.state_rows",
    "dblake.reconcile.known_keys", "dblake.reconcile.landing_files",
    "dblake.redecode.changed_tables", "dblake.redecode.preconditions",
    "dblake.spark.append_table",
    "dblake.report.lag", "dblake.report.operations", "dblake.report.scan",
    "dblake.sql.catalog", "dblake.sql.scan", "dblake.sql.spark_reading", "dblake.sql.views",
    "dblake.state.events", "dblake.state.files", "dblake.state.pending", "dblake.state.restate", "dblake.state.upsert",
    "dblake.status.lag", "dblake.status.stage_problems",
    "dblake.verification.landed", "dblake.verification.ledger", "dblake.verification.run",
    "dblake.verification.state_rows", "dblake.verification.touched",
    "pipelines.status",
)

# Anything but the standard library and ours is imported below these only.
ONLY_THERE = {
    "psycopg2": ("dblake.source.postgres", "dblake.outputs.sql.postgres", "trials.databases"),
    "pymysql": ("dblake.source.mysql", "dblake.outputs.sql.mysql", "trials.databases", "trials.migrations.project"),
    "pymysqlreplication": ("dblake.source.mysql",),
    "kazoo": ("dblake.zookeeper", "dblake.capture.zookeeper", "dblake.consume.zookeeper"),
    "confluent_kafka": ("dblake.outputs.kafka",),
    "fastavro": ("dblake.outputs.formats.avro",),
    "urllib3": ("dblake.outputs",),
    "dblake.lake.tables": (
        "dblake.lake", "dblake.landing.table", *(f"{package}.{name}" for package in RIGHT for name in RUNNERS),
        *DELTA_READERS,
    ),
    # ``lake.tables`` opens tables; these commit to them, or build what a commit holds.
    "deltalake": (
        "dblake.lake", "dblake.landing.table", "dblake.redecode.run", "dblake.spark.append_table",
        "dblake.spark.conflicts", "dblake.state.file_writer", "dblake.state.files", "dblake.state.table",
        "dblake.state.upsert",
        "dblake.consume.dead_letters", "dblake.consume.state_rows",
        "dblake.read.versions",
        "trials.airflow.trial",
    ),
    "great_expectations": ("dblake.quality.validation",),
    "pyspark": (*(set(RIGHT) - {"dblake.read"}), "pipelines.quickstart", "jobs"),
    "delta": RIGHT,
    "pydantic": ("dblake.config", "tools.reference"),
    "pydantic_core": ("tools.reference",),
    "yaml": ("dblake.config.file",),
    "airflow": ("pipelines.airflow", "trials.airflow"),
    "click": ("jobs", "trials"),
    "rich": ("jobs", "trials", "pipelines.quickstart"),
    "prometheus_client": ("dblake.status.metrics", "dblake.outputs.metrics"),
    "pythonjsonlogger": ("jobs.cli.frame",),
}


def imports(file: Path) -> set[str]:
    """Return the full name of every module that a file imports, at any place in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the layer"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


def below(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def breaches(modules: dict[str, set[str]]) -> list[str]:
    """Return every import that breaks a rule, as ``importer → imported``."""
    broken = set()
    for module, names in modules.items():
        for name in names:
            if any(below(module, who) and below(name, what) for who, what in NEVER):
                broken.add(f"{module} → {name}")
            if any(below(name, (alien,)) and not below(module, where) for alien, where in ONLY_THERE.items()):
                broken.add(f"{module} → {name}")
            decoders_know = ("dblake", "numpy", "pyarrow", *sys.stdlib_module_names)
            if below(module, ("dblake.decode",)) and not below(name, decoders_know):
                broken.add(f"{module} → {name}")
    return sorted(broken)


def cycles(modules: dict[str, set[str]]) -> list[str]:
    """Return every module that imports itself through others."""
    reached: dict[str, set[str]] = {m: {n for n in names if n in modules and n != m} for m, names in modules.items()}
    changed = True
    while changed:
        changed = False
        for names in reached.values():
            more = set().union(*(reached[name] for name in names)) - names if names else set()
            names.update(more)
            changed = changed or bool(more)
    return sorted(module for module, names in reached.items() if module in names)


MAX_FILE_LINES = 350
MAX_PIPELINES_LINES = 1000


def oversized(lines: dict[str, int]) -> list[str]:
    """Return every library file, and the package ``pipelines``, with more lines than its limit.

    ``lines`` has the number of lines of each module.
    """
    files = [f"{m}: {n} lines" for m, n in sorted(lines.items()) if below(m, ("dblake",)) and n > MAX_FILE_LINES]
    wiring = sum(n for m, n in lines.items() if below(m, ("pipelines",)))
    return files + ([f"pipelines: {wiring} lines"] if wiring > MAX_PIPELINES_LINES else [])


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
        ("dblake.outputs.sql.output", "psycopg2", False),
        ("dblake.outputs.sql.postgres", "psycopg2", True),
        ("dblake.consume.subscription", "dblake.outputs.kafka.output", False),
        ("dblake.state.restate", "dblake.redecode.changed_tables", True),
        ("dblake.sql.views", "dblake.state.shape", True),
        ("dblake.quality.user_suite", "great_expectations.core", False),
        ("dblake.quality.validation", "great_expectations.core", True),
        ("dblake.quality.landing", "dblake.landing.table", False),
        ("dblake.quality.run", "great_expectations", False),
        ("dblake.maintenance.run", "dblake.status.lag", False),
        ("dblake.status.lag", "pyspark.sql", False),
        ("dblake.status.report", "dblake.config", False),
        ("dblake.report.build", "pyspark.sql", False),
        ("dblake.report.scan", "dblake.sql.scan", True),
        ("dblake.status.report", "dblake.report.page", False),
        ("dblake.verification.run", "dblake.capture.dump_queue", False),
        ("dblake.verification.requests", "dblake.capture.dump_queue", True),
        ("dblake.verification.compare", "dblake.state.fold", True),
        ("dblake.capture.dumps", "dblake.verification.ledger", False),
        ("pipelines.capture", "airflow.sdk", False),
        ("pipelines.capture", "click", False),
        ("pipelines.capture", "deltalake", False),
        ("dblake.capture.loop", "deltalake", False),
        ("dblake.landing.columns", "deltalake", False),
        ("dblake.reconcile.windows", "deltalake", False),
        ("dblake.state.merge", "deltalake.exceptions", False),
        ("dblake.status.metrics", "deltalake", False),
        ("dblake.lake.log", "deltalake", True),
        ("dblake.landing.table", "deltalake", True),
        ("dblake.maintenance.run", "deltalake", False),
        ("dblake.maintenance.run", "dblake.lake.tables.open_table", True),
        ("dblake.reconcile.stream", "dblake.lake.tables", True),
        ("dblake.reconcile.windows", "dblake.lake.tables", False),
        ("dblake.spark.conflicts", "deltalake.exceptions", True),
        ("dblake.status.lag", "dblake.lake.tables", True),
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


def test_delta_readers_all_open_tables() -> None:
    opening = ("dblake.lake.tables", "deltalake")
    assert [m for m in DELTA_READERS if not any(below(n, opening) for n in imports(MODULES[m]))] == []


LAKE_OPENERS = ("dblake.lake.tables",)
STORAGE_KNOWERS = (
    "dblake.lake", "dblake.config", "dblake.core.zookeeper_url", "dblake.source", "dblake.capture", "dblake.outputs",
)


def bypasses(module: str, tree: ast.AST) -> list[str]:
    """Return where a module opens a table without its storage, distinguishes stores, or formats a path of the lake."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not below(module, LAKE_OPENERS):
            function = node.func
            owner = function.value if isinstance(function, ast.Attribute) else function
            opens = not isinstance(function, ast.Attribute) or function.attr in ("create", "is_deltatable")
            if isinstance(owner, ast.Name) and owner.id == "DeltaTable" and opens:
                found.append(f"{module}:{node.lineno}: opens a table")
        if isinstance(node, ast.Constant) and node.value == "://" and not below(module, STORAGE_KNOWERS):
            found.append(f"{module}:{node.lineno}: distinguishes stores")
        if isinstance(node, ast.JoinedStr) and is_path_of_lake(node):
            found.append(f"{module}:{node.lineno}: formats a path")
    return found


def is_path_of_lake(text: ast.JoinedStr) -> bool:
    """Return True for an f-string that begins with an attribute of ``paths`` followed by a slash."""
    parts = text.values
    if len(parts) < 2 or not isinstance(parts[0], ast.FormattedValue) or not isinstance(parts[1], ast.Constant):
        return False
    owner = parts[0].value.value if isinstance(parts[0].value, ast.Attribute) else None
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name in ("paths", "_paths") and str(parts[1].value).startswith("/")


@pytest.mark.parametrize(
    "code",
    [
        "DeltaTable(path)", "DeltaTable.is_deltatable(path)", "DeltaTable.create(path, schema)", "'://' in path",
        "f'{paths.events}/x'", "f'{self._paths.again}/{n}'",
    ],
)
def test_storage_rules_reject_known_bypasses(code: str) -> None:
    assert len(bypasses("dblake.state.run", ast.parse(code))) == 1


def test_modules_reach_lake_through_its_storage() -> None:
    library = {m: file for m, file in MODULES.items() if below(m, ("dblake", "pipelines", "jobs"))}
    trees = {module: ast.parse(file.read_text("utf-8")) for module, file in library.items()}
    assert [line for module, tree in trees.items() for line in bypasses(module, tree)] == []


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        ({"dblake.a": 350, "pipelines.a": 600, "pipelines.b": 400, "trials.a": 900}, []),
        ({"dblake.a": 351, "pipelines.a": 400}, ["dblake.a: 351 lines"]),
        ({"dblake.a": 10, "pipelines.a": 600, "pipelines.b": 401}, ["pipelines: 1001 lines"]),
    ],
    ids=["limits", "file", "pipelines"],
)
def test_size_rules_reject_known_violations(lines: dict[str, int], broken: list[str]) -> None:
    assert oversized(lines) == broken


def test_files_respect_size_limits() -> None:
    assert oversized({m: len(file.read_text("utf-8").splitlines()) for m, file in MODULES.items()}) == []


def test_modules_have_no_catch_all_names() -> None:
    catch_all = {"utils", "util", "common", "helpers", "misc"}
    assert [module for module in MODULES if catch_all & set(module.split("."))] == []


def test_modules_all_have_docstrings() -> None:
    assert [m for m, file in MODULES.items() if not ast.get_docstring(ast.parse(file.read_text("utf-8")))] == []
