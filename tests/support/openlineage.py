"""OpenLineage's published JSON schemas, by which the tests validate events.

Every event and facet names its schema by an address on openlineage.io. A schema is downloaded once and kept in
``${XDG_CACHE_HOME:-~/.cache}/dblake/openlineage``; no copy is part of this repository.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from referencing import Registry, Resource

_SITE = "https://openlineage.io/"


def folder() -> Path:
    """Return the folder of downloaded schemas."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblake" / "openlineage"


def validate_event(event: dict[str, Any]) -> int:
    """Validate an event and each of its facets by the schema it names; return how many were validated.

    Skips the test where a schema is neither in the cache nor can be downloaded.
    """
    parts = [(event["schemaURL"], event), *_facets(event)]
    for address, part in parts:
        jsonschema.Draft202012Validator(
            {"$ref": address}, registry=Registry(retrieve=_retrieve),  # type: ignore[call-arg]
            format_checker=jsonschema.FormatChecker(),
        ).validate(part)
    return len(parts)


def _facets(event: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each facet as a facet's own schema has it: in a map, under its name."""
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    for facets in (holder[key] for holder in holders for key in ("facets", "inputFacets", "outputFacets")
                   if key in holder):
        for name, facet in facets.items():
            # The schema's root describes the map, so that also the facet's name is validated.
            yield facet["_schemaURL"].partition("#")[0], {name: facet}


@cache
def _retrieve(address: str) -> Resource[Any]:
    assert address.startswith(_SITE), address
    file = folder() / address.removeprefix(_SITE)
    if not file.exists():
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310 - of openlineage.io alone
                text = answer.read()
        except OSError as error:
            pytest.skip(f"OpenLineage's schemas cannot be downloaded: {error}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    return Resource.from_contents(json.loads(file.read_text(encoding="utf-8")))
