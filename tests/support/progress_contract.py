"""What every progress store must do; run by the tests of each store on its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dblake.base.core.errors import ConfigError
from dblake.ingest.capture.progress import ProgressStore

Write = Callable[[str, bytes], None]
"""Writes bytes as a document's content, past the store."""


class ProgressContract:
    """The tests of every ProgressStore. A subclass provides the fixtures ``store`` and ``corrupt``."""

    def test_missing_document_is_none(self, store: ProgressStore) -> None:
        assert store.read("dumps/requests/x") is None

    def test_written_document_is_read(self, store: ProgressStore) -> None:
        store.write("dumps/requests/a.public~2eorders", {"table": "public.orders", "keys": [["ö", "1"]], "at": None})
        assert store.read("dumps/requests/a.public~2eorders") == {
            "table": "public.orders", "keys": [["ö", "1"]], "at": None,
        }

    def test_write_replaces_document(self, store: ProgressStore) -> None:
        store.write("a/b", {"n": 1, "long": "x" * 100})
        store.write("a/b", {"n": 2})
        assert store.read("a/b") == {"n": 2}

    def test_empty_document_is_not_none(self, store: ProgressStore) -> None:
        store.write("a", {})
        assert store.read("a") == {}

    def test_list_returns_sorted_paths_at_any_depth(self, store: ProgressStore) -> None:
        for path in ("d/b", "d/a/z", "d/a/c", "d-other/x", "e"):
            store.write(path, {"n": 1})
        assert list(store.list("d")) == ["d/a/c", "d/a/z", "d/b"]
        assert list(store.list("nothing")) == []

    def test_delete_is_idempotent(self, store: ProgressStore) -> None:
        store.write("d/a", {"n": 1})
        store.delete("d/a")
        store.delete("d/a")
        assert store.read("d/a") is None
        assert list(store.list("d")) == []

    @pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", "a//b", "a/", "a\n", ".hidden"])
    def test_path_outside_store_is_rejected(self, store: ProgressStore, path: str) -> None:
        with pytest.raises(ValueError, match="not a document path"):
            store.write(path, {})

    @pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"[1]", b"null", b"\xff\xfe"])
    def test_corrupt_document_is_a_named_error(self, store: ProgressStore, corrupt: Write, content: bytes) -> None:
        corrupt("d/a", content)
        named = r"progress: the (file|node) \S+/d/a\.json is corrupt: not a JSON object\. Next: delete that \1;"
        with pytest.raises(ConfigError, match=named):
            store.read("d/a")

    def test_failed_serialization_keeps_document(self, store: ProgressStore) -> None:
        store.write("d/a", {"n": 1})
        with pytest.raises(TypeError):
            store.write("d/a", {"n": object()})
        assert store.read("d/a") == {"n": 1}

    def test_document_and_folder_may_share_a_name(self, store: ProgressStore) -> None:
        store.write("d/a", {"n": 1})
        store.write("d/a/b", {"n": 2})
        store.delete("d/a")
        assert (store.read("d/a"), store.read("d/a/b"), list(store.list("d"))) == (None, {"n": 2}, ["d/a/b"])
