"""Recognize errors of the operating system, storage and Spark that a retry may clear, by the words of their messages.

This is the one place that matches such messages: neither delta-rs nor Spark gives these errors types of their own. The
reason returned holds nothing of the message, which may quote paths and values.
"""

from __future__ import annotations

_FOREIGN_PACKAGES = ("py4j", "pyspark", "deltalake", "_internal")
_UNREACHABLE = "the warehouse's storage or a Spark host is unreachable"
_JVM_ENDED = "Spark's JVM ended before the job; the system may have killed it for its memory"
_REASONS = {
    "no space left on device": "the disk is full",
    "disk quota exceeded": "the disk quota is exceeded",
    "outofmemoryerror": "Spark ran out of memory",
    "executorlostfailure": "Spark lost an executor",
    "answer from java side is empty": _JVM_ENDED,
    "while trying to connect to the java server": _JVM_ENDED,
    "connection refused": _UNREACHABLE,
    "connection reset": _UNREACHABLE,
    "timed out": _UNREACHABLE,
    "error sending request": _UNREACHABLE,
    "unknownhostexception": _UNREACHABLE,
    "name resolution": _UNREACHABLE,
}


def transient_reason(error: BaseException) -> str | None:
    """Return why a retry may succeed; None for an error that is not known to be transient.

    Only OSError and the exceptions of Spark, Py4J and delta-rs qualify.
    """
    foreign = type(error).__module__.partition(".")[0] in _FOREIGN_PACKAGES
    if not foreign and not isinstance(error, OSError):
        return None
    text = str(error).lower()
    return next((reason for words, reason in _REASONS.items() if words in text), None)
