"""The decoder's fingerprint: which changes of code it detects, and that no module of the decoder is left out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dblake
from dblake.transform.redecode.decoder import DECODER_MODULES, decoder_sources, fingerprint, fingerprint_decoder

PACKAGE = Path(dblake.__file__).parent
#: Modules that ``reconcile`` imports and that decide nothing about the rows it writes.
WITHOUT_EFFECT = {
    "base.core.errors": "errors end a run",
    "base.core.failpoints": "inert outside tests",
    "base.core.intervals": "when progress is logged",
    "base.core.progress": "shows how far the work is",
    "base.core.steps": "names steps for a tracer",
    "base.lake.batch_times": "notes batches in commits",
    "base.lake.files": "opens files",
    "base.lake.frontier": "finds state, which redecode does not read",
    "base.lake.layout": "paths of tables",
    "base.lake.locks": "commit locks",
    "base.lake.log": "commits and reads whole rows",
    "base.lake.query": "reads whole rows",
    "base.lake.storage": "reaches tables",
    "base.lake.tables": "opens tables",
    "landing": "a package without code",
    "transform.spark.session": "starts the session",
}
SOURCE = '"""Docstring."""\nLIMIT = 3\n"""Rows."""\n\n\ndef cut(rows):\n    """Cut."""\n    return rows[:LIMIT]\n'


def is_listed(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in DECODER_MODULES)


def imported_modules(source: str, modules: set[str]) -> set[str]:
    """Return the modules of dblake, without that prefix, that some code imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.removeprefix("dblake.") for name in names} & modules


def modules_reached_from(package: str) -> set[str]:
    files = {
        ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    reached: set[str] = set()
    pending = {name for name in files if name == package or name.startswith(f"{package}.")}
    while pending:
        reached |= pending
        sources = [files[name].read_text(encoding="utf-8") for name in pending if name not in WITHOUT_EFFECT]
        pending = {name for source in sources for name in imported_modules(source, set(files))} - reached
    return reached


@pytest.mark.parametrize(
    "changed",
    [
        "# Comment\n" + SOURCE, SOURCE.replace("Docstring", "Other"), SOURCE.replace("Cut.", "Return rows."),
        SOURCE.replace('"""Rows."""', '"""Batches."""'), SOURCE.replace("    return", "\n    # Comment\n    return"),
        SOURCE.replace("rows[:LIMIT]", "(rows[ : LIMIT])"), SOURCE.replace('"""Rows."""\n', ""),
    ],
    ids=["comment", "docstring", "function docstring", "constant docstring", "lines", "formatting", "no docstring"],
)
def test_fingerprint_without_code_change_stays(changed: str) -> None:
    assert changed != SOURCE
    assert fingerprint({"decode/a.py": changed}) == fingerprint({"decode/a.py": SOURCE})


@pytest.mark.parametrize(
    "changed",
    [
        {"decode/a.py": SOURCE.replace("3", "4")}, {"decode/a.py": SOURCE.replace("[:LIMIT]", "[LIMIT:]")},
        {"decode/a.py": SOURCE.replace("LIMIT", "MOST")}, {"decode/b.py": SOURCE},
        {"decode/a.py": SOURCE, "decode/b.py": ""}, {},
    ],
    ids=["constant", "statement", "name", "renamed module", "added module", "removed module"],
)
def test_fingerprint_after_code_change_differs(changed: dict[str, str]) -> None:
    assert fingerprint(changed) != fingerprint({"decode/a.py": SOURCE})


def test_decoder_sources_hold_decoder_and_no_source_driver() -> None:
    paths = decoder_sources(PACKAGE).keys()
    assert paths >= {
        "transform/reconcile/microbatch.py", "transform/reconcile/reconciler.py", "payloads/decode/batch.py",
        "payloads/formats/binlog.py", "transform/events/schema.py", "base/core/window.py", "base/core/schema.py",
    }
    assert not [path for path in paths if path.startswith(("ingest/", "transform/redecode/", "transform/state/"))]
    assert len(fingerprint_decoder()) == 12


def test_every_module_behind_reconcile_is_listed() -> None:
    reached = modules_reached_from("transform.reconcile")
    assert {"payloads.decode.batch", "base.core.window"} <= reached
    assert sorted(module for module in reached if not is_listed(module) and module not in WITHOUT_EFFECT) == []
    assert sorted(name for name in WITHOUT_EFFECT if is_listed(name) or name not in reached) == []
