"""Progress documents: what any store of them must do, and what files and ZooKeeper must do besides."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblake.capture.lease import open_lease
from dblake.capture.progress import FileProgress, ProgressStore, open_progress
from dblake.capture.zookeeper.progress import MOST_BYTES, ZookeeperProgress
from dblake.core.errors import ConfigError, ExitCode, Fenced, LandingUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl
from tests.support.certificates import create_self_signed
from tests.support.zookeeper import ZookeeperServer

Write = Callable[[str, bytes], None]
"""Puts bytes where a document is kept."""


class Stores:
    """What every ProgressStore must do. A subclass provides ``store``, and ``spoil`` to write past it."""

    def test_a_document_not_written_is_none(self, store: ProgressStore) -> None:
        assert store.read("dumps/requests/x") is None

    def test_what_is_written_is_read(self, store: ProgressStore) -> None:
        store.write("dumps/requests/a.public~2eorders", {"table": "public.orders", "keys": [["ö", "1"]], "at": None})
        assert store.read("dumps/requests/a.public~2eorders") == {
            "table": "public.orders", "keys": [["ö", "1"]], "at": None,
        }

    def test_a_write_replaces_what_was_there(self, store: ProgressStore) -> None:
        store.write("a/b", {"n": 1, "long": "x" * 100})
        store.write("a/b", {"n": 2})
        assert store.read("a/b") == {"n": 2}

    def test_an_empty_document_is_not_none(self, store: ProgressStore) -> None:
        store.write("a", {})
        assert store.read("a") == {}

    def test_list_finds_all_below_in_order(self, store: ProgressStore) -> None:
        for path in ("d/b", "d/a/z", "d/a/c", "d-other/x", "e"):
            store.write(path, {"n": 1})
        assert list(store.list("d")) == ["d/a/c", "d/a/z", "d/b"]
        assert list(store.list("nothing")) == []

    def test_delete_removes_and_may_be_repeated(self, store: ProgressStore) -> None:
        store.write("d/a", {"n": 1})
        store.delete("d/a")
        store.delete("d/a")
        assert store.read("d/a") is None
        assert list(store.list("d")) == []

    @pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", "a//b", "a/", "a\n", ".hidden"])
    def test_paths_stay_inside(self, store: ProgressStore, path: str) -> None:
        with pytest.raises(ValueError, match="not a document path"):
            store.write(path, {})


    @pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"[1]", b"null", b"\xff\xfe"])
    def test_a_corrupt_document_is_an_error_by_name(self, store: ProgressStore, spoil: Write, content: bytes) -> None:
        spoil("d/a", content)
        named = r"progress: the (file|node) \S+/d/a\.json is not what was written there\. Next: delete that \1;"
        with pytest.raises(ConfigError, match=named):
            store.read("d/a")

    def test_a_document_that_is_no_json_leaves_what_was_there(self, store: ProgressStore) -> None:
        store.write("d/a", {"n": 1})
        with pytest.raises(TypeError):
            store.write("d/a", {"n": object()})
        assert store.read("d/a") == {"n": 1}

    def test_a_document_and_a_folder_may_share_a_name(self, store: ProgressStore) -> None:
        store.write("d/a", {"n": 1})
        store.write("d/a/b", {"n": 2})
        store.delete("d/a")
        assert (store.read("d/a"), store.read("d/a/b"), list(store.list("d"))) == (None, {"n": 2}, ["d/a/b"])


class TestFileProgress(Stores):
    @pytest.fixture
    def spoil(self, tmp_path: Path) -> Write:
        def write(path: str, content: bytes) -> None:
            file = tmp_path / "progress" / f"{path}.json"
            file.parent.mkdir(parents=True)
            file.write_bytes(content)

        return write

    @pytest.fixture
    def store(self, tmp_path: Path) -> ProgressStore:
        return FileProgress(tmp_path / "progress")

    def test_what_a_crash_leaves_is_no_document(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        store.write("d/a", {"n": 1})
        (tmp_path / "d/.a.x1y2.part").write_text('{"n": 2')
        assert list(store.list("d")) == ["d/a"]
        assert store.read("d/a") == {"n": 1}

    def test_a_failed_write_leaves_nothing_behind(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        (tmp_path / "d/a.json").mkdir(parents=True)
        with pytest.raises(LandingUnavailable, match="cannot be written: Is a directory"):
            store.write("d/a", {"n": 1})
        assert [p.name for p in (tmp_path / "d").iterdir()] == ["a.json"]

    def test_a_reader_never_sees_half_a_document(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        store.write("d/a", {"n": 0, "same": 0})
        writer = multiprocessing.get_context("spawn").Process(target=_write_much, args=(tmp_path,))
        writer.start()
        seen = set()
        while writer.is_alive():
            document = store.read("d/a")
            assert document is not None
            assert document["n"] == document["same"]
            seen.add(document["n"])
        writer.join()
        assert writer.exitcode == 0
        assert len(seen) > 1

    def test_a_directory_that_cannot_be_written_is_a_configuration_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="set `progress` to a directory"):
            FileProgress(tmp_path / "file").write("a", {})

    def test_documents_are_for_their_owner_only(self, tmp_path: Path) -> None:
        FileProgress(tmp_path).write("a", {"last_key": ["x"]})
        assert os.stat(tmp_path / "a.json").st_mode & 0o077 == 0


class TestZookeeperProgress(Stores):
    @pytest.fixture
    def store(self, zookeeper_url: str) -> Iterator[ProgressStore]:
        store = ZookeeperProgress(ZookeeperUrl.parse(zookeeper_url), "shop")
        yield store
        store.close()

    @pytest.fixture
    def spoil(self, zookeeper_url: str, zookeeper: ZookeeperServer) -> Write:
        def write(path: str, content: bytes) -> None:
            client = zookeeper.client()
            root = ZookeeperUrl.parse(zookeeper_url).root
            client.create(f"{root}/shop/documents/{path}.json", content, makepath=True)
            client.stop()

        return write

    def test_the_largest_document_fits_and_a_larger_one_is_refused_by_name(self, store: ProgressStore) -> None:
        largest = {"keys": "x" * (MOST_BYTES - len(b'{"keys": ""}'))}
        store.write("d/a", largest)
        assert store.read("d/a") == largest
        with pytest.raises(ConfigError, match="the document d/a has 1,000,001 bytes, more than the 1,000,000 that fit"):
            store.write("d/a", {"keys": largest["keys"] + "x"})
        assert store.read("d/a") == largest

    def test_it_waits_out_a_restart_and_a_session_that_ended(self, tmp_path: Path) -> None:
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

    def test_an_ensemble_that_does_not_answer_is_worth_another_try(self, tmp_path: Path) -> None:
        with ZookeeperServer(tmp_path) as server:
            url = f"zookeeper://{server.hosts}/x?session_timeout=1"
            store = open_progress(url, "shop")
            store.write("a", {})
        for gone in (store, open_progress(url, "shop")):
            began = time.monotonic()
            with pytest.raises(LandingUnavailable, match=rf"ZooKeeper at {server.hosts} does not answer") as told:
                gone.read("a")
            assert told.value.exit_code is ExitCode.TRY_AGAIN
            assert time.monotonic() - began < 8

    def test_who_lost_the_lease_can_read_and_not_write(self, zookeeper_url: str, zookeeper: ZookeeperServer) -> None:
        lease = open_lease(zookeeper_url, "shop", standby=False, stop=threading.Event())
        with lease:
            store = open_progress(zookeeper_url, "shop", lease)
            store.write("d/a", {"n": 1})
            root = ZookeeperUrl.parse(zookeeper_url).root
            client = zookeeper.client()
            (candidate,) = client.get_children(f"{root}/shop/lease")
            client.delete(f"{root}/shop/lease/{candidate}")
            client.stop()
            for change in (lambda: store.write("d/a", {"n": 2}), lambda: store.write("d/b", {}),
                           lambda: store.delete("d/a")):
                with pytest.raises(Fenced, match="the lease was lost"):
                    change()
            assert (store.read("d/a"), list(store.list("d"))) == ({"n": 1}, ["d/a"])

    def test_with_a_user_the_nodes_are_that_users(
        self, zookeeper_url: str, zookeeper: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ZK_PASSWORD", "tête-à-tête:1")
        monkeypatch.setenv("ZK_OTHER", "guess")
        own = f"{zookeeper_url}&user=dblake&password=${{env:ZK_PASSWORD}}"
        open_progress(own, "shop").write("d/a", {"n": 1})
        assert open_progress(own, "shop").read("d/a") == {"n": 1}
        for other in (zookeeper_url, own.replace("ZK_PASSWORD", "ZK_OTHER")):
            with pytest.raises(ConfigError, match="does not let this user") as told:
                open_progress(other, "shop").read("d/a")
            assert "tête" not in str(told.value)
            with pytest.raises(ConfigError, match="does not let this user"):
                open_progress(other, "shop").write("d/b", {})

    def test_over_tls_the_servers_certificate_is_verified(self, tmp_path: Path) -> None:
        made = create_self_signed(tmp_path, "localhost")
        certificate, key = made.certificate, made.key
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
                    with pytest.raises((LandingUnavailable, ConfigError)):
                        store.write("a", {"n": 2})


def _write_much(directory: Path) -> None:
    store = FileProgress(directory)
    for n in range(1, 200):
        store.write("d/a", {"n": n, "pad": "x" * 20_000, "same": n})


@pytest.mark.parametrize("kind", ["file", "zookeeper"])
def test_sources_share_a_url_and_no_document(tmp_path: Path, zookeeper_url: str, kind: str) -> None:
    url = {"file": f"file:{tmp_path}", "zookeeper": zookeeper_url}[kind]
    open_progress(url, "shop").write("dumps/throttle", {"delay": 1.0})
    assert open_progress(url, "depot").read("dumps/throttle") is None
    assert open_progress(url, "shop").read("dumps/throttle") == {"delay": 1.0}


def test_other_places_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no documents can be kept in redis"):
        open_progress("redis://host/dblake", "shop")
