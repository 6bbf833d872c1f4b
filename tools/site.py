"""The site: hooks of mkdocs that make one site of ``docs/`` and of what its pages link to.

The README is the home page, and its list of pages is the navigation. A file or folder outside ``docs/`` that a page
links to becomes a page below ``repository/``, so no link leaves the site. A public name without a docstring is a
warning, which a strict build turns into an error.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocstrings import MkdocstringsPlugin

HOME = Path(__file__).parents[1]
REFERENCE = HOME / "docs" / "api.md"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_GROUP = re.compile(r"^- \*\*(\w+)\*\*: (.*?)(?=^- |^#|\Z)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".service": "ini", ".timer": "ini"}
_log = logging.getLogger("mkdocs.hooks.site")


class ModuleDocstrings(griffe.Extension):
    """Leaves out the docstrings of modules: they place a module among others, which its public names do not need."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Drop a module's docstring."""
        mod.docstring = None


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the README's list of pages."""
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    pages = readme.partition("## Documentation")[2]
    config.nav = [{"Home": "index.md"}]
    for group, links in _GROUP.findall(pages):
        entries: list[Any] = []
        for path in _LINK.findall(links):
            if (HOME / path).is_dir():
                names = sorted(file.name for file in (HOME / path).glob("*.md"))
                parts = [place_of(path), *(place_of(f"{path}/{name}") for name in names)]
                entries.append({Path(path).name.title(): parts})
            elif path.endswith(".md") and place_of(path) not in entries:
                entries.append(place_of(path))
        config.nav.append({group: entries})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside ``docs/`` and every folder that a page links to."""
    waiting, known = {"README.md"}, set[str]()
    for file in files.documentation_pages():
        waiting |= targets_of(f"docs/{file.src_uri}", file.content_string)
    while waiting:
        path = waiting.pop()
        known.add(path)
        if (HOME / path).exists() and files.get_file_from_path(place_of(path)) is None:
            text = page_text(path)
            files.append(File.generated(config, place_of(path), content=text))
            waiting |= targets_of(path, text) - known
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links between files of the repository lead to their pages."""
    path = path_of(page.file.src_uri)

    def lead(link: re.Match[str]) -> str:
        target = place_of(posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1])))
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lead, part) for part in parts[::2]]
    return "".join(parts)


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:  # noqa: ARG001
    """Warn of every public name without a docstring, among the modules that the reference page shows."""
    plugin = config.plugins["mkdocstrings"]
    assert isinstance(plugin, MkdocstringsPlugin)
    handler = plugin.get_handler("python")
    modules = re.findall(r"^::: (\S+)$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    for name in undocumented_names(handler.collect(module, handler.get_options({})) for module in modules):
        _log.warning("%s is public and has no docstring. Next: describe it", name)


def place_of(path: str) -> str:
    """Return the name in the site's sources of a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        place = path.removeprefix("docs/")
        return f"{place}/index.md" if (HOME / path).is_dir() else place
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def path_of(place: str) -> str:
    """Return the file or folder of a name in the site's sources: the inverse of ``place_of``."""
    if place == "index.md":
        return "README.md"
    path = place.removeprefix("repository/") if place.startswith("repository/") else f"docs/{place}"
    return next(p for p in (path, path.removesuffix("/index.md"), path.removesuffix(".md")) if (HOME / p).exists())


def targets_of(path: str, markdown: str) -> set[str]:
    """Return the files and folders of the repository that a page links to."""
    links = _LINK.findall("".join(_CODE.split(markdown)[::2]))
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in links}


def page_text(path: str) -> str:
    """Return the page of a folder, or of a file outside ``docs/``; the search omits code."""
    file = HOME / path
    if path.endswith(".md"):
        return file.read_text(encoding="utf-8")
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n"
    if file.is_dir():
        names = sorted(entry.name for entry in file.iterdir() if entry.is_file() and entry.name[0] not in "_.")
        return head + "\n".join(f"- [{name}]({file.name}/{name})" for name in names) + "\n"
    return f"{head}````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n````\n"


def undocumented_names(owners: Iterable[griffe.Object | griffe.Alias]) -> Iterator[str]:
    """Yield the public functions and classes of modules, and the methods of classes, that have no docstring."""
    for owner in owners:
        for member in owner.members.values():
            # What is not public may come from a package that is not read.
            if not member.is_public or member.name.startswith("__") or member.is_module:
                continue
            if member.is_attribute and "property" not in member.labels:
                continue
            if not member.has_docstring:
                yield f"{owner.path}.{member.name}"
            if member.is_class:
                yield from undocumented_names([member])
