"""TLS to each kind of server, with certificates made here: who is let in, who is refused by name, and what is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from dblake.capture.progress import open_progress
from dblake.core.errors import ConfigError, LandingUnavailable, PrerequisitesNotMet
from dblake.source.mysql import connection as mysql_connection
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.postgres import connection as postgres_connection
from dblake.source.postgres.embedded import EmbeddedPostgres
from dblake.source.postgres.settings import PostgresSettings
from tests.support.certificates import Certificate, authority, signed
from tests.support.mysql import MysqlServer
from tests.support.tls_front import TlsFront
from tests.support.zookeeper import ZookeeperServer

Tls = Literal["verify", "require", "disable"]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ours.crt`` signed the servers' certificate, which is for localhost; ``other.crt`` is another CA's."""
    folder = tmp_path_factory.mktemp("pki")
    signed(folder, "localhost", authority(folder, "ours"))
    authority(folder, "other")
    (folder / "broken.crt").write_text("not a certificate", encoding="ascii")
    return folder


def server_certificate(pki: Path) -> Certificate:
    return Certificate(pki / "localhost.server.crt", pki / "localhost.server.key")


@dataclass(frozen=True)
class Server:
    """``connects`` by tls, host and CA, returning whether the connection was encrypted; ``plain`` is to a server that
    does not speak TLS."""

    connects: Callable[[Tls, str, str | None], bool]
    plain: Callable[[Tls], bool]


@contextmanager
def postgres_server(request: pytest.FixtureRequest, pki: Path) -> Iterator[Server]:
    server: EmbeddedPostgres = request.getfixturevalue("postgres")
    with TlsFront(server.port, server_certificate(pki)) as front:
        def connects(tls: Tls, host: str, ca: str | None, port: int = front.port) -> bool:
            before = front.encrypted
            settings = PostgresSettings(
                "shop", host, port, "postgres", server.user, server.password, ("*.*",), tls=tls, tls_ca=ca
            )
            postgres_connection.connect(settings, purpose="test").close()
            with closing(postgres_connection.connect_replication(settings)) as log, log.cursor() as cursor:
                cursor.execute("IDENTIFY_SYSTEM")
            assert front.encrypted - before in (0, 2)
            return front.encrypted > before

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
    """A server of each kind, with a certificate for localhost."""
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
    ("tls", "host", "ca", "told"),
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
def test_who_is_let_in(server: Server, pki: Path, tls: Tls, host: str, ca: str | None, told: str | None) -> None:
    file = None if ca is None else str(pki / ca)
    if told is None:
        assert server.connects(tls, host, file) is (tls != "disable")
        return
    with pytest.raises(PrerequisitesNotMet, match=told) as caught:
        server.connects(tls, host, file)
    assert "source.tls" in caught.value.next_step or "source.host" in caught.value.next_step
    assert "secret" not in str(caught.value)


def test_require_asks_for_no_authority_where_the_machine_has_one(
    server: Server, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSSLROOTCERT", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(pki / "other.crt"))
    assert server.connects("require", "localhost", None)


def test_the_machines_authorities_count_without_a_file_of_ones_own(
    server: Server, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSSLROOTCERT", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(pki / "ours.crt"))
    assert server.connects("verify", "localhost", None)


def test_nothing_is_told_to_a_server_that_does_not_speak_tls(server: Server) -> None:
    for tls in ("verify", "require"):
        with pytest.raises(PrerequisitesNotMet, match="does not (speak|support) TLS"):
            server.plain(tls)
    assert server.plain("disable") is False


@pytest.fixture(scope="module")
def ensemble(pki: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """A ZooKeeper with a certificate for localhost, and one without; by port."""
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
    ("speaks", "host", "options", "works"),
    [
        (True, "localhost", "tls=verify&ca=ours.crt", True),
        (True, "localhost", "tls=verify&ca=other.crt", False),
        (True, "127.0.0.1", "tls=verify&ca=ours.crt", False),
        (True, "localhost", "tls=verify", False),
        (True, "127.0.0.1", "tls=require", True),
        (True, "localhost", "tls=disable", False),
        (False, "localhost", "tls=verify&ca=ours.crt", False),
        (False, "localhost", "tls=require", False),
        (False, "localhost", "tls=disable", True),
    ],
)  # fmt: skip
def test_which_zookeeper_is_trusted(
    ensemble: tuple[int, int], pki: Path, speaks: bool, host: str, options: str, works: bool
) -> None:
    port = ensemble[0] if speaks else ensemble[1]
    url = f"zookeeper://{host}:{port}/x?session_timeout=1&{options.replace('ca=', f'ca={pki}/')}"
    store = open_progress(url, "shop")
    if works:
        store.write("a", {"n": 1})
        assert store.read("a") == {"n": 1}
        return
    with pytest.raises((LandingUnavailable, ConfigError)):
        store.write("a", {"n": 2})
