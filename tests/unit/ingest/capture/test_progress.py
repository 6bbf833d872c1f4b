"""Progress documents as files."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError, ProgressUnavailable
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.progress import ProgressStore, open_progress
from tests.support.progress_contract import ProgressContract, Write


class TestFileProgress(ProgressContract):
    @pytest.fixture
    def corrupt(self, tmp_path: Path) -> Write:
        def write(path: str, content: bytes) -> None:
            file = tmp_path / "progress" / f"{path}.json"
            file.parent.mkdir(parents=True)
            file.write_bytes(content)

        return write

    @pytest.fixture
    def store(self, tmp_path: Path) -> ProgressStore:
        return FileProgress(tmp_path / "progress")

    def test_temporary_file_of_crash_is_no_document(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        store.write("d/a", {"n": 1})
        (tmp_path / "d/.a.x1y2.part").write_text('{"n": 2')
        assert list(store.list("d")) == ["d/a"]
        assert store.read("d/a") == {"n": 1}

    def test_failed_write_leaves_no_file(self, tmp_path: Path) -> None:
        store = FileProgress(tmp_path)
        (tmp_path / "d/a.json").mkdir(parents=True)
        with pytest.raises(ProgressUnavailable, match="cannot be written: Is a directory"):
            store.write("d/a", {"n": 1})
        assert [p.name for p in (tmp_path / "d").iterdir()] == ["a.json"]

    def test_reader_never_sees_partial_document(self, tmp_path: Path) -> None:
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

    def test_unwritable_directory_is_a_configuration_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="set `progress` to a directory"):
            FileProgress(tmp_path / "file").write("a", {})

    def test_document_is_readable_by_owner_only(self, tmp_path: Path) -> None:
        FileProgress(tmp_path).write("a", {"last_key": ["x"]})
        assert os.stat(tmp_path / "a.json").st_mode & 0o077 == 0


def _write_much(directory: Path) -> None:
    store = FileProgress(directory)
    for n in range(1, 200):
        store.write("d/a", {"n": n, "pad": "x" * 20_000, "same": n})


def test_sources_share_a_directory_and_no_document(tmp_path: Path) -> None:
    url = f"file:{tmp_path}"
    open_progress(url, "shop").write("dumps/throttle", {"delay": 1.0})
    assert open_progress(url, "depot").read("dumps/throttle") is None
    assert open_progress(url, "shop").read("dumps/throttle") == {"delay": 1.0}


def test_unknown_progress_scheme_is_a_named_error() -> None:
    with pytest.raises(ConfigError, match="the scheme redis is not supported"):
        open_progress("redis://host/dblake", "shop")
