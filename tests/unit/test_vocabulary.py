"""One word for one thing: what the schema declares is written once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.base.core.op import Op

HOME = Path(__file__).parents[2]
TREES = {
    file.relative_to(HOME).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
    for folder in ("lib", "jobs", "pipelines")
    for file in sorted((HOME / folder).rglob("*.py"))
}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            yield name, node

OPS = {op.value for op in Op}
SQL_OP = re.compile(r"op\b\s*(?:=|<>|!=|NOT IN|IN)\s*\(?'[crudtf]'|'[crudtf]'\s*(?:AS\s+_?op\b|END\s+AS\s+_?op\b)")


def is_bound(node: ast.AST) -> bool:
    """Return whether a node is the number after all parts of a position, in any notation."""
    match node:
        case ast.BinOp(left=ast.Constant(value=int(base)), op=ast.Pow(), right=ast.Constant(value=int(exponent))):
            return base == 2 and exponent == 62
        case ast.BinOp(left=ast.Constant(value=int(base)), op=ast.LShift(), right=ast.Constant(value=int(bits))):
            return base == 1 and bits == 62
        case ast.Constant(value=int(number)):
            return number == 1 << 62
    return False


def test_bound_of_positions_is_written_once() -> None:
    assert [name for name, node in nodes() if is_bound(node)] == ["lib/dblake/base/core/position.py"]


def names_op(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="op" | "ops" | "OP") | ast.Attribute(attr="op") | ast.Constant(value="op" | "_op"):
            return True
    return False


def has_bare_op(node: ast.AST) -> bool:
    """Return whether a comparison or a call names ``op`` beside a literal operation, or SQL text does."""
    match node:
        case ast.Compare() | ast.Call():
            below = list(ast.walk(node))
            return any(map(names_op, below)) and any(isinstance(n, ast.Constant) and n.value in OPS for n in below)
        case ast.Constant(value=str(text)):
            return SQL_OP.search(text) is not None
    return False


@pytest.mark.parametrize(
    ("text", "is_bare"),
    [
        ('event.op == "t"', True),
        ('op in ("c", "r")', True),
        ('pc.equal(rows["op"], "d")', True),
        ("sql = f\"SELECT {x} WHERE op IN ('c', 'r')\"", True),
        ("sql = \"SELECT 'd' AS op\"", True),
        ("event.op == Op.TRUNCATE", False),
        ("sql = f\"WHERE op = '{Op.TRUNCATE}'\"", False),
        ('text == "t"', False),
    ],
)
def test_bare_op_is_recognized(text: str, is_bare: bool) -> None:
    assert any(map(has_bare_op, ast.walk(ast.parse(text)))) is is_bare


def test_operations_are_members_of_op() -> None:
    assert [f"{name}:{node.lineno}" for name, node in nodes() if isinstance(node, ast.expr) and has_bare_op(node)] == []


#: Classes that each database has under the same name, because one protocol or place demands them.
DATABASE_TWINS = {"CatalogFacts", "CatalogTable", "PieceBuilder", "Relations", "Role", "Server"}


def test_class_name_is_used_once() -> None:
    """A search or a stack trace that names a class leads to one place; databases alone have twins of a class."""
    places: dict[str, list[str]] = {}
    for name, node in nodes():
        if isinstance(node, ast.ClassDef):
            places.setdefault(node.name, []).append(name)
    twins = {name: files for name, files in places.items() if len(files) > 1}
    assert {name: files for name, files in twins.items() if name not in DATABASE_TWINS} == {}
    assert twins.keys() >= DATABASE_TWINS
    assert all(file.startswith("lib/dblake/ingest/source/") for name in DATABASE_TWINS for file in twins[name])
