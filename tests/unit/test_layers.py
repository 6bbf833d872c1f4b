"""Who may import whom: the two halves meet in the landing table and nowhere else."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]

MODULES = {
    ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
    for root, folder in (
        (HOME / "lib", "dblake"), (HOME, "pipelines"), (HOME, "jobs"), (HOME, "trials"), (HOME, "tools"),
        (HOME / "integrations/airflow", "dblake_airflow"),
    )
    for file in sorted((root / folder).rglob("*.py"))
}

#: The wings of the library from left to right, with what each imports of the others: all arrows point left.
WINGS: dict[str, tuple[str, ...]] = {
    "dblake.base": (),
    "dblake.landing": ("dblake.base",),
    "dblake.payloads": ("dblake.base", "dblake.landing"),
    "dblake.ingest": ("dblake.base", "dblake.landing", "dblake.payloads"),
    "dblake.transform": ("dblake.base", "dblake.landing", "dblake.payloads"),
    "dblake.serve": ("dblake.base", "dblake.landing", "dblake.payloads", "dblake.transform"),
    "dblake.operate": (
        "dblake.base", "dblake.landing", "dblake.payloads", "dblake.ingest.capture", "dblake.transform", "dblake.serve",
        "dblake.config",
    ),
    "dblake.config": ("dblake.base",),
}
ANYWHERE = ("dblake.installation", "dblake.__version__")

COMPARING = tuple(
    f"dblake.operate.verification.{m}"
    for m in ("arrays", "compare", "landed", "ledger", "run", "state_rows", "touched")
)
DRIVERS = ("psycopg2", "pymysql", "pymysqlreplication")
JVM = ("pyspark", "delta", "py4j")
WITHOUT_JVM = (
    "dblake.base", "dblake.landing", "dblake.payloads", "dblake.ingest", "dblake.serve.changes", "dblake.serve.consume",
    "dblake.serve.outputs", "dblake.serve.read", "dblake.operate.report", "dblake.operate.status",
    "dblake.operate.verification",
)

# Modules below the first do not import anything below the second.
NEVER = [
    (("dblake",), ("pipelines", "jobs", "trials", "tools", "dblake_airflow")),
    # Airflow's environment has the library alone.
    (("dblake_airflow",), ("pipelines", "jobs", "trials", "tools")),
    (("pipelines",), ("jobs", "trials", "tools")),
    (("jobs",), ("trials", "tools")),
    (WITHOUT_JVM, JVM),
    # Landing is the only seam: capture commits to the table, the other half knows its columns and reads its files.
    (("dblake.payloads", "dblake.transform", "dblake.serve", "dblake.operate", "dblake.ingest.source",
      "dblake.ingest.mask", "dblake.ingest.imports"), ("dblake.landing.table",)),
    (("dblake.base.core", "dblake.base.zookeeper", "dblake.payloads", "dblake.ingest.source", "dblake.ingest.mask"),
     ("dblake.base.lake",)),
    (("dblake.base.core",), ("dblake.base.zookeeper",)),
    (("dblake.payloads.formats",), ("dblake.landing", "dblake.payloads.decode")),
    # A source knows neither capture nor what lies between them.
    (("dblake.ingest.source", "dblake.ingest.mask", "dblake.ingest.imports"), ("dblake.ingest.capture",)),
    (("dblake.ingest.source", "dblake.ingest.mask"), ("dblake.ingest.imports",)),
    (("dblake.ingest.source", "dblake.ingest.capture", "dblake.ingest.imports"), ("dblake.ingest.mask",)),
    # Along the path: no step imports a later one.
    (("dblake.transform.events",),
     ("dblake.transform.reconcile", "dblake.transform.redecode", "dblake.transform.state")),
    (("dblake.transform.reconcile",), ("dblake.transform.redecode", "dblake.transform.state")),
    (("dblake.transform.redecode",), ("dblake.transform.state",)),
    (("dblake.serve.consume",), ("dblake.serve.outputs", *DRIVERS)),
    # `sql.lake` is the front of all readings.
    (("dblake.serve.read", "dblake.serve.changes", "dblake.serve.consume", "dblake.serve.outputs"),
     ("dblake.serve.sql",)),
    # Of a verification only its requests know of capture; the comparison reads tables.
    (COMPARING, ("dblake.ingest",)),
    (("dblake.operate.status", "dblake.operate.report", "dblake.operate.verification", "dblake.operate.quality"),
     ("dblake.config",)),
    (tuple(f"dblake.operate.{p}" for p in ("maintenance", "quality", "verification")), ("dblake.operate.status",)),
    # The page shows what the other operations wrote, and nothing of them shows the page.
    (tuple(f"dblake.operate.{p}" for p in ("maintenance", "quality", "verification", "status", "cycle")),
     ("dblake.operate.report",)),
]

# Tables of the lake are opened by what packages share about them, by each package's runner and table, and here.
RUNNERS = ("run", "stream", "table")
RUNNING = (
    "dblake.transform.reconcile", "dblake.transform.redecode", "dblake.transform.state", "dblake.operate.maintenance",
    "dblake.operate.quality", "dblake.operate.cycle",
)
SPARK = (
    "dblake.transform", "dblake.serve.sql", "dblake.operate.maintenance", "dblake.operate.quality",
    "dblake.operate.cycle",
)
DELTA_READERS = (
    "dblake.operate.lineage.lake",
    "dblake.operate.maintenance.compaction", "dblake.operate.maintenance.event_compaction",
    "dblake.operate.quality.pending", "dblake.operate.quality.pinned", "dblake.operate.quality.selection",
    "dblake.operate.report.lag", "dblake.operate.report.operations", "dblake.operate.report.scan",
    "dblake.operate.status.lag", "dblake.operate.status.stage_problems", "dblake.operate.verification.landed",
    "dblake.operate.verification.ledger", "dblake.operate.verification.run", "dblake.operate.verification.state_rows",
    "dblake.operate.verification.touched", "dblake.serve.changes.span", "dblake.serve.consume.dead_letters",
    "dblake.serve.consume.state_rows", "dblake.serve.iceberg.publisher", "dblake.serve.iceberg.table",
    "dblake.serve.read.reading", "dblake.serve.read.resolve",
    "dblake.serve.read.rows", "dblake.serve.read.versions", "dblake.serve.sql.catalog",
    "dblake.serve.sql.scan", "dblake.serve.sql.spark_reading", "dblake.serve.sql.views",
    "dblake.transform.events.reader", "dblake.transform.reconcile.known_keys",
    "dblake.transform.reconcile.landing_files", "dblake.transform.redecode.changed_tables",
    "dblake.transform.redecode.preconditions", "dblake.transform.spark.append_table", "dblake.transform.state.files",
    "dblake.transform.state.pending", "dblake.transform.state.restate", "dblake.transform.state.upsert",
    "pipelines.status",
)

# Anything but the standard library and ours is imported below these only.
ONLY_THERE = {
    "psycopg2": ("dblake.ingest.source.postgres", "dblake.serve.outputs.sql.postgres", "trials.databases"),
    "pymysql": (
        "dblake.ingest.source.mysql", "dblake.serve.outputs.sql.mysql", "trials.databases", "trials.migrations.project",
    ),
    "pymysqlreplication": ("dblake.ingest.source.mysql",),
    "kazoo": ("dblake.base.zookeeper", "dblake.ingest.capture.zookeeper", "dblake.serve.consume.zookeeper"),
    "confluent_kafka": ("dblake.serve.outputs.kafka",),
    "fastavro": ("dblake.serve.outputs.formats.avro",),
    "urllib3": ("dblake.serve.outputs",),
    "dblake.base.lake.tables": (
        "dblake.base.lake", "dblake.landing.table", *(f"{package}.{name}" for package in RUNNING for name in RUNNERS),
        *DELTA_READERS,
    ),
    # ``lake.tables`` opens tables; these commit to them, or build what a commit holds.
    "deltalake": (
        "dblake.base.lake", "dblake.landing.table", "dblake.transform.redecode.run",
        "dblake.transform.spark.append_table", "dblake.transform.spark.conflicts", "dblake.transform.state.file_writer",
        "dblake.transform.state.files", "dblake.transform.state.table", "dblake.transform.state.upsert",
        "dblake.serve.consume.dead_letters", "dblake.serve.consume.state_rows", "dblake.serve.iceberg",
        "dblake.serve.read.versions", "trials.airflow.trial",
    ),
    "pyiceberg": ("dblake.serve.iceberg",),
    "great_expectations": ("dblake.operate.quality.validation",),
    "pyspark": (*SPARK, "pipelines.quickstart", "jobs"),
    "delta": SPARK,
    "pydantic": ("dblake.config", "tools.reference"),
    "pydantic_core": ("tools.reference",),
    "yaml": ("dblake.config.file",),
    "airflow": ("dblake_airflow", "trials.airflow"),
    "openlineage": ("dblake.operate.lineage",),
    "opentelemetry": ("dblake.operate.tracing",),
    "click": ("jobs", "trials"),
    "rich": ("jobs", "trials", "pipelines.quickstart"),
    "prometheus_client": ("dblake.operate.status.metrics", "dblake.serve.outputs.metrics"),
    "pythonjsonlogger": ("jobs.cli.frame",),
}


def imports(file: Path) -> set[str]:
    """Return the full name of every module that a file imports, at any place in it."""
    return imported_names(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imported_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the full names that the imports among some nodes have."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{node.module}: relative imports hide the layer"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


def below(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def leaves_wing(module: str, name: str) -> bool:
    """Return True if a module imports one of dblake's that its wing may not import."""
    wing = next((wing for wing in WINGS if below(module, (wing,))), None)
    return (
        wing is not None and name != "dblake" and below(name, ("dblake",))
        and not below(name, (wing, *WINGS[wing], *ANYWHERE))
    )


def breaches(modules: dict[str, set[str]]) -> list[str]:
    """Return every import that breaks a rule, as ``importer → imported``."""
    broken = set()
    for module, names in modules.items():
        for name in names:
            if any(below(module, who) and below(name, what) for who, what in NEVER) or leaves_wing(module, name):
                broken.add(f"{module} → {name}")
            if any(below(name, (alien,)) and not below(module, where) for alien, where in ONLY_THERE.items()):
                broken.add(f"{module} → {name}")
            decoders_know = ("dblake", "numpy", "pyarrow", *sys.stdlib_module_names)
            if below(module, ("dblake.payloads.decode",)) and not below(name, decoders_know):
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


MAX_FILE_LINES = 330
MAX_PIPELINES_LINES = 1200


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
        ("dblake.base.core.names", "dblake.landing.columns", False),
        ("dblake.base.lake.log", "pyspark.sql", False),
        ("dblake.base.lake.frontier", "dblake.transform.state.run", False),
        ("dblake.base.lake.layout", "dblake.base.core.names", True),
        ("dblake.payloads.formats.mysql_types", "dblake.landing.columns", False),
        ("dblake.landing.table", "dblake.base.lake.locks", True),
        ("dblake.landing.columns", "dblake.transform.events.schema", False),
        ("dblake.payloads.decode.pgoutput", "pandas", False),
        ("dblake.payloads.decode.batch", "dblake.base.lake.layout", False),
        ("dblake.ingest.source.memory.source", "psycopg2.extras", False),
        ("dblake.ingest.source.postgres.log", "dblake.base.lake.log", False),
        ("dblake.ingest.mask.rows", "dblake.payloads.decode.batch", True),
        ("dblake.ingest.mask.source", "dblake.ingest.capture.loop", False),
        ("dblake.ingest.capture.loop", "pyspark.sql", False),
        ("dblake.ingest.capture.loop", "dblake.base.core.source", True),
        ("dblake.ingest.capture.dumps", "dblake.ingest.mask.masks", False),
        ("dblake.transform.events.schema", "dblake.transform.reconcile.windows", False),
        ("dblake.transform.reconcile.windows", "dblake.landing.columns", True),
        ("dblake.transform.reconcile.windows", "dblake.landing.table", False),
        ("dblake.transform.reconcile.stream", "jobs.reconcile", False),
        ("dblake.transform.reconcile.stream", "pyspark.sql", True),
        ("dblake.transform.reconcile.stream", "dblake.transform.state.run", False),
        ("dblake.transform.redecode.run", "dblake.transform.reconcile.microbatch", True),
        ("dblake.transform.redecode.run", "dblake.transform.state.restate", False),
        ("dblake.transform.state.merge", "dblake.ingest.source.postgres", False),
        ("dblake.transform.state.merge", "psycopg2", False),
        ("dblake.serve.outputs.sql.output", "psycopg2", False),
        ("dblake.serve.outputs.sql.postgres", "psycopg2", True),
        ("dblake.serve.consume.subscription", "dblake.serve.outputs.kafka.output", False),
        ("dblake.transform.state.restate", "dblake.transform.redecode.changed_tables", True),
        ("dblake.serve.sql.views", "dblake.transform.state.shape", True),
        ("dblake.operate.quality.user_suite", "great_expectations.core", False),
        ("dblake.operate.quality.validation", "great_expectations.core", True),
        ("dblake.operate.quality.landing", "dblake.landing.table", False),
        ("dblake.operate.quality.run", "great_expectations", False),
        ("dblake.operate.maintenance.run", "dblake.operate.status.lag", False),
        ("dblake.operate.status.lag", "pyspark.sql", False),
        ("dblake.operate.status.report", "dblake.config", False),
        ("dblake.operate.report.build", "pyspark.sql", False),
        ("dblake.operate.report.scan", "dblake.serve.sql.scan", True),
        ("dblake.operate.status.report", "dblake.operate.report.page", False),
        ("dblake.operate.verification.run", "dblake.ingest.capture.dump_queue", False),
        ("dblake.operate.verification.requests", "dblake.ingest.capture.dump_queue", True),
        ("dblake.operate.verification.compare", "dblake.transform.state.fold", True),
        ("dblake.ingest.capture.dumps", "dblake.operate.verification.ledger", False),
        ("pipelines.capture", "airflow.sdk", False),
        ("pipelines.capture", "click", False),
        ("pipelines.capture", "deltalake", False),
        ("dblake.ingest.capture.loop", "deltalake", False),
        ("dblake.landing.columns", "deltalake", False),
        ("dblake.transform.reconcile.windows", "deltalake", False),
        ("dblake.transform.state.merge", "deltalake.exceptions", False),
        ("dblake.operate.status.metrics", "deltalake", False),
        ("dblake.base.lake.log", "deltalake", True),
        ("dblake.landing.table", "deltalake", True),
        ("dblake.operate.maintenance.run", "deltalake", False),
        ("dblake.operate.maintenance.run", "dblake.base.lake.tables.open_table", True),
        ("dblake.transform.reconcile.stream", "dblake.base.lake.tables", True),
        ("dblake.transform.reconcile.windows", "dblake.base.lake.tables", False),
        ("dblake.transform.spark.conflicts", "deltalake.exceptions", True),
        ("dblake.operate.status.lag", "dblake.base.lake.tables", True),
        ("dblake_airflow.dags", "airflow.sdk", True),
        ("dblake_airflow.dags", "pipelines.capture", False),
        ("dblake.transform.state.merge", "opentelemetry.trace", False),
        ("dblake.operate.tracing.otlp", "opentelemetry.sdk", True),
        ("dblake.operate.lineage.run", "openlineage.client", True),
        ("jobs.state", "trials.airflow.trial", False),
    ],
)
def test_layer_rules_reject_known_violations(module: str, imported: str, allowed: bool) -> None:
    assert (breaches({module: {imported}}) == []) is allowed


def test_cycle_search_finds_known_cycles() -> None:
    graph = {"a": {"b", "os"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles(graph) == ["a", "b", "c"]


def test_imports_respect_layer_rules() -> None:
    assert "dblake.base.core.names" in MODULES
    assert breaches({module: imports(file) for module, file in MODULES.items()}) == []


def eager_imports(file: Path) -> set[str]:
    """Return the names that a file imports when it is imported itself: not in functions, nor for types alone."""
    return imported_names(ast.parse(file.read_text(encoding="utf-8")).body)


def test_modules_without_jvm_load_no_spark_through_others() -> None:
    eager = {module: eager_imports(file) for module, file in MODULES.items()}
    loading = {m for m, names in eager.items() if any(below(name, JVM) for name in names)}
    while more := {m for m, names in eager.items() if m not in loading and names & loading}:
        loading |= more
    assert sorted(module for module in loading if below(module, WITHOUT_JVM)) == []


def test_continuous_run_loads_no_pyspark_at_its_start() -> None:
    """An installation without PySpark replicates what it can in process."""
    reached = {"dblake.operate.cycle.run", "dblake.transform.reconcile.stream", "dblake.transform.state.run"}
    eager = {module: eager_imports(file) for module, file in MODULES.items()}
    while more := {name for module in reached for name in eager[module] if name in eager} - reached:
        reached |= more
    assert [m for m in sorted(reached) if any(below(name, JVM) for name in eager[m])] == []


def test_imports_form_no_cycle() -> None:
    assert cycles({module: imports(file) for module, file in MODULES.items()}) == []


def test_delta_readers_all_open_tables() -> None:
    opening = ("dblake.base.lake.tables", "deltalake")
    assert [m for m in DELTA_READERS if not any(below(n, opening) for n in imports(MODULES[m]))] == []


LAKE_OPENERS = ("dblake.base.lake.tables",)
STORAGE_KNOWERS = (
    "dblake.base.lake", "dblake.config", "dblake.base.core.zookeeper_url", "dblake.ingest.source",
    "dblake.ingest.capture", "dblake.serve.outputs",
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
    assert len(bypasses("dblake.transform.state.run", ast.parse(code))) == 1


def test_modules_reach_lake_through_its_storage() -> None:
    library = {m: file for m, file in MODULES.items() if below(m, ("dblake", "pipelines", "jobs"))}
    trees = {module: ast.parse(file.read_text("utf-8")) for module, file in library.items()}
    assert [line for module, tree in trees.items() for line in bypasses(module, tree)] == []


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        ({"dblake.a": 330, "pipelines.a": 600, "pipelines.b": 400, "trials.a": 900}, []),
        ({"dblake.a": 331, "pipelines.a": 400}, ["dblake.a: 331 lines"]),
        ({"dblake.a": 10, "pipelines.a": 600, "pipelines.b": 601}, ["pipelines: 1201 lines"]),
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
