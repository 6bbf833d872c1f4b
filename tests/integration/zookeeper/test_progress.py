"""Progress documents in ZooKeeper, on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError, ExitCode, Fenced, ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.ingest.capture.lease import open_lease
from dblake.ingest.capture.progress import ProgressStore, open_progress
from dblake.ingest.capture.zookeeper.progress import MAX_DOCUMENT_BYTES, ZookeeperProgress
from tests.support.certificates import create_self_signed
from tests.support.progress_contract import ProgressContract, Write
from tests.support.zookeeper import ZookeeperServer


@pytest.fixture
def progress_url(zookeeper_url: str) -> str:
    """Return a fresh root node of the run's server."""
    return zookeeper_url


class TestZookeeperProgress(ProgressContract):
    @pytest.fixture
    def store(self, progress_url: str) -> Iterator[ProgressStore]:
        store = ZookeeperProgress(ZookeeperUrl.parse(progress_url), "shop")
        yield store
        store.close()

    @pytest.fixture
    def corrupt(self, progress_url: str, zookeeper: ZookeeperServer) -> Write:
        def write(path: str, content: bytes) -> None:
            client = zookeeper.client()
            root = ZookeeperUrl.parse(progress_url).root
            client.create(f"{root}/shop/documents/{path}.json", content, makepath=True)
            client.stop()

        return write

    def test_document_above_size_limit_is_a_named_error(self, store: ProgressStore) -> None:
        largest = {"keys": "x" * (MAX_DOCUMENT_BYTES - len(b'{"keys": ""}'))}
        store.write("d/a", largest)
        assert store.read("d/a") == largest
        with pytest.raises(ConfigError, match="the document d/a has 1,000,001 bytes, more than the 1,000,000 that fit"):
            store.write("d/a", {"keys": largest["keys"] + "x"})
        assert store.read("d/a") == largest

    def test_store_survives_restart_and_expired_session(self, tmp_path: Path) -> None:
        with ZookeeperServer(tmp_path) as server:
            store = open_progress(f"zookeeper://{server.hosts}/x?session_timeout=4", "shop")
            store.write("d/a", {"n": 1})
            server.stop()
            threading.Timer(1.0, server.start).start()
            store.write("d/a", {"n": 2})
            assert store.read("d/a") == {"n": 2}
            assert isinstance(store, ZookeeperProgress)
            server.end_session(store._session._client)
            store.write("d/b", {"n": 3})
            assert list(store.list("d")) == ["d/a", "d/b"]
            store.close()

    @pytest.mark.slow
    def test_unreachable_ensemble_is_retryable(self, tmp_path: Path) -> None:
        with ZookeeperServer(tmp_path) as server:
            url = f"zookeeper://{server.hosts}/x?session_timeout=1"
            store = open_progress(url, "shop")
            store.write("a", {})
        for gone in (store, open_progress(url, "shop")):
            began = time.monotonic()
            with pytest.raises(ProgressUnavailable, match=rf"ZooKeeper at {server.hosts} does not answer") as failure:
                gone.read("a")
            assert failure.value.exit_code is ExitCode.TRY_AGAIN
            assert time.monotonic() - began < 8

    def test_lost_lease_allows_reads_only(self, progress_url: str, zookeeper: ZookeeperServer) -> None:
        lease = open_lease(progress_url, "shop", standby=False, stop=threading.Event())
        with lease:
            store = open_progress(progress_url, "shop", lease)
            store.write("d/a", {"n": 1})
            root = ZookeeperUrl.parse(progress_url).root
            client = zookeeper.client()
            (candidate,) = client.get_children(f"{root}/shop/lease")
            client.delete(f"{root}/shop/lease/{candidate}")
            client.stop()
            with pytest.raises(Fenced, match="the lease was lost"):
                store.write("d/a", {"n": 2})
            with pytest.raises(Fenced, match="the lease was lost"):
                store.write("d/b", {})
            with pytest.raises(Fenced, match="the lease was lost"):
                store.delete("d/a")
            assert (store.read("d/a"), list(store.list("d"))) == ({"n": 1}, ["d/a"])

    def test_nodes_are_accessible_to_their_user_only(
        self, progress_url: str, zookeeper: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ZK_PASSWORD", "tête-à-tête:1")
        monkeypatch.setenv("ZK_OTHER", "guess")
        own = f"{progress_url}&user=dblake&password=${{env:ZK_PASSWORD}}&tls=disable"
        open_progress(own, "shop").write("d/a", {"n": 1})
        assert open_progress(own, "shop").read("d/a") == {"n": 1}
        for other in (progress_url, own.replace("ZK_PASSWORD", "ZK_OTHER")):
            with pytest.raises(ConfigError, match="access denied for this user") as failure:
                open_progress(other, "shop").read("d/a")
            assert "tête" not in str(failure.value)
            with pytest.raises(ConfigError, match="access denied for this user"):
                open_progress(other, "shop").write("d/b", {})

    @pytest.mark.slow
    def test_tls_verifies_server_certificate(self, tmp_path: Path) -> None:
        signed = create_self_signed(tmp_path, "localhost")
        certificate, key = signed.certificate, signed.key
        both = tmp_path / "both.pem"
        both.write_text(key.read_text() + certificate.read_text())
        port = ZookeeperServer(tmp_path / "x").port
        settings = {
            "secureClientPort": str(port), "ssl.keyStore.location": str(both), "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(certificate), "ssl.trustStore.type": "PEM", "ssl.clientAuth": "need",
        }
        client = f"certificate={certificate}&key={key}"
        with ZookeeperServer(tmp_path / "tls", **settings):
            for host, options, works in (
                ("localhost", f"tls=verify&ca={certificate}&{client}", True),
                ("127.0.0.1", f"tls=require&{client}", True),
                ("localhost", f"tls=verify&{client}", False),
                ("127.0.0.1", f"tls=verify&ca={certificate}&{client}", False),
                ("localhost", f"tls=verify&ca={certificate}", False),
            ):
                store = open_progress(f"zookeeper://{host}:{port}/x?session_timeout=3&{options}", "shop")
                if works:
                    store.write("a", {"n": 1})
                    assert store.read("a") == {"n": 1}
                else:
                    with pytest.raises((ProgressUnavailable, ConfigError)):
                        store.write("a", {"n": 2})


def test_sources_share_an_ensemble_and_no_document(progress_url: str) -> None:
    open_progress(progress_url, "shop").write("dumps/throttle", {"delay": 1.0})
    assert open_progress(progress_url, "depot").read("dumps/throttle") is None
    assert open_progress(progress_url, "shop").read("dumps/throttle") == {"delay": 1.0}
