"""An S3 server on this machine: moto's, in a process of its own, which ends with the tests.

Writes are decided one at a time, so of several with ``If-None-Match`` one succeeds, as on AWS.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from dblake.base.core.processes import end_with_parent, stop_process
from dblake.base.lake.storage import Location, Storage

ACCESS_KEY, SECRET_KEY = "AKIDtestaccess4711", "tests3cr3tk3y4711"
S3_KEYS = {"DBLAKE_TEST_S3_ACCESS_KEY": ACCESS_KEY, "DBLAKE_TEST_S3_SECRET_KEY": SECRET_KEY}
"""Environment of jobs that are configured by ``storage_section``."""
_AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


@dataclass(frozen=True, slots=True)
class Given:
    """A secret of the tests."""

    value: str = field(repr=False)

    def resolve(self) -> str:
        """Return it."""
        return self.value


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    port: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Send one request and return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            named = {"Authorization": _AUTHORIZATION, **{name.replace("_", "-"): v for name, v in headers.items()}}
            connection.request(method, path, body or None, named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def new_bucket(self) -> str:
        """Create a bucket and return its name."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        status, _ = self.request("PUT", f"/{name}")
        assert status == 200, status
        return name

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of all objects in a bucket."""
        _, page = self.request("GET", f"/{bucket}?list-type=2&max-keys=100000")
        return [part.partition("</Key>")[0] for part in page.decode().split("<Key>")[1:]]


def storage(port: int) -> Storage:
    """Return the storage of a server, or of a proxy before it."""
    return Storage(
        endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key=Given(ACCESS_KEY),
        secret_key=Given(SECRET_KEY),
    )


def storage_section(reached: Storage) -> dict[str, str | None]:
    """Return the section ``storage`` of a configuration for a storage of the tests."""
    access, secret = (f"${{env:{name}}}" for name in S3_KEYS)
    return {"endpoint": reached.endpoint, "region": reached.region, "access_key": access, "secret_key": secret}


def location(server: S3Server, *, port: int | None = None) -> Location:
    """Return a warehouse in a new bucket, reached at ``port`` if given."""
    return Location(f"s3://{server.new_bucket()}/lake", storage(port or server.port))


@contextmanager
def running_server() -> Iterator[S3Server]:
    """Run a server for the duration of the block."""
    process = subprocess.Popen(
        [*end_with_parent(), sys.executable, "-m", "tests.support.s3"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        yield S3Server(int(process.stdout.readline()))
    finally:
        stop_process(process)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Return the session's S3 server."""
    pytest.importorskip("moto", reason="moto is not installed")
    with running_server() as server:
        yield server


def serve() -> None:
    """Serve until the process is stopped; print the port."""
    import io
    import logging
    import threading
    from typing import Any

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)
    deciding = threading.Lock()

    def atomic(environ: dict[str, Any], start: Any) -> Any:
        """Decide one write at a time, as S3 does and moto alone does not: it checks, then writes."""
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return moto(environ, start)
        if environ.get("CONTENT_LENGTH"):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with deciding:
            return moto(environ, start)

    server = make_server("127.0.0.1", 0, atomic, threaded=True, request_handler=MotoRequestHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve()
