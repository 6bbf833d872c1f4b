"""Decide whether a job is traced, by OpenTelemetry's own environment variables.

Place: in front of ``otlp``, which imports OpenTelemetry's SDK. Guarantee: without these variables nothing is imported,
and a fault of the set-up is a warning, because no job depends on its traces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dblake.base.core.extras import missing_extra

if TYPE_CHECKING:
    from dblake.operate.tracing.otlp import OtlpTracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"

logger = logging.getLogger(__name__)


def is_traced(environment: Mapping[str, str]) -> bool:
    """Return True if the variables name an OTLP endpoint or exporter and disable neither traces nor the SDK."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENDPOINTS))


def open_tracer(job: str, environment: Mapping[str, str], *, runs_on: bool) -> OtlpTracer | None:
    """Return the tracer of a job; None if it is not traced, or cannot be, which is a warning."""
    if not is_traced(environment):
        return None
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        logger.warning("no traces: the OTLP protocol %s is not supported. Next: set %s=%s", protocol, _PROTOCOLS[0],
                       _PROTOCOL)
        return None
    try:
        from dblake.operate.tracing.otlp import OtlpTracer

        return OtlpTracer(job, environment.get("TRACEPARENT"), runs_on=runs_on)
    except Exception as error:  # noqa: BLE001 - no job depends on its traces, whatever the SDK raises
        named = missing_extra(error) if isinstance(error, ImportError) else None
        # Its text may hold the value of a variable, such as a header, which is a secret.
        fault = f"their set-up fails ({type(error).__name__}). Next: correct the OTEL_ variables, or the packages"
        logger.warning("no traces: %s", named or fault)
    return None
