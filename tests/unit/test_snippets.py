"""Snippets of the pages: Python compiles and imports names that exist, and configuration has keys that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from dblake.config import Config
from tests.e2e.test_docs import PAGES

HOME = Path(__file__).parents[2]
_OURS = ("dblake", "dblake_airflow", "pipelines", "jobs")
_ROOTS = {"dblake": HOME / "lib", "dblake_airflow": HOME / "integrations/airflow"}


def snippets(language: str) -> list[Any]:
    """Return the blocks of a language, named by page and number."""
    found = []
    for page in PAGES:
        blocks = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [pytest.param(block, id=f"{page.name}-{number}") for number, block in enumerate(blocks, 1)]
    return found


def names_of(module: str) -> set[str] | None:
    """Return what a module of ours defines or imports; None if there is no such module. Nothing is imported."""
    path = Path(_ROOTS.get(module.partition(".")[0], HOME), *module.split("."))
    file = next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.exists()), None)
    if file is None:
        return None
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_snippet_compiles_and_imports_what_exists(snippet: str) -> None:
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _OURS:
            names = names_of(node.module)
            assert names is not None, node.module
            for alias in node.names:
                assert alias.name in names or names_of(f"{node.module}.{alias.name}") is not None, alias.name


def unknown_keys(document: Any, model: type[BaseModel], place: str = "") -> Iterator[str]:
    """Yield the keys of a document that a section of the configuration does not have."""
    for key, value in document.items() if isinstance(document, dict) else ():
        field = model.model_fields.get(key)
        if field is None:
            yield place + key
            continue
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from unknown_keys(value, part, f"{place}{key}.")


@pytest.mark.parametrize("snippet", snippets("yaml"))
def test_yaml_snippet_has_keys_of_the_configuration(snippet: str) -> None:
    document = yaml.safe_load(snippet)
    assert document is not None
    if isinstance(document, dict) and document.keys() & Config.model_fields.keys():
        assert list(unknown_keys(document, Config)) == []


def test_pages_have_snippets_of_both_languages() -> None:
    assert len(snippets("python")) > 10 and len(snippets("yaml")) > 10
