"""TLS to each kind of server, with generated certificates: which are accepted, which rejected, with which next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from dblake.base.core.errors import ConfigError, PrerequisitesNotMet, ProgressUnavailable
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.source.mysql import connection as mysql_connection
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.postgres import connection as postgres_connection
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.settings import PostgresSettings
from tests.support.certificates import Certificate, create_authority, create_signed
from tests.support.mysql import MysqlServer
from tests.support.tls_front import TlsFront
from tests.support.zookeeper import ZookeeperServer

Tls = Literal["verify", "require", "disable"]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create ``ours.crt``, which signed the servers' certificate for localhost, and ``other.crt``, another CA."""
    folder = tmp_path_factory.mktemp("pki")
    create_signed(folder, "localhost", create_authority(folder, "ours"))
    create_authority(folder, "other")
    (folder / "broken.crt").write_text("not a certificate", encoding="ascii")
    return folder


def server_certificate(pki: Path) -> Certificate:
    return Certificate(pki / "localhost.server.crt", pki / "localhost.server.key")


@dataclass(frozen=True)
class Server:
    """``connects`` takes tls, host and CA and returns True if encrypted; ``plain`` connects to a server without TLS."""

    connects: Callable[[Tls, str, str | None], bool]
    plain: Callable[[Tls], bool]


@contextmanager
def postgres_server(request: pytest.FixtureRequest, pki: Path) -> Iterator[Server]:
    server: EmbeddedPostgres = request.getfixturevalue("postgres")
    with TlsFront(server.port, server_certificate(pki)) as front:
        def connects(tls: Tls, host: str, ca: str | None, port: int = front.port) -> bool:
            earlier = front.encrypted
            settings = PostgresSettings(
                "shop", host, port, "postgres", server.user, server.password, ("*.*",), tls=tls, tls_ca=ca
            )
            postgres_connection.connect(settings, purpose="test").close()
            with closing(postgres_connection.connect_replication(settings)) as log, log.cursor() as cursor:
                cursor.execute("IDENTIFY_SYSTEM")
            assert front.encrypted - earlier in (0, 2)
            return front.encrypted > earlier

        yield Server(connects, lambda tls: connects(tls, "localhost", str(pki / "ours.crt"), server.port))


@contextmanager
def mysql_server(flavour: Literal["mysql", "mariadb"], pki: Path, folder: Path) -> Iterator[Server]:
    made = server_certificate(pki)
    options = [f"--ssl-ca={pki / 'ours.crt'}", f"--ssl-cert={made.certificate}", f"--ssl-key={made.key}"]
    with MysqlServer(flavour, folder / flavour, *options) as server:
        server.run("CREATE USER cap IDENTIFIED BY 'secret'")

        def connects(tls: Tls, host: str, ca: str | None) -> bool:
            settings = MysqlSettings(
                "shop", flavour, host, server.port, "cap", "secret", ("*.*",), tls=tls, tls_ca=ca
            )
            with (closing(mysql_connection.connect(settings, purpose="test")) as connection,
                  connection.cursor() as cursor):
                cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
                return bool(cursor.fetchone()[1])

        def plain(tls: Tls) -> bool:
            server.restart("--skip-ssl" if flavour == "mariadb" else "--tls-version=")
            return connects(tls, "localhost", str(pki / "ours.crt"))

        yield Server(connects, plain)


@pytest.fixture(scope="module", params=["postgres", "mariadb", "mysql"])
def server(
    request: pytest.FixtureRequest, pki: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a server of each kind, with a certificate for localhost."""
    if request.param == "postgres":
        with postgres_server(request, pki) as server:
            yield server
    else:
        with mysql_server(request.param, pki, tmp_path_factory.mktemp("tls")) as server:
            yield server


@pytest.fixture(autouse=True)
def no_other_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLROOTCERT", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("tls", "host", "ca", "error"),
    [
        ("verify", "localhost", "ours.crt", None),
        ("verify", "localhost", "other.crt", "the server's certificate cannot be verified"),
        ("verify", "127.0.0.1", "ours.crt", "the server's certificate is for another host"),
        ("verify", "localhost", None, "cannot be verified|there is no CA file"),
        ("verify", "localhost", "missing.crt", "there is no CA file to verify the server with"),
        ("verify", "localhost", "broken.crt", "there is no CA file to verify the server with"),
        ("require", "localhost", None, None),
        ("require", "127.0.0.1", None, None),
        ("disable", "127.0.0.1", None, None),
    ],
)  # fmt: skip
def test_server_certificate_is_verified(
    server: Server, pki: Path, tls: Tls, host: str, ca: str | None, error: str | None
) -> None:
    file = None if ca is None else str(pki / ca)
    if error is None:
        assert server.connects(tls, host, file) is (tls != "disable")
        return
    with pytest.raises(PrerequisitesNotMet, match=error) as caught:
        server.connects(tls, host, file)
    assert "source.tls" in caught.value.next_step or "source.host" in caught.value.next_step
    assert "secret" not in str(caught.value)


def test_require_ignores_system_ca(
    server: Server, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSSLROOTCERT", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(pki / "other.crt"))
    assert server.connects("require", "localhost", None)


def test_verify_without_ca_file_uses_system_ca(
    server: Server, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSSLROOTCERT", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(pki / "ours.crt"))
    assert server.connects("verify", "localhost", None)


def test_server_without_tls_is_rejected(server: Server) -> None:
    for tls in ("verify", "require"):
        with pytest.raises(PrerequisitesNotMet, match=r"does not (speak|support) TLS"):
            server.plain(tls)
    assert server.plain("disable") is False


@pytest.fixture(scope="module")
def ensemble(pki: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Start a ZooKeeper with a certificate for localhost and one without; return their ports."""
    folder = tmp_path_factory.mktemp("zookeeper")
    made, both = server_certificate(pki), folder / "both.pem"
    both.write_text(made.key.read_text() + made.certificate.read_text())
    port = ZookeeperServer(folder / "x").port
    settings = {
        "secureClientPort": str(port), "ssl.keyStore.location": str(both), "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(pki / "ours.crt"), "ssl.trustStore.type": "PEM", "ssl.clientAuth": "none",
    }
    with ZookeeperServer(folder / "tls", **settings), ZookeeperServer(folder / "plain") as plain:
        yield port, plain.port


@pytest.mark.parametrize(
    ("has_tls", "host", "options", "works"),
    [
        (True, "localhost", "tls=verify&ca=ours.crt", True),
        (True, "localhost", "tls=verify&ca=other.crt", False),
        pytest.param(True, "127.0.0.1", "tls=verify&ca=ours.crt", False, marks=pytest.mark.slow),
        pytest.param(True, "localhost", "tls=verify", False, marks=pytest.mark.slow),
        (True, "127.0.0.1", "tls=require", True),
        pytest.param(True, "localhost", "tls=disable", False, marks=pytest.mark.slow),
        (False, "localhost", "tls=verify&ca=ours.crt", False),
        pytest.param(False, "localhost", "tls=require", False, marks=pytest.mark.slow),
        (False, "localhost", "tls=disable", True),
    ],
)  # fmt: skip
def test_zookeeper_certificate_is_verified(
    ensemble: tuple[int, int], pki: Path, has_tls: bool, host: str, options: str, works: bool
) -> None:
    port = ensemble[0] if has_tls else ensemble[1]
    url = f"zookeeper://{host}:{port}/x?session_timeout=1&{options.replace('ca=', f'ca={pki}/')}"
    store = open_progress(url, "shop")
    if works:
        store.write("a", {"n": 1})
        assert store.read("a") == {"n": 1}
        return
    with pytest.raises((ProgressUnavailable, ConfigError)):
        store.write("a", {"n": 2})
