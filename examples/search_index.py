"""Keep a search index in step with two joined tables: a product is found by its own words and by its maker's name.

``SearchIndex`` is an output that maintains a tantivy index. A changed product is indexed again, and a changed maker has
all of its products indexed again, so the index equals the join of the tables::

    SELECT p.id, p.name, p.description, m.name FROM products p LEFT JOIN makers m ON m.id = p.maker

Configuration::

    outputs:
      search:
        class: examples.search_index:SearchIndex
        tables: ["public.products", "public.makers"]
        settings: {path: /var/lib/shop/search}

``subscribe --output search`` fills the index from a bootstrap and follows the changes. Rows of both tables and the
checkpoint are documents of the index, committed together: a process that is killed at any point resumes exactly there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tantivy

from dblake.outputs import ControlKind, Event, OutputContext, Transaction

PRODUCTS, MAKERS = "public.products", "public.makers"
_CHECKPOINT = "checkpoint"

Row = dict[str, str | None]
Key = tuple[str, str]
"""A table and an id."""


class SearchIndex:
    """See ``dblake.outputs.Output``. The index is in the folder ``path``."""

    holds_checkpoint = True

    def __init__(self, context: OutputContext, *, path: str) -> None:  # noqa: ARG002 - every output is given it
        self._path = Path(path)
        self._is_emptied = False

    def open(self) -> str | None:
        """Open the index, or create it; return its checkpoint."""
        self._path.mkdir(parents=True, exist_ok=True)
        self._index = tantivy.Index(_schema(), path=str(self._path))
        self._writer = self._index.writer(num_threads=1)
        found = _find(self._index, "table", _CHECKPOINT)
        checkpoint = found[0].get_first("checkpoint") if found else None
        return None if checkpoint is None else bytes(checkpoint).decode()

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Index what the transactions change, and commit it with the checkpoint."""
        changed: dict[Key, Row | None] = {}
        for transaction in transactions:
            if transaction.control is not None and transaction.control.kind is ControlKind.BOOTSTRAP_STARTED:
                self._writer.delete_documents_by_query(tantivy.Query.all_query())
                changed, self._is_emptied = {}, True
            for event in transaction.events:
                self._apply(event, changed)
        for key in {**changed, **dict.fromkeys(self._products_of(changed))}:
            self._put(key, changed)
        self._writer.delete_documents_by_term("table", _CHECKPOINT)
        self._writer.add_document(tantivy.Document(table=_CHECKPOINT, checkpoint=checkpoint.encode()))
        self._writer.commit()
        self._index.reload()
        self._is_emptied = False

    def close(self) -> None:
        """Discard what is not committed, and release the index."""
        if hasattr(self, "_writer"):
            self._writer.rollback()
            self._writer.wait_merging_threads()
            del self._writer

    def _apply(self, event: Event, changed: dict[Key, Row | None]) -> None:
        """Note the row that an event leaves; None if it leaves none."""
        if event.op == "t":
            changed.update(dict.fromkeys([*self._keys_of(event.table), *(k for k in changed if k[0] == event.table)]))
            return
        assert event.key is not None, "both tables have a primary key"
        key = event.table, str(event.key["id"])
        if event.op == "d":
            changed[key] = None
        else:
            # An update may carry only some columns; the others keep their values.
            known = self._get(key, changed) if event.op in "uf" else None
            changed[key] = {**(known or {}), **(event.after or {})}

    def _put(self, key: Key, changed: dict[Key, Row | None]) -> None:
        """Replace a row's document."""
        table, number = key
        row = self._get(key, changed)
        self._writer.delete_documents_by_term("key", _join(key))
        if row is None:
            return
        fields = {"key": _join(key), "table": table, "id": number, "name": row.get("name")}
        if table == PRODUCTS:
            maker = row.get("maker")
            joined = self._get((MAKERS, maker), changed) if maker is not None else None
            fields |= {"maker": maker, "description": row.get("description"), "maker_name": (joined or {}).get("name")}
        self._writer.add_document(tantivy.Document(**{name: text for name, text in fields.items() if text is not None}))

    def _get(self, key: Key, changed: dict[Key, Row | None]) -> Row | None:
        """Return a row as the changes leave it, or as it is in the index."""
        if key in changed:
            return changed[key]
        found = self._find("key", _join(key))
        return {name: found[0].get_first(name) for name in ("id", "name", "maker", "description")} if found else None

    def _products_of(self, changed: Iterable[Key]) -> list[Key]:
        """Return the products in the index whose maker has changed."""
        return [
            (PRODUCTS, str(document.get_first("id")))
            for table, maker in changed if table == MAKERS for document in self._find("maker", maker)
        ]

    def _keys_of(self, table: str) -> list[Key]:
        return [(table, str(document.get_first("id"))) for document in self._find("table", table)]

    def _find(self, field: str, text: str) -> list[tantivy.Document]:
        return [] if self._is_emptied else _find(self._index, field, text)


def search(path: str | Path, words: str, limit: int = 10) -> list[dict[str, Any]]:
    """Return the products that have all words, in their own texts or in their maker's name, the best ones first."""
    index = tantivy.Index.open(str(path))
    query = tantivy.Query.boolean_query([
        (tantivy.Occur.Must, tantivy.Query.term_query(index.schema, "table", PRODUCTS)),
        (tantivy.Occur.Must,
         index.parse_query(words, ["name", "description", "maker_name"], conjunction_by_default=True)),
    ])
    searcher = index.searcher()
    return [_product(searcher.doc(address)) for _, address in searcher.search(query, limit).hits]


def read_products(path: str | Path) -> list[dict[str, Any]]:
    """Return all products in the index, in no particular order."""
    return [_product(document) for document in _find(tantivy.Index.open(str(path)), "table", PRODUCTS)]


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    for name in ("key", "table", "id", "maker"):
        builder.add_text_field(name, stored=True, tokenizer_name="raw")
    for name in ("name", "description", "maker_name"):
        builder.add_text_field(name, stored=True)
    builder.add_bytes_field("checkpoint", stored=True, indexed=False)
    return builder.build()


def _find(index: tantivy.Index, field: str, text: str) -> list[tantivy.Document]:
    searcher = index.searcher()
    query = tantivy.Query.term_query(index.schema, field, text)
    return [searcher.doc(address) for _, address in searcher.search(query, max(searcher.num_docs, 1)).hits]


def _join(key: Key) -> str:
    return "/".join(key)


def _product(document: tantivy.Document) -> dict[str, Any]:
    return {name: document.get_first(name) for name in ("id", "name", "description", "maker_name")}
