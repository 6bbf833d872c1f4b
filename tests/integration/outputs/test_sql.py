"""The SQL output against real servers: rows as at the source, exactly once, in every dialect."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.errors import (
    ConfigError,
    ConsumeError,
    EventRejected,
    IncompatibleSchemaChange,
    OutputUnavailable,
    Unsupported,
)
from dblake.base.core.schema import Column
from dblake.serve.consume.model import ControlKind, Transaction
from dblake.serve.outputs.sql import mysql as mysql_target
from dblake.serve.outputs.sql.output import SqlOutput
from tests.support.certificates import create_authority, create_signed
from tests.support.sql_delivery import SCHEMA, expected_rows, sql_output
from tests.support.sql_places import Place
from tests.support.streams import ID, Stream, batches, random_stream
from tests.support.tls_front import TlsFront


@pytest.fixture(params=["on_postgres", "on_mariadb", pytest.param("on_mysql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Place:
    """Every kind of target."""
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


def _write(output: SqlOutput, transactions: list[Transaction]) -> None:
    output.write(transactions, transactions[-1].checkpoint)


def test_random_history_in_random_writes_ends_equal(place: Place) -> None:
    """Partial updates, key changes, truncates, DDL and a second delivery from an earlier point."""
    stream = random_stream(7, 60)
    chosen = random.Random(1)
    output = place.output()
    assert output.open() is None
    for part in batches(stream.transactions, chosen):
        _write(output, part)
    assert place.table() == expected_rows(stream)
    # Again, from the middle: nothing goes back.
    for part in batches(stream.transactions[20:], chosen):
        _write(output, part)
        assert place.table() == expected_rows(stream)
    output.close()
    assert output.open() == stream.transactions[-1].checkpoint
    output.close()


def test_random_key_changes_without_all_columns_end_equal(place: Place) -> None:
    """Moved rows keep what their create lacks: chains, swaps, a key that is used again, and a second delivery."""
    stream = random_stream(11, 60, keys=12, moves_in_part=True)
    assert sum(event.key_before is not None for t in stream.transactions for event in t.events) > 40
    chosen = random.Random(2)
    output = place.output()
    output.open()
    for begin in (0, 20, 40, 58):
        for part in batches(stream.transactions[begin:], chosen):
            _write(output, part)
            if begin:
                assert place.table() == expected_rows(stream)
        assert place.table() == expected_rows(stream)
    assert not place.rows(f"SELECT key_1 FROM {SCHEMA}._dblake_rows_orders WHERE incomplete <> 0 AND NOT deleted")
    output.close()


def test_key_change_delivered_again_with_later_ones_takes_row_of_its_time(place: Place) -> None:
    """Of a second delivery that goes on after the first one: the row has moved, and its old key is used again."""
    stream = Stream(ID, Column("qty", "integer"), Column("note", "text"))
    stream.insert(id="1", qty="5", note="long")
    stream.insert(id="8", qty="8", note="eight")
    stream.commit()
    stream.move(("1",), unsent=["note"], id="2", qty="6")
    stream.commit()
    stream.insert(id="1", qty="1", note="other")
    stream.commit()
    stream.move(("2",), unsent=["qty", "note"], id="3")
    stream.commit()
    stream.update(id="3", qty="7")
    # A swap of two keys through a free one.
    stream.move(("8",), unsent=["note"], id="9")
    stream.move(("1",), unsent=["note"], id="8")
    stream.move(("9",), unsent=["note"], id="1", qty="9")
    stream.commit()
    for reached in range(1, 6):
        output = place.output()
        output.open()
        _write(output, stream.transactions[:reached])
        # Delivered again from the start, as after the loss of a checkpoint, and on.
        _write(output, stream.transactions)
        assert place.table() == [(1, 9, "eight"), (3, 7, "long"), (8, 1, "other")], reached
        output.close()
        place.run(f"DROP {'SCHEMA' if place.flavour == 'postgres' else 'DATABASE'} {SCHEMA} "
                  f"{'CASCADE' if place.flavour == 'postgres' else ''}")


def test_key_change_of_incomplete_or_absent_row_is_marked(place: Place) -> None:
    stream = Stream(ID, Column("qty", "integer"), Column("note", "text"))
    for key in "123":
        stream.insert(id=key, qty="5", note="long")
    stream.commit()
    first = len(stream.transactions)
    stream.update(id="1", qty="6")
    stream.commit()
    stream.move(("1",), unsent=["note"], id="4")
    stream.move(("2",), unsent=["note"], id="5")
    stream.move(("3",), id="6")
    stream.commit()
    output = place.output()
    output.open()
    for transaction in stream.transactions[first:]:
        _write(output, [transaction])
    assert place.table() == [(4, 6, None), (5, 5, None), (6, 5, "long")]
    marked = f"SELECT key_1, incomplete <> 0 FROM {SCHEMA}._dblake_rows_orders WHERE NOT deleted ORDER BY 1"
    assert place.rows(marked) == [(4, True), (5, True), (6, False)]
    stream.update(op="f", id="4", note="long")
    _write(output, [stream.commit()])
    assert place.rows(marked) == [(4, False), (5, True), (6, False)]
    output.close()


def test_replayed_event_never_revives_deleted_row(place: Place) -> None:
    stream = Stream(ID, Column("qty", "integer"))
    stream.insert(id="1", qty="5")
    created = stream.commit()
    stream.delete("1")
    deleted = stream.commit()
    stream.insert(id="2", qty="6")
    stream.truncate()
    truncated = stream.commit()
    output = place.output()
    output.open()
    _write(output, [created, deleted])
    _write(output, [created])
    assert place.table() == []
    _write(output, [truncated])
    _write(output, [created])
    assert place.table() == []
    output.close()


def test_partial_rows_are_marked_until_filled(place: Place) -> None:
    """An update without its unchanged columns, of a row that the target lacks, is incomplete until a fill."""
    stream = Stream(ID, Column("qty", "integer"), Column("note", "text"))
    stream.insert(id="1", qty="5", note="long")
    stream.commit()
    stream.update(id="1", qty="6")
    update = stream.commit()
    stream.update(op="f", id="1", note="long")
    fill = stream.commit()
    output = place.output()
    output.open()
    _write(output, [update])
    assert place.table() == [(1, 6, None)]
    assert place.rows(f"SELECT key_1, incomplete FROM {SCHEMA}._dblake_rows_orders") == [(1, 1)]
    _write(output, [fill])
    assert place.table() == [(1, 6, "long")]
    assert place.rows(f"SELECT key_1, incomplete FROM {SCHEMA}._dblake_rows_orders") == [(1, 0)]
    output.close()


def test_schema_changes_are_followed_by_name(place: Place) -> None:
    note = Column("note", "character varying(10)")
    stream = Stream(ID, Column("qty", "smallint"), note)
    stream.insert(id="1", qty="5", note="a")
    stream.commit()
    stream.change_schema(ID, Column("qty", "bigint"), Column("added", "text"))
    stream.insert(id="2", qty=str(1 << 40), added="x")
    stream.commit()
    stream.update(id="1", qty="7")
    stream.commit()
    output = place.output()
    output.open()
    _write(output, stream.transactions)
    assert place.table("id, qty, note, added") == [(1, 7, "a", None), (2, 1 << 40, None, "x")]
    stream.change_schema(ID, Column("qty", "date"))
    stream.insert(id="3", qty="2020-01-01")
    with pytest.raises(IncompatibleSchemaChange, match=r"qty of .* changed its type from bigint to date"):
        _write(output, [stream.commit()])
    stream.change_schema(ID, Column("qty", "bigint", False, 2))
    stream.insert(id="3", qty="1")
    with pytest.raises(IncompatibleSchemaChange, match=r"the primary key of public.orders changed"):
        _write(output, [stream.commit()])
    output.close()


def test_redecoded_table_takes_rows_of_older_positions(place: Place) -> None:
    """Wrong events are gone after a redecode: their positions must not keep the rows of the bootstrap away."""
    stream = Stream(ID, Column("qty", "integer"))
    output = place.output()
    output.open()
    for key in "123":
        stream.insert(id=key, qty="1")
    right = stream.commit()
    stream.update(id="1", qty="9")
    stream.delete("2")
    stream.truncate()
    stream.insert(id="5", qty="5")
    stream.commit()
    _write(output, stream.transactions)
    assert place.table() == [(5, 5)]
    first = len(stream.transactions)
    redecoded = stream.control(ControlKind.REDECODED)
    assert redecoded.control is not None
    redecoded.control = replace(redecoded.control, table="public.orders")
    stream.control(ControlKind.BOOTSTRAP_STARTED, tables=["public.orders"])
    rows = [replace(event, op="r", origin="state") for event in right.events]
    bootstrap = replace(right, events=rows)
    _write(output, [*stream.transactions[first:], bootstrap])
    finished = stream.control(ControlKind.BOOTSTRAP_FINISHED)
    _write(output, [finished])
    assert place.table() == [(1, 1), (2, 1), (3, 1)]
    # From here on, positions guard the rows again.
    stream.rows["1",] = {"id": "1", "qty": "1"}
    stream.update(id="1", qty="2")
    _write(output, [stream.commit()])
    _write(output, [bootstrap])
    assert place.table() == [(1, 2), (2, 1), (3, 1)]
    output.close()


def test_bootstrap_again_removes_rows_no_longer_there(place: Place) -> None:
    stream = Stream(ID, Column("qty", "integer"))
    output = place.output()
    output.open()
    stream.control(ControlKind.BOOTSTRAP_STARTED, tables=["public.orders"])
    for key in "123":
        stream.insert(op="r", origin="state", id=key, qty="1")
    stream.commit()
    stream.control(ControlKind.BOOTSTRAP_FINISHED)
    _write(output, stream.transactions)
    assert len(place.table()) == 3
    # Row 2 vanishes unseen, in a gap.
    del stream.rows["2",]
    first = len(stream.transactions)
    stream.control(ControlKind.BOOTSTRAP_STARTED, tables=["public.orders"])
    for key in "13":
        stream.insert(op="r", origin="state", id=key, qty="2")
    stream.commit()
    _write(output, stream.transactions[first:])
    stream.insert(id="4", qty="4")
    stream.commit()
    stream.control(ControlKind.BOOTSTRAP_FINISHED)
    _write(output, stream.transactions[first + 2:])
    assert place.table() == [(1, 2), (3, 2), (4, 4)]
    output.close()


@pytest.mark.parametrize(
    ("column", "value", "where"),
    [
        (Column("v", "text"), "a\0b", "on_postgres"),
        (Column("v", "datetime"), "0000-00-00 00:00:00", "on_postgres"),
        (Column("v", "character varying(3)"), "abcd", "on_mariadb"),
        (Column("v", "double precision"), "NaN", "on_mariadb"),
        (Column("v", "timestamp with time zone"), "infinity", "on_mariadb"),
        (Column("v", "numeric(5,2)"), "NaN", "on_mariadb"),
    ],
    ids=["nul", "zero-date", "too-long", "nan", "infinity", "decimal-nan"],
)
def test_unholdable_values_are_rejected_by_name(
    column: Column, value: str, where: str, request: pytest.FixtureRequest
) -> None:
    """The row in the middle of a write is named, without its value; the write without it succeeds."""
    place: Place = request.getfixturevalue(where)
    stream = Stream(ID, column)
    for key in range(5):
        stream.insert(id=str(key), v=None)
        stream.commit()
    stream.insert(id="7", v=value)
    bad = stream.commit()
    stream.insert(id="8", v=None)
    stream.commit()
    output = place.output()
    output.open()
    with pytest.raises(EventRejected) as caught:
        _write(output, stream.transactions)
    assert (caught.value.table, caught.value.position) == ("public.orders", bad.position)
    assert "column v" in caught.value.what and value not in caught.value.what
    _write(output, [t for t in stream.transactions if t is not bad])
    assert len(place.table()) == 6
    output.close()


@pytest.mark.parametrize("where", ["on_postgres", "on_mariadb"])
def test_odd_names_and_cases_are_kept(where: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(where)
    stream = Stream(
        Column('we"ird `key` %s', "text", False, 1), Column("Größe; --", "integer"), table='public."T a.b""`%"'
    )
    stream.insert(**{'we"ird `key` %s': "a", "Größe; --": "1"})
    stream.insert(**{'we"ird `key` %s': "A ", "Größe; --": "2"})
    stream.update(**{'we"ird `key` %s': "A ", "Größe; --": "3"})
    stream.commit()
    output = place.output()
    output.open()
    _write(output, stream.transactions)
    quoted = '"T a.b""`%%"' if where == "on_postgres" else '`T a.b"``%`'
    assert sorted(place.table("*", quoted)) == [("A ", 3), ("a", 1)]
    output.close()


def test_targets_are_refused_by_name(on_postgres: Place) -> None:
    output = on_postgres.output()
    output.open()
    keyless = Stream(Column("v", "text"))
    keyless.insert(v="a")
    with pytest.raises(Unsupported, match=r"public.orders has no primary key"):
        _write(output, [keyless.commit()])
    stream = Stream(ID)
    stream.insert(id="1")
    _write(output, [stream.commit()])
    other = Stream(ID, table="sales.orders")
    other.insert(id="1")
    with pytest.raises(ConfigError, match=r"sales.orders and public.orders .* have the same target table orders"):
        _write(output, [other.commit()])
    on_postgres.run(f"CREATE TABLE {SCHEMA}.owned (id integer)")
    third = Stream(ID, table="public.owned")
    third.insert(id="1")
    with pytest.raises(ConfigError, match=r"owned has no unique key \(id\)"):
        _write(output, [third.commit()])
    output.close()


def test_existing_table_is_adopted_with_own_columns(place: Place) -> None:
    place.run(f"CREATE {'DATABASE' if place.flavour != 'postgres' else 'SCHEMA'} {SCHEMA}",
              f"CREATE TABLE {SCHEMA}.orders (id integer PRIMARY KEY, own integer DEFAULT 9, qty bigint NOT NULL)")
    stream = Stream(ID, Column("qty", "integer"), Column("note", "text"))
    stream.insert(id="1", qty="5", note="a")
    stream.insert(id="2", qty="5", note="b")
    stream.update(id="1", qty="6")
    stream.delete("2")
    stream.commit()
    output = place.output()
    output.open()
    _write(output, stream.transactions)
    assert place.table() == [(1, 9, 6, "a")]
    output.close()


def test_second_writer_is_fenced_by_checkpoint(place: Place) -> None:
    stream = Stream(ID)
    for key in "123":
        stream.insert(id=key)
        stream.commit()
    first, second = place.output(), place.output()
    first.open()
    second.open()
    _write(first, stream.transactions[:1])
    with pytest.raises(OutputUnavailable, match=r"another process has written"):
        _write(second, stream.transactions[:2])
    second.close()
    assert second.open() == stream.transactions[0].checkpoint
    _write(second, stream.transactions[1:])
    assert place.table() == [(1,), (2,), (3,)]
    first.close()
    second.close()


def _fault(output: SqlOutput) -> ConsumeError:
    """Return the error of opening an output: it has the target's product, host and port, and nothing of the driver."""
    with pytest.raises(ConsumeError, match=r"output copy: (PostgreSQL|MariaDB|MySQL) at [\w.]+:\d+: ") as caught:
        output.open()
    assert not re.search(r"Error|Exception|\(\d", str(caught.value)), caught.value
    assert caught.value.retryable is isinstance(caught.value, OutputUnavailable)
    return caught.value


def test_target_that_cannot_be_used_is_named_by_cause(place: Place) -> None:
    port = place.url.rpartition(":")[2].partition("/")[0]
    cases = [
        (place.url.replace(port, "1"), place.password, "connection refused", True, "reachable at outputs.copy.url"),
        (place.url.replace("127.0.0.1", "no.such.invalid"), "", "unknown host", False, "correct outputs.copy.url"),
        (place.url, "wrong", "wrong password, or no such role", False, "correct outputs.copy.password"),
    ]
    if place.flavour == "postgres":
        cases += [(f"{place.url}x", place.password, "the database cannot be used", False, "create it")]
    for url, password, cause, is_retryable, next_step in cases:
        error = _fault(sql_output(url, password))
        assert (cause in error.what, error.retryable, next_step in error.next_step) == (True, is_retryable, True), error


def test_target_without_tls_or_trust_is_named(place: Place, tmp_path: Path) -> None:
    """The session's MySQL has a certificate of its own, the others do not speak TLS."""
    authority = create_authority(tmp_path, "other")
    error = _fault(place.output(tls="verify", tls_ca=str(authority.certificate)))
    if place.flavour == "mysql":
        assert "certificate cannot be verified" in error.what and "outputs.copy.tls_ca" in error.next_step
    else:
        assert "the server does not speak TLS" in error.what and "outputs.copy.tls to disable" in error.next_step
    assert not error.retryable


def test_untrusted_certificate_of_postgres_is_named(on_postgres: Place, tmp_path: Path) -> None:
    ours, other = create_authority(tmp_path, "ours"), create_authority(tmp_path, "other")
    port = on_postgres.url.rpartition(":")[2].partition("/")[0]
    with TlsFront(int(port), create_signed(tmp_path, "localhost", ours)) as front:
        url = on_postgres.url.replace(f"127.0.0.1:{port}", f"localhost:{front.port}")
        for changed, ca, cause, key in (
            (url, other.certificate, "certificate cannot be verified", "tls_ca"),
            (url.replace("localhost", "127.0.0.1"), ours.certificate, "certificate is for another host", "url"),
            (url, tmp_path / "none", "there is no CA file", "tls_ca"),
        ):
            error = _fault(sql_output(changed, on_postgres.password, tls="verify", tls_ca=str(ca)))
            assert cause in error.what and f"outputs.copy.{key}" in error.next_step
        output = sql_output(url, on_postgres.password, tls="verify", tls_ca=str(ours.certificate))
        assert output.open() is None
        output.close()


def test_missing_privilege_is_named(place: Place) -> None:
    """The error's next step helps: with the privilege, the output opens."""
    is_postgres = place.flavour == "postgres"
    place.run("CREATE ROLE app LOGIN PASSWORD 'x'" if is_postgres else "CREATE USER app IDENTIFIED BY 'x'")
    user = place.url.partition("://")[2].partition("@")[0]
    output = sql_output(place.url.replace(f"{user}@", "app@"), "x")
    database = place.url.rpartition("/")[2]
    try:
        error = _fault(output)
        assert "the role lacks a privilege" in error.what and "grant it CREATE" in error.next_step
        assert not error.retryable
        place.run(f'GRANT CREATE ON DATABASE "{database}" TO app' if is_postgres else "GRANT ALL ON *.* TO app")
        assert output.open() is None
        output.close()
    finally:
        place.run("DROP OWNED BY app" if is_postgres else "DROP USER app")
        if is_postgres:
            place.run("DROP ROLE app")


def test_deleted_keys_expire_with_their_events(place: Place) -> None:
    """Of three deleted keys those stay whose events can be delivered again, and the key that is there."""
    stream = Stream(ID)
    for key in "1234":
        stream.insert(id=key)
    for key in "123":
        stream.commit()
        stream.delete(key)
    last = stream.commit()
    output = place.output()
    output.open()
    _write(output, stream.transactions)
    upto = stream.transactions[-2].events[-1].position
    output.expire("other", last.position)
    assert len(place.table("key_1", "_dblake_rows_orders")) == 4
    output.expire("shop", upto)
    assert place.table("key_1, deleted", "_dblake_rows_orders") == [(3, True), (4, False)]
    output.close()
    # As after --from at the earliest point that is left: it brings no row back.
    again = place.output()
    again.open()
    again.expire("shop", upto)
    again.write(stream.transactions[-1:], last.checkpoint)
    assert place.table() == [(4,)]
    again.close()


def test_lost_connection_is_retried_after_open(on_postgres: Place) -> None:
    stream = Stream(ID)
    stream.insert(id="1")
    stream.commit()
    output = on_postgres.output()
    output.open()
    on_postgres.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dblake output copy'"
    )
    with pytest.raises(OutputUnavailable, match=r"output copy: PostgreSQL at .*: the connection was lost"):
        _write(output, stream.transactions)
    output.close()
    output.open()
    _write(output, stream.transactions)
    assert on_postgres.table() == [(1,)]
    output.close()


@pytest.mark.parametrize("target", ["on_mariadb", pytest.param("on_mysql", marks=pytest.mark.slow)])
def test_locks_of_frozen_process_end_by_themselves(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """A leader that was frozen in a transaction has the checkpoint's lock: the server ends it for the standby."""
    monkeypatch.setattr(mysql_target, "_LOCKED_SECONDS", 2)
    place: Place = request.getfixturevalue(target)
    stream = random_stream(3, 4)
    frozen, standby = place.output(), place.output()
    frozen.open()
    frozen._target.begin()
    frozen._require_own_checkpoint()
    standby.open()
    _write(standby, stream.transactions)
    assert place.table() == expected_rows(stream)
    with pytest.raises(OutputUnavailable):
        frozen._target.commit()
    time.sleep(2.5)
    # Between transactions the connection may be silent for longer.
    _write(standby, stream.transactions)
    standby.close()
    frozen.close()
