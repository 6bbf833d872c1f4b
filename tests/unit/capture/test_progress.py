"""Progress documents: what any store of them must do, and what files must do besides."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from dblake.capture.progress import FileProgress, ProgressStore, open_progress
from dblake.core.errors import ConfigError


class Stores:
    """What every ProgressStore must do. A subclass provides ``store``."""

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


class TestFileProgress(Stores):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ProgressStore:
        return FileProgress(tmp_path / "progress")

    @pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"[1]", b"null", b"\xff\xfe"])
    def test_a_corrupt_document_is_an_error_by_name(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/a.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"d/a\.json is not what was written there.*Next: delete that file"):
            FileProgress(tmp_path).read("d/a")

    def test_what_a_crash_leaves_is_no_document(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        store.write("d/a", {"n": 1})
        (tmp_path / "d/.a.x1y2.part").write_text('{"n": 2')
        assert list(store.list("d")) == ["d/a"]
        assert store.read("d/a") == {"n": 1}

    def test_a_failed_write_leaves_what_was_there_and_nothing_else(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        store.write("d/a", {"n": 1})
        with pytest.raises(TypeError):
            store.write("d/a", {"n": object()})
        assert [p.name for p in (tmp_path / "d").iterdir()] == ["a.json"]
        assert store.read("d/a") == {"n": 1}

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


def _write_much(directory: Path) -> None:
    store = FileProgress(directory)
    for n in range(1, 200):
        store.write("d/a", {"n": n, "pad": "x" * 20_000, "same": n})


def test_sources_share_a_url_and_no_document(tmp_path: Path) -> None:
    open_progress(f"file:{tmp_path}", "shop").write("dumps/throttle", {"delay": 1.0})
    assert open_progress(f"file:{tmp_path}", "depot").read("dumps/throttle") is None
    assert open_progress(f"file:{tmp_path}", "shop").read("dumps/throttle") == {"delay": 1.0}


def test_other_places_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="cannot keep its documents in zookeeper"):
        open_progress("zookeeper://host:2181/dblake", "shop")
