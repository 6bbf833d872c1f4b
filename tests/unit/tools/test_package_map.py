"""The map of packages in docs/design.md names every package, as its docstring does."""

from __future__ import annotations

from tools.package_map import HOME, PAGE, WINGS, replace_map


def test_package_map_of_page_equals_docstrings() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == replace_map(page), "run python -m tools.package_map"


def test_package_map_lists_every_package() -> None:
    library = HOME / "lib" / "dblake"
    packages = {file.parent.relative_to(library).as_posix() for file in library.glob("*/__init__.py")}
    nested = {file.parent.relative_to(library).as_posix() for file in library.glob("*/*/__init__.py")}
    listed = {f"{wing}/{package}" for wing, of in WINGS.items() for package in of}
    assert (packages, nested) == (set(WINGS), listed)
