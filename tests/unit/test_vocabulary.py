"""One word for one thing: what the schema declares is written once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
    assert [name for name, node in nodes() if is_bound(node)] == ["lib/dblake/core/position.py"]
