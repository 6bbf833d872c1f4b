"""The section ``storage``: how the warehouse's object store is reached, and the warehouse itself as a location.

Guarantee: the keys fit each other, and no credential is in the configuration. Connecting is left to ``lake``.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dblake.base.core.secret import Reference
from dblake.base.lake.storage import S3_SCHEMES, Location, Storage
from dblake.config.file import ConfigFile
from dblake.config.references import parse_reference
from dblake.config.section import Section

_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?\Z")
_S3_URL = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.=-]+)*/?\Z")
_URL_SCHEME = re.compile(r"[a-z][a-z0-9+]+")


class StorageConfig(Section):
    """The S3 or compatible store of a warehouse `s3://bucket/prefix`; see docs/object-storage.md."""

    endpoint: str | None = Field(
        None, description="URL of a compatible store; `http://` sends everything in plain text. null: AWS."
    )
    region: str | None = Field(
        None, min_length=1, description="The bucket's region; null: `AWS_REGION`, else us-east-1."
    )
    path_style: bool | None = Field(
        None, description="The bucket in the URL's path instead of the host name; null: only with an `endpoint`."
    )
    access_key: Reference | None = Field(
        None,
        description="${env:NAME} or ${file:PATH}. null: the ordinary chain of environment, profile, web identity and "
                    "instance role.",
    )
    secret_key: Reference | None = Field(None, description="Likewise; required with `access_key`.")
    session_token: Reference | None = Field(None, description="Likewise, for temporary credentials.")
    ca: str | None = Field(
        None, min_length=1, description="CA file (PEM) of a private authority; it is trusted beside the system's CAs.",
    )

    @field_validator("ca")
    @classmethod
    def _resolve_ca(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else ConfigFile.of(info.context).beside(path)

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, url: str | None) -> str | None:
        if url is not None and not _ENDPOINT.match(url):
            raise ValueError("must be https://host:port or http://host:port, without user and path")
        return url and url.rstrip("/")

    @field_validator("access_key", "secret_key", "session_token", mode="before")
    @classmethod
    def _parse_secret(cls, reference: Any, info: ValidationInfo) -> Reference | None:
        return None if reference is None else parse_reference(Reference, reference, f"storage.{info.field_name}", info)

    @model_validator(mode="after")
    def _require_pairs(self) -> StorageConfig:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key require each other")
        if self.ca and (self.endpoint or "").startswith("http://"):
            raise ValueError("ca requires an endpoint https://")
        if self.session_token and not self.access_key:
            raise ValueError("session_token requires access_key")
        return self


def resolve_warehouse(warehouse: str, storage: StorageConfig, file: ConfigFile) -> str:
    """Return the warehouse as an absolute path, a URL, or a location on S3 with its storage.

    Raises ValueError for what is neither a path nor a URL.
    """
    scheme, _, rest = warehouse.partition(":")
    if scheme in (*S3_SCHEMES, "s3n") and rest.startswith("//"):
        if not _S3_URL.match(warehouse):
            raise ValueError("must be s3://bucket/prefix; names in the prefix are of letters, digits, _ - . and =")
        return Location(warehouse, Storage(**{name: getattr(storage, name) for name in StorageConfig.model_fields}))
    if rest and not rest.startswith("//") and _URL_SCHEME.fullmatch(scheme):
        raise ValueError("must be a path, or a URL with // after its colon")
    return warehouse if "://" in warehouse else file.beside(warehouse)
