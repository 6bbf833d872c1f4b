"""Outputs and formats by name: the built-in ones, and classes of the user's.

A module is imported when one of its classes is used, so the clients of other targets need not be installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dblake.base.core.errors import ConfigError
from dblake.serve.outputs.protocol import Format, Output, OutputContext

OUTPUTS = {
    "jsonl": "dblake.serve.outputs.jsonl:JsonlOutput",
    "kafka": "dblake.serve.outputs.kafka.output:KafkaOutput",
    "sql": "dblake.serve.outputs.sql.output:SqlOutput",
    "http": "dblake.serve.outputs.http:HttpOutput",
}
FORMATS = {
    "native": "dblake.serve.outputs.native:NativeFormat",
    "debezium": "dblake.serve.outputs.formats.debezium:DebeziumFormat",
    "avro": "dblake.serve.outputs.formats.avro:AvroFormat",
}


def make_format(name: str, settings: Mapping[str, Any] | None = None) -> Format:
    """Return the format of a name, or of ``package.module:Class``, with its settings as keyword arguments.

    Raises ConfigError if there is none, or if it does not take the settings.
    """
    factory = _load(FORMATS.get(name, name), "format")
    try:
        made: Format = factory(**(settings or {}))
    except TypeError as error:
        raise ConfigError(
            f"outputs: the format {name} does not take these settings: {error}", next_step="correct `format_settings`"
        ) from None
    return made


def make_output(kind: str, context: OutputContext, settings: Mapping[str, Any]) -> Output:
    """Return the output of a type, or of ``package.module:Class``, with its settings as keyword arguments.

    Raises ConfigError if there is none, or if a custom class does not take the settings.
    """
    factory = _load(OUTPUTS.get(kind, kind), "type")
    try:
        made: Output = factory(context, **settings)
    except TypeError as error:
        raise ConfigError(
            f"output {context.name}: {kind} does not take these settings: {error}", next_step="correct `settings`"
        ) from None
    return made


def _load(reference: str, key: str) -> Any:
    module, _, name = reference.partition(":")
    found = None
    if name:
        with suppress(ImportError):
            found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise ConfigError(
            f"outputs: {key}: there is no {reference}",
            next_step="name an importable package.module:Class; PYTHONPATH has the folders that are searched",
        )
    return found
