"""Recognize errors of the operating system, storage and Spark by the words of their messages, and what clears them.

This is the one place that matches such messages: neither delta-rs nor Spark gives these errors types of their own. The
reason returned holds nothing of the message, which may quote paths and values. It names the store that this process
opened last: the clients' messages do not always do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dblake.base.core.errors import StorageDenied, StorageUnavailable

_FOREIGN_PACKAGES = ("py4j", "pyspark", "deltalake", "_internal")
_UNREACHABLE = "the warehouse's storage or a Spark host is unreachable"
_JVM_ENDED = "Spark's JVM ended before the job; the system may have killed it for its memory"
_REASONS = {
    "no space left on device": "the disk is full",
    "disk quota exceeded": "the disk quota is exceeded",
    "file too large": "file too large",
    "outofmemoryerror": "Spark ran out of memory",
    "executorlostfailure": "Spark lost an executor",
    "answer from java side is empty": _JVM_ENDED,
    "error while sending": _JVM_ENDED,
    "error while receiving": _JVM_ENDED,
    "while trying to connect to the java server": _JVM_ENDED,
    "java_gateway_exited": "Spark's JVM ended at its start; the system may have killed it, or its message is above",
    "connection refused": _UNREACHABLE,
    "connection reset": _UNREACHABLE,
    "timed out": _UNREACHABLE,
    "error sending request": _UNREACHABLE,
    "unknownhostexception": _UNREACHABLE,
    "name resolution": _UNREACHABLE,
}


@dataclass(frozen=True, slots=True)
class StorageFault:
    """Why storage rejected or failed a request; ``is_permanent`` if a retry without a change fails again."""

    reason: str
    next_step: str
    is_permanent: bool = True

    def as_error(self) -> StorageUnavailable:
        """Return it as an error."""
        kind = StorageDenied if self.is_permanent else StorageUnavailable
        return kind(self.reason, next_step=self.next_step)


_NO_BUCKET = StorageFault(
    "the bucket of the warehouse does not exist", "create the bucket, or correct `warehouse` or `storage.endpoint`"
)
_REJECTED = StorageFault(
    "object storage rejected the credentials", "correct `storage.access_key` and `storage.secret_key`"
)
_EXPIRED = StorageFault(
    "the credentials of object storage have expired", "renew them; the next run reads them again", is_permanent=False
)
_NONE_FOUND = StorageFault(
    "no credentials for object storage were found",
    "set `storage.access_key` and `storage.secret_key`, or give this machine a role",
)
_DENIED = StorageFault(
    "object storage denied access",
    "run preflight, which names what is missing; docs/object-storage.md lists all permissions",
)
_UNTRUSTED = StorageFault(
    "object storage has a certificate that this machine does not trust",
    "set `storage.ca` to the PEM file of its authority",
)
_CLOCK = StorageFault("object storage rejected this machine's clock", "set the clock")
_BUSY = StorageFault(
    "object storage is throttling or unavailable", "run again later; nothing was done twice", is_permanent=False
)
_WRITABLE = "set `warehouse` to a path that this user may write to, or give it the rights to all of its files"
_STORAGE_FAULTS = {
    "permission denied": StorageFault("permission denied", _WRITABLE),
    "operation not permitted": StorageFault("operation not permitted", _WRITABLE),
    "read-only file system": StorageFault("read-only file system", _WRITABLE),
    "not a directory": StorageFault("not a directory", _WRITABLE),
    "nosuchbucket": _NO_BUCKET, "bucket does not exist": _NO_BUCKET,
    "expiredtoken": _EXPIRED, "token has expired": _EXPIRED, "credentials have expired": _EXPIRED,
    "invalidaccesskeyid": _REJECTED, "signaturedoesnotmatch": _REJECTED, "invalidtoken": _REJECTED,
    "requesttimetooskewed": _CLOCK,
    "unknownissuer": _UNTRUSTED, "unable to find valid certification path": _UNTRUSTED,
    "ssl peer certificate": _UNTRUSTED, "certificate problem": _UNTRUSTED,
    "unable to load credentials": _NONE_FOUND, "the credential provider was not enabled": _NONE_FOUND,
    "no credentials in the property bag": _NONE_FOUND, "169.254.169.254": _NONE_FOUND,
    "accessdenied": _DENIED, "access denied": _DENIED, "necessary privileges": _DENIED,
    "403 forbidden": _DENIED,
    "slowdown": _BUSY, "503 service unavailable": _BUSY, "status code: 503": _BUSY,
    "internalerror": _BUSY, "500 internal server error": _BUSY, "status code: 500": _BUSY, "429 too many": _BUSY,
    # Arrow cannot report an error whose text is longer than the bytes it wanted.
    "internalfailure": _BUSY,
}


_OF_STORE = ("aws error", "s3 error", "s3a")
"""Words that only errors of object storage have."""
_UNREACHED = {
    "connection refused": "connection refused: no server listens there",
    "could not connect": "no server listens there, or a firewall rejects connections",
    "dns error": "unknown host", "could not resolve": "unknown host", "unknownhostexception": "unknown host",
    "timed out": "connection timed out", "timeout was reached": "connection timed out",
    "error sending request": "no connection", "network_connection": "no connection",
}
_store: str | None = None


def name_store(name: str) -> None:
    """Set the endpoint or region of object storage that faults name from now on: a process has one warehouse."""
    global _store
    _store = name


def storage_fault(error: BaseException) -> StorageFault | None:
    """Return what storage answered, given an error of the system or of one of its three clients; None for any other."""
    # Arrow writes NO_SUCH_BUCKET where the others write NoSuchBucket.
    text = _foreign_text(error)
    plain = text.replace("_", "")
    fault = next((fault for words, fault in _STORAGE_FAULTS.items() if words in plain), None)
    if _store is None or (fault and fault.next_step == _WRITABLE):
        return fault
    if fault:
        return replace(fault, reason=f"{fault.reason} ({_store})")
    cause = next((cause for words, cause in _UNREACHED.items() if words in text), None)
    if cause is None or not any(words in text for words in _OF_STORE):
        return None
    return StorageFault(
        f"object storage at {_store} cannot be reached: {cause}",
        "check `storage.endpoint`, and that the store is up and reachable from this machine; then run again",
        is_permanent=False,
    )


def transient_reason(error: BaseException) -> str | None:
    """Return why a retry may succeed; None for an error that is not known to be transient.

    Only OSError and the exceptions of Spark, Py4J and delta-rs qualify.
    """
    return next((reason for words, reason in _REASONS.items() if words in _foreign_text(error)), None)


def _foreign_text(error: BaseException) -> str:
    """Return the text of an error that is not ours, in lower case; nothing for one of ours."""
    is_foreign = type(error).__module__.partition(".")[0] in _FOREIGN_PACKAGES
    return str(error).lower() if is_foreign or isinstance(error, OSError) else ""
