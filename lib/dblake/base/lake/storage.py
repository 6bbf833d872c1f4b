"""Object storage: how the lake reaches its bucket, for delta-rs, Arrow and Spark alike.

Place: below every table of ours. A ``Location`` is a path or URL together with the ``Storage`` that reaches it: all
that is needed to open it, in the driver and on executors alike. Guarantee: the three clients get the same endpoint,
region, addressing and credentials; connections use TLS unless the endpoint is ``http://``; no representation holds a
credential. Opening tables is left to ``tables``, opening files to ``files``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from dblake.base.core.transient import name_store
from dblake.base.lake.authority import bundle, read_authority, trust_in_process

if TYPE_CHECKING:
    from pyarrow import fs

S3_SCHEMES = ("s3", "s3a")
_DEFAULT_REGION = "us-east-1"
_MAX_ATTEMPTS = 6
"""Attempts of one request by Arrow; delta-rs and S3A retry for minutes by default."""
_S3A = "spark.hadoop.fs.s3a"
_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


class Secret(Protocol):
    """A secret that is read when it is needed, such as ``core.secret.Reference``."""

    def resolve(self) -> str:
        """Read the secret."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A secret that was read already."""

    value: str = field(repr=False)

    def resolve(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificates that were read already, as PEM."""

    pem: str = field(repr=False)


@dataclass(frozen=True)
class Storage:
    """How to reach an S3 store. Without ``access_key``, each client uses AWS's ordinary chain of credentials.

    ``ca`` is a PEM file with the store's private authority, or its content. Secrets are read each time the store is
    opened, so rotated ones are found. Pickled, a storage holds secrets and certificates themselves: a task on an
    executor has neither the driver's environment nor its files.
    """

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    access_key: Secret | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    ca: str | Authority | None = None

    def __reduce__(self) -> tuple[Callable[..., Storage], tuple[Any, ...]]:
        secrets = (_Known(value) if value is not None else None for value in self._credentials())
        authority = self.authority()
        known = Authority(authority) if authority else None
        return Storage, (self.endpoint, self.region, self.path_style, *secrets, known)

    def authority(self) -> str | None:
        """Return the certificates of the store's private authority as PEM; None without one. Reads the file."""
        return self.ca.pem if isinstance(self.ca, Authority) else read_authority(self.ca) if self.ca else None

    def delta_options(self) -> dict[str, str]:
        """Return the storage options of delta-rs. Reads the secrets, and trusts the authority in this process."""
        if authority := self.authority():
            trust_in_process(authority)
        name_store(self._name())
        options = {
            "aws_region": self._region(),
            "aws_virtual_hosted_style_request": str(not self._uses_path_style()).lower(),
            # A commit is one PUT with If-None-Match: the store itself rejects the second writer.
            "aws_conditional_put": "etag",
        }
        if self.endpoint:
            options |= {"aws_endpoint": self.endpoint, "aws_allow_http": str(self._is_plain()).lower()}
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return options | {
            name: value for name, value in zip(names, self._credentials(), strict=True) if value is not None
        }

    def spark_settings(self) -> dict[str, str]:
        """Return Spark's settings, with credentials: never on a command line, which any user of a host can list."""
        name_store(self._name())
        settings = {
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
            **{f"spark.delta.logStore.{scheme}.impl": "dblake.S3LogStore" for scheme in S3_SCHEMES},
            # Delta writes its checksum files by renaming, some twenty requests for each commit.
            "spark.databricks.delta.writeChecksumFile.enabled": "false",
            f"{_S3A}.endpoint.region": self._region(),
            f"{_S3A}.path.style.access": str(self._uses_path_style()).lower(),
            f"{_S3A}.connection.ssl.enabled": str(not self._is_plain()).lower(),
        }
        if self.endpoint:
            settings[f"{_S3A}.endpoint"] = self.endpoint
        access, secret, token = self._credentials()
        if access is None or secret is None:
            return settings | {f"{_S3A}.aws.credentials.provider": _CHAIN}
        settings |= {f"{_S3A}.access.key": access, f"{_S3A}.secret.key": secret}
        if token is None:
            return settings | {f"{_S3A}.aws.credentials.provider": _SIMPLE}
        return settings | {f"{_S3A}.session.token": token, f"{_S3A}.aws.credentials.provider": _TEMPORARY}

    def iceberg_properties(self) -> dict[str, str]:
        """Return the properties of pyiceberg's file system. Reads the secrets."""
        properties = {
            "s3.region": self._region(), "s3.force-virtual-addressing": str(not self._uses_path_style()).lower(),
        }
        if self.endpoint:
            properties["s3.endpoint"] = self.endpoint
        names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
        return properties | {
            name: value for name, value in zip(names, self._credentials(), strict=True) if value is not None
        }

    def arrow_filesystem(self) -> fs.FileSystem:
        """Return Arrow's file system. Its paths begin with the bucket's name. Reads the secrets."""
        authority = self.authority()
        name_store(self._name())
        return _arrow_filesystem(
            self.endpoint, self._region(), self._uses_path_style(), *self._credentials(),
            bundle(authority) if authority else None,
        )

    def _credentials(self) -> tuple[str | None, str | None, str | None]:
        access, secret, token = (
            secret.resolve() if secret else None for secret in (self.access_key, self.secret_key, self.session_token)
        )
        return access, secret, token

    def _region(self) -> str:
        return self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION

    def _name(self) -> str:
        return self.endpoint or f"AWS, region {self._region()}"

    def _uses_path_style(self) -> bool:
        return self.endpoint is not None if self.path_style is None else self.path_style

    def _is_plain(self) -> bool:
        return (self.endpoint or "").startswith("http://")


@lru_cache(maxsize=8)
def _arrow_filesystem(
    endpoint: str | None, region: str, path_style: bool, access: str | None, secret: str | None, token: str | None,
    ca_file: str | None,
) -> fs.FileSystem:
    scheme, _, host = (endpoint or "https://").partition("://")
    # The configuration is also read where there is no Arrow: in Airflow.
    from pyarrow import fs

    return fs.S3FileSystem(
        access_key=access, secret_key=secret, session_token=token, region=region, scheme=scheme,
        endpoint_override=host.rstrip("/") or None, force_virtual_addressing=not path_style,
        # A small file is then one PUT, not a multi-part upload of three requests.
        allow_delayed_open=True, tls_ca_file_path=ca_file,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_MAX_ATTEMPTS),
    )


class Location(str):
    """A path or URL of the lake, and how to reach it. It is a string for Spark and for messages.

    Extend it with ``join``, which keeps the storage; formatting and slicing return plain strings.
    """

    __slots__ = ("storage",)
    storage: Storage

    def __new__(cls, url: str, storage: Storage) -> Location:
        """Return a location; ``s3a://`` becomes ``s3://``."""
        location = super().__new__(cls, url.replace("s3a://", "s3://", 1) if url.startswith("s3a://") else url)
        location.storage = storage
        return location

    def __reduce__(self) -> tuple[type[Location], tuple[str, Storage]]:
        return Location, (str(self), self.storage)


def join(base: str, *names: str) -> str:
    """Return the path or URL of something below ``base``, on the same storage."""
    return on_storage_of(base, "/".join([base.rstrip("/"), *names]))


def on_storage_of(base: str, path: str) -> str:
    """Return ``path`` as a location on the storage of ``base``."""
    return Location(path, base.storage) if isinstance(base, Location) else path


def is_local(path: str) -> bool:
    """Return True for a path on a local or shared disk, where folders, locks and renames exist."""
    return "://" not in path.removeprefix("file://")


def is_s3(path: str) -> bool:
    """Return True for a location on S3 or a compatible store."""
    return path.partition("://")[0] in S3_SCHEMES


def storage_of(path: str) -> Storage | None:
    """Return how to reach a location; None if it needs no settings.

    Raises ValueError for an S3 URL that lost its storage: it was formatted instead of joined.
    """
    if not is_s3(path):
        return None
    if not isinstance(path, Location):
        raise ValueError("an S3 URL without its storage; extend locations with lake.storage.join")
    return path.storage
