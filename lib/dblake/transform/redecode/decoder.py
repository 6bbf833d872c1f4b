"""Name the code that decodes, so that a killed redecode resumes only what the same decoder began.

Place: beside ``redecode.run``, which puts the name into the folder of its staged tables. Guarantee: the name changes
with every change of code that decides the content of schemas, events and the window ledger. It does not change with
comments, docstrings, formatting, line numbers or any other module.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from pathlib import Path

import dblake

#: Modules below ``dblake``, and packages with all their modules. A unit test requires that every module which
#: ``reconcile`` reaches is listed here or has a stated reason to be left out.
DECODER_MODULES = (
    "base.core.arrays", "base.core.names", "base.core.op", "base.core.position", "base.core.positions",
    "base.core.schema", "base.core.visibility", "base.core.window", "base.lake.incarnations", "base.lake.schemas",
    "landing.columns", "landing.control", "payloads.decode", "payloads.formats", "transform.events.files",
    "transform.events.schema", "transform.reconcile", "transform.spark.append_table", "transform.spark.sql_literals",
    "transform.spark.task_results",
)
_DIGITS = 12


def fingerprint_decoder() -> str:
    """Return the installed decoder's fingerprint: 12 hexadecimal digits."""
    return fingerprint(decoder_sources(Path(dblake.__file__).parent))


def decoder_sources(package: Path) -> dict[str, str]:
    """Return the source text of every module of the decoder, by its path inside the folder ``package``."""
    sources: dict[str, str] = {}
    for name in DECODER_MODULES:
        path = package.joinpath(*name.split("."))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        sources |= {file.relative_to(package).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return sources


def fingerprint(sources: Mapping[str, str]) -> str:
    """Return a hash of the modules' syntax trees, without docstrings and positions; ``sources`` is by path.

    Syntax trees, since compiled bytecode holds line numbers and file names and orders sets by each process's hash seed.
    """
    digest = hashlib.sha256()
    for path, source in sorted(sources.items()):
        digest.update(f"{path}\n{ast.dump(_WithoutDocstrings().visit(ast.parse(source)))}\n".encode())
    return digest.hexdigest()[:_DIGITS]


class _WithoutDocstrings(ast.NodeTransformer):
    """Removes every statement that is a string alone: docstrings, and those of constants."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)
