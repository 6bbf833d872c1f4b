"""Requests to a web service: TLS by default, plain text only on request, failures named by their cause.

Place: below the output ``http`` and formats with a schema registry. Guarantee: an error has the service's host, port,
cause and a next step; it is retryable unless only a person can correct the cause. What a status means is left to
the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

import urllib3

from dblake.base.core.connection_faults import LOST, TIMED_OUT, network_fault
from dblake.base.core.errors import ConfigError, ConsumeError, OutputUnavailable
from dblake.base.core.tls import Tls, client_context, require_stated_protocol


class WebService:
    """One service. ``name`` begins messages; ``url_key`` is the key of its address, beside the keys of its TLS."""

    def __init__(self, name: str, url_key: str, url: str, tls: Tls, tls_ca: str | None, seconds: float) -> None:
        """Raise ConfigError if address and TLS contradict each other, or for CAs that cannot be read."""
        self._section = url_key.rpartition(".")[0]
        self._url_key, self._seconds = url_key, seconds
        try:
            require_stated_protocol(url, tls)
        except ValueError as error:
            raise ConfigError(f"{url_key}: {error}", next_step=f"correct {url_key} or {self._section}.tls") from None
        try:
            parts = urllib3.util.parse_url(url)
        except urllib3.exceptions.LocationValueError:
            raise ConfigError(f"{url_key}: it is no address", next_step=f"correct {url_key}") from None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._where = f"{name} at {parts.host}:{port}"
        try:
            context = None if tls == "disable" else client_context(tls_ca, is_verified=tls == "verify")
        except OSError as error:
            raise ConfigError(
                f"{self._section}.tls_ca: there is no such file of certificates, or it cannot be read",
                next_step="name a file of certificates in PEM",
            ) from error
        if tls == "require":
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._pool = urllib3.PoolManager(1, ssl_context=context, retries=False, timeout=seconds)

    @property
    def where(self) -> str:
        """The service with its host and port, as messages begin."""
        return self._where

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Return the answer to one request. Raises OutputUnavailable without one, ConsumeError if a retry is useless.

        Redirections are answers: they would carry secret headers to another place.
        """
        try:
            return self._pool.request("POST", url, body=body, headers=headers, redirect=False)
        except urllib3.exceptions.ReadTimeoutError as error:
            raise OutputUnavailable(
                f"{self._where}: no answer within {self._seconds:g} s",
                next_step="see the service's log for the cause, then run again",
            ) from error
        except urllib3.exceptions.HTTPError as error:
            is_slow = isinstance(error, urllib3.exceptions.ConnectTimeoutError) and not network_fault(error)
            fault = TIMED_OUT if is_slow else network_fault(error) or LOST
            kind = ConsumeError if fault.is_permanent else OutputUnavailable
            tls = {key: f"{self._section}.{key}" for key in ("tls", "tls_ca")}
            raise kind(
                f"{self._where}: {fault.cause}", next_step=fault.next_step(host=self._url_key, **tls)
            ) from error

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        self._pool.clear()
