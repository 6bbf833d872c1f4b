"""Each message that docs/runbook.md quotes is one of the product, and a test produces it and asserts its text.

A message is quoted in italics. Its entry here names the words that the product, the test and the page share.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
_CODE = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
_SPAN = re.compile(r"`[^`\n]*`")
_QUOTED = re.compile(r"(?<![*\w])\*(?!\*)([^*]+?)\*(?!\*)")

_CONFIG = "unit/config/test_config.py"
_IMPORT = "integration/postgres/test_import_checks.py"
_JOBS_CLI = "unit/jobs/test_cli.py"
_LOCKS = "integration/postgres/test_locks.py"
_MYSQL_LOG = "integration/mysql/test_mysql_log.py"
_REREAD = "unit/operate/verification/test_reread.py"
_MOVES = "integration/mysql/test_continuation.py"
_STORAGE = "unit/base/lake/test_storage.py"
_BY_WORDS = f"{_STORAGE}::test_storage_fault_by_clients_words"
_INSTALLATION = "unit/jobs/test_installation_errors.py"
_POSITION = f"{_IMPORT}::test_position_without_whole_log_is_rejected"
_OLDER = f"{_IMPORT}::test_files_older_than_dump_are_rejected"
_UNLOGGED = f"{_IMPORT}::test_files_older_than_changes_without_events_are_rejected"

_PUBLISH = "unit/serve/iceberg/test_publish.py"

_STANDBY_LOG = "integration/postgres/test_standby_log.py"

PRODUCED = {
    "log_standby: the server at source.host is no standby (any more)": (
        "is no standby", f"{_STANDBY_LOG}::test_log_of_standby_follows_its_promotion"),
    "Slot … is lost: the primary removed rows of the catalog that it still needed": (
        "the primary removed rows of the catalog", f"{_STANDBY_LOG}::test_slot_lost_by_conflict_is_a_gap"),
    "wal_level of the primary was below logical": (
        "wal_level of the primary was below logical",
        "unit/ingest/source/postgres/test_slot_loss.py::test_loss_is_named_by_its_reason"),
    "the Iceberg catalog failed": (
        "the Iceberg catalog failed", f"{_PUBLISH}::test_publisher_names_unreachable_catalog"),
    "was changed by other jobs each time": (
        "was changed by other jobs each time", f"{_PUBLISH}::test_table_that_others_change_is_named"),
    "the Iceberg catalog rejected the request": (
        "the Iceberg catalog rejected the request", f"{_PUBLISH}::test_publisher_names_rejected_credentials"),
    "publishes something else": ("publishes something else", f"{_PUBLISH}::test_table_of_another_owner_is_rejected"),
    "would have the same name in the catalog": (
        "would have the same name", f"{_PUBLISH}::test_publisher_rejects_two_tables_of_one_name"),
    "another run holds the lease": (
        "holds the lease", "faults/test_standby.py::test_second_run_with_local_progress_ends_with_75"),
    "table T is not repaired": ("is not repaired", f"{_REREAD}::test_repair_that_deletes_too_much_is_refused"),
    "of them changed each time": (
        "of them changed each time they were read again",
        f"{_REREAD}::test_wrong_row_never_compared_again_stays_wrong"),
    "N of M tables could not be verified": (
        "tables could not be verified in 10 readings",
        f"{_REREAD}::test_reading_that_skipped_every_row_is_no_verification"),
    "must be a reference": ("must be a reference", f"{_CONFIG}::test_load_faulty_key_names_line_and_key"),
    "the environment variable": ("the environment variable", f"{_CONFIG}::test_unset_secret_reported_only_on_read"),
    "the secret file": ("the secret file", f"{_CONFIG}::test_unreadable_secret_file_rejected"),
    "FILE.json": (
        "expectation", "unit/operate/quality/test_user_suite.py::test_invalid_suite_file_error_names_file_and_fault"),
    "the key has": ("the key has", f"{_CONFIG}::test_mask_rules_and_key_length"),
    "--init waited too long": (
        "waited too long for transactions that began before it",
        "integration/postgres/test_prepared_transactions.py::test_init_behind_prepared_transaction_names_it"),
    "slot … belongs to plugin": (
        "belongs to plugin", "integration/postgres/test_preflight.py::test_physical_slot_is_rejected"),
    "output_plugin_libraries does not list": (
        "output_plugin_libraries does not list",
        "integration/postgres/test_preflight.py::test_server_that_does_not_allow_plugin_is_unmet"),
    "the position is later": ("later than what capture has landed", _POSITION),
    "the position is earlier": ("position is earlier than", _POSITION),
    "a dump has read rows": ("a dump has read rows of it that are newer", _OLDER),
    "a statement altered it": ("a statement altered it or its rows", _UNLOGGED),
    "the log after the position": ("longer ago than half of maintain.landing_days", _POSITION),
    "has its rows already": ("has its rows already", _OLDER),
    "dump … of it is not finished": ("of it is not finished", _OLDER),
    "its rows changed without row events": ("its rows changed without row events", _UNLOGGED),
    "file … does not exist": (
        "does not exist where capture runs", f"{_IMPORT}::test_import_fails_by_name_after_it_was_queued"),
    "it is cut off": ("it is cut off", f"{_IMPORT}::test_import_fails_by_name_after_it_was_queued"),
    "column … of type": ("of type", "unit/ingest/imports/test_values.py::test_value_without_exact_text_is_rejected"),
    "changed its columns": (
        "changed its columns, types or key since the import was queued",
        f"{_IMPORT}::test_import_fails_by_name_after_it_was_queued"),
    "dump … of its table was queued": (
        "of its table was queued beside it", f"{_IMPORT}::test_import_fails_once_another_dump_is_queued"),
    "its rows changed without row events since": (
        "its rows changed without row events since it was queued",
        f"{_IMPORT}::test_import_fails_once_its_table_is_stale"),
    "the log went back": ("the log went back", "faults/test_restored.py::reject"),
    "landing ends at batch": (
        "rows of dumps have landed up to batch",
        "unit/ingest/capture/test_landed_chunks.py::test_accepted_gap_forgets_landed_chunks"),
    "lacks N transactions": ("that landed", f"{_MOVES}::test_server_without_landed_transaction_is_rejected"),
    "the server is read-only": (
        "the server is read-only: watermarks cannot be written there",
        "integration/mysql/test_mysql_preflight.py::test_preflight_read_only_server_rejected"),
    "it is read-only": (
        "it is read-only, and may still receive them", f"{_MOVES}::test_read_only_replica_may_still_receive"),
    "has N transactions among": (
        "among those that landed, which did not land", f"{_MOVES}::test_errant_transactions_are_diverged"),
    "another server has everything": (
        "another server has everything that has landed: no gap",
        "faults/test_moved.py::test_promoted_replicas_continue_without_dump"),
    "landing ends inside": (
        "landing ends inside a transaction, or beside prepared ones",
        f"{_MOVES}::test_landing_inside_transaction_is_gap"),
    "has removed from its log": (
        "has removed from its log", f"{_MOVES}::test_purged_log_that_did_not_land_is_gap"),
    "the landing table's log no longer holds": (
        "no longer holds the commit",
        "unit/ingest/capture/test_landing_log.py::test_landing_without_its_commit_is_rejected"),
    "the bucket of the warehouse does not exist": (
        "bucket of the warehouse does not exist", "integration/s3/test_job_faults.py::test_job_names_missing_bucket"),
    "object storage denied access": (
        "object storage denied access", "integration/s3/test_preflight.py::test_preflight_names_what_store_lacks"),
    "landing is another table": (
        "landing is another table",
        "unit/transform/reconcile/test_landing_identity.py::test_landing_created_in_place_of_another_is_rejected"),
    "another session at the source holds a lock": (
        "another session at the source holds a lock for longer than lock_timeout",
        f"{_LOCKS}::test_lock_beyond_time_out_is_named"),
    "the disk is full": ("the disk is full", f"{_JOBS_CLI}::test_transient_error_exits_75"),
    "the warehouse's storage or a Spark host": (
        "the warehouse's storage or a Spark host is unreachable", f"{_JOBS_CLI}::test_transient_error_exits_75"),
    "Spark ran out of memory": ("Spark ran out of memory", f"{_JOBS_CLI}::test_transient_error_exits_75"),
    "Spark lost an executor": ("Spark lost an executor", f"{_JOBS_CLI}::test_transient_error_exits_75"),
    "Spark's JVM ended before the job": (
        "Spark's JVM ended before the job", f"{_JOBS_CLI}::test_transient_error_exits_75"),
    "at its start": ("at its start", "unit/jobs/test_sql.py::test_jvm_that_does_not_start_is_no_bug"),
    "object storage is throttling": (
        "object storage is throttling or unavailable",
        "integration/s3/test_job_faults.py::test_job_names_fault_of_store"),
    "the credentials of object storage have expired": (
        "the credentials of object storage have expired",
        "integration/s3/test_job_faults.py::test_job_names_fault_of_store"),
    "rejected the credentials": ("rejected the credentials", _BY_WORDS),
    "no credentials": ("no credentials for object storage were found", _BY_WORDS),
    "rejected this machine's clock": ("rejected this machine's clock", _BY_WORDS),
    "has a certificate": ("has a certificate that this machine does not trust", _BY_WORDS),
    "the jars for S3 could not be resolved": (
        "the jars for S3 could not be resolved", f"{_INSTALLATION}::test_jars_for_s3_that_are_unreachable_are_named"),
    "the jars for S3 are missing, and": (
        "the jars for S3 are missing, and", f"{_INSTALLATION}::test_jars_for_s3_in_foreign_environment_are_named"),
    "storage.ca": ("cannot be used", "integration/s3/test_tls.py::test_unusable_ca_file_is_named"),
    "no Python 3.11": ("no Python 3.11 or newer", f"{_INSTALLATION}::test_machine_without_python_is_named"),
    "packages could not be installed": (
        "packages could not be installed", f"{_INSTALLATION}::test_packages_that_are_unreachable_are_named"),
    "the Delta jars could not be resolved": (
        "the Delta jars could not be resolved", f"{_INSTALLATION}::test_delta_jars_that_are_unreachable_are_named"),
    "a change was logged as a statement": (
        "a change was logged as a statement, not as rows",
        f"{_MYSQL_LOG}::test_statement_logged_change_rejects_its_table"),
    "an update was logged with parts": (
        "with parts of JSON values only", f"{_MYSQL_LOG}::test_partial_json_rejected_by_name"),
    "the log does not name its columns": (
        "the log does not name its columns",
        "unit/ingest/source/mysql/test_transactions.py::test_captured_table_without_column_names_rejected"),
    "table …: another session": (
        "another session holds a lock on it", f"{_LOCKS}::test_locked_table_is_dumped_after_others"),
    "… cannot read it": ("cannot read it", f"{_LOCKS}::test_table_that_server_cannot_read_is_named"),
    "port … of …": ("cannot be opened", "unit/operate/status/test_page_server.py::test_port_in_use_is_named"),
    "ZooKeeper at": ("does not answer", "integration/zookeeper/test_progress.py"),
}
"""By the beginning of each message: its words, and the test that produces it."""

UNPRODUCED = frozenset({
    "the jars for S3 are missing in the JVM", "timed out waiting for", "airflow … ended with",
    "the log has UUIDs and addresses",
})
"""Messages without a test; none is added here."""


def quoted_messages() -> list[str]:
    """Return every message of the page, as one line each."""
    text = _CODE.sub("", (HOME / "docs/runbook.md").read_text(encoding="utf-8"))
    text = _SPAN.sub(lambda span: span[0].replace("*", ""), text)
    return [" ".join(message.split()) for message in _QUOTED.findall(text)]


def key_of(message: str) -> str | None:
    """Return the entry of a message: the longest that it begins with."""
    known = [key for key in (*PRODUCED, *UNPRODUCED) if message.lower().startswith(key.lower())]
    return max(known, key=len, default=None)


@cache
def product_texts() -> str:
    """Return all texts in the product's code, those of a statement joined as Python joins them."""
    found = [(HOME / "spark-submit.sh").read_text(encoding="utf-8")]
    for folder in ("lib", "jobs", "pipelines", "trials"):
        for file in sorted((HOME / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "10" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found).lower()


@cache
def source_of(test: str) -> str:
    """Return the code of a test with its parameters, or of a whole file."""
    path, _, name = test.partition("::")
    text = (HOME / "tests" / path).read_text(encoding="utf-8")
    if not name:
        return text
    (function,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : function.end_lineno])


def test_every_message_has_entry_and_every_entry_message() -> None:
    messages = quoted_messages()
    assert [message for message in messages if key_of(message) is None] == []
    assert {*PRODUCED, *UNPRODUCED} - {key_of(message) for message in messages} == set()


@pytest.mark.parametrize("key", PRODUCED)
def test_message_is_of_product_and_a_test_produces_it(key: str) -> None:
    words, test = PRODUCED[key]
    assert words.lower() in product_texts()
    # In a regular expression characters are escaped, and numbers are patterns.
    code = source_of(test).replace("\\", "").replace("d+ ", "10 ").lower()
    assert words.lower() in " ".join(code.replace('"\n', '"').split()), test
    assert "assert" in code or "raises" in code or "reject" in code
