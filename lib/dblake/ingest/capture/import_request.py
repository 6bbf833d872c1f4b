"""Queue an import: files become the chunks of a table's first dump, with the position of the files as low watermark.

Place: below the ``dump import`` command; capture carries the request out, on the machine where it runs. Guarantee:
nothing is queued unless every file can be opened here and has the table's columns, and ``import_checks`` accept it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from dblake.base.core.errors import UsageError
from dblake.base.core.schema import TableSchema
from dblake.ingest.capture.dump_queue import dumps_of, new_id, queue_import
from dblake.ingest.capture.import_checks import ImportChecks, newest_incarnation
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.stale_tables import dumps_of_stale, read_stale_tables, save_stale_table
from dblake.ingest.imports.files import count_rows, read_columns, require_columns
from dblake.ingest.imports.position import parse_start
from dblake.ingest.imports.spec import CSV, MYSQLDUMP, PARQUET, PG_DUMP, ImportFiles, ImportSpec

_POSTGRES = "postgres"
_OF_SOURCE = {PG_DUMP: (_POSTGRES,), MYSQLDUMP: ("mysql", "mariadb")}


@dataclass(frozen=True, slots=True)
class ImportQueue:
    """Where imports of a source are queued: its kind, its landing table and its progress store.

    ``max_removed`` is the share of a table's earlier rows that an import may delete, None is all; ``landing_days`` is
    how long maintenance keeps landing, None is without limit.
    """

    source_type: str
    landing: str
    store: ProgressStore
    max_removed: float | None = None
    landing_days: int | None = None

    def add(
        self, files: ImportFiles, schema: TableSchema, *, is_masked: bool, replaces: bool
    ) -> tuple[str, int | None]:
        """Queue an import; return its id, and the number of rows if the files record it.

        With ``is_masked`` the schema lacks columns that the files have; capture then checks the columns. Raises
        UsageError for options that do not fit, Unsupported for files, and what ``ImportChecks`` raises.
        """
        own = PG_DUMP if self.source_type == _POSTGRES else MYSQLDUMP
        if self.source_type not in _OF_SOURCE.get(files.format, (self.source_type,)):
            raise UsageError(
                f"--format {files.format} does not fit a source of type {self.source_type}",
                next_step=f"give --format {own}, {CSV} or {PARQUET}",
            )
        if files.columns and files.format in (CSV, PARQUET):
            raise UsageError(
                f"--columns beside --format {files.format}: its files name their columns", next_step="omit --columns"
            )
        began = parse_start(self.source_type, newest_incarnation(self.landing), files.at, files.snapshot)
        spec = ImportSpec(
            files.format, tuple(file if "://" in file else str(Path(file).resolve()) for file in files.files), began,
            schema.schema_id, 0, files.columns, files.null,
        )
        if len(set(spec.files)) < len(spec.files):
            raise UsageError("a file is given twice", next_step="give each file once")
        for file in spec.files:
            names = read_columns(spec, file, schema.table) or files.columns or schema.names
            if not is_masked:
                require_columns(file, names, schema)
        import_id, earlier = new_id(), dumps_of(self.store, schema.table) | dumps_of_stale(self.store, schema.table)
        keep = None if self.landing_days is None else timedelta(days=self.landing_days)
        first = ImportChecks(self.landing, self.store, schema, began, keep).run(replaces=replaces)
        spec = spec.with_log_from(first)
        queue_import(self.store, import_id, schema.table, spec, earlier, max_removed=self.max_removed)
        for stale in read_stale_tables(self.store):
            if stale.table == schema.table and stale.dump_id in earlier:
                save_stale_table(self.store, replace(stale, dump_id=import_id))
        return import_id, count_rows(spec)
