"""The tree of errors: the drawing in the module is complete, and a next step follows the cause."""

from __future__ import annotations

import re

from dblake.base.core import errors
from dblake.base.core.errors import DblakeError, LandingUnavailable, ProgressUnavailable

_LINE = re.compile(r"^([ │]*)[├└]── (\w+) +(\d+)  ", re.MULTILINE)


def drawn_tree() -> dict[str, tuple[str, int]]:
    """Return parent and exit code by name, as the module's docstring draws them."""
    tree, parents = {}, ["DblakeError"]
    for indent, name, code in _LINE.findall(errors.__doc__ or ""):
        depth = len(indent) // 4 - 1
        parents[depth + 1 :] = [name]
        tree[name] = (parents[depth], int(code))
    return tree


def test_error_tree_drawing_is_complete() -> None:
    declared = {
        name: (error.__base__.__name__, int(error.exit_code))
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, DblakeError) and error is not DblakeError and error.__base__
    }
    assert drawn_tree() == declared


def test_error_text_ends_with_next_step() -> None:
    error = ProgressUnavailable("the disk is full", next_step="free some space")
    assert str(error) == "the disk is full. Next: free some space"
    assert error.retryable and not isinstance(error, LandingUnavailable)
