"""Inputs from public bug reports of other capture products, on MariaDB and MySQL, in one run of capture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dblake.ingest.capture.table_life import LifeState
from tests.support.lake import CaptureLake
from tests.support.mysql import emptied
from tests.support.mysql_backend import MysqlBackend
from tests.support.reported import Captured, Reported, capture_all, ordered

pytestmark = pytest.mark.slow

INPUTS = (
    Reported(
        "folded_key", "apache/flink-cdc#2965",
        ("CREATE TABLE public.folded_key (k varchar(20) PRIMARY KEY, v int) COLLATE utf8mb4_general_ci",
         "INSERT INTO public.folded_key VALUES"
         " ('0000', 1), ('9', 1), ('AAAA', 1), ('bbbb', 1), ('CCCC', 1), ('zzzz', 1), ('É', 1), ('_', 1)"),
        # By bytes, lower-case letters and _ come after all upper-case letters.
        window=("UPDATE public.folded_key SET v = 2", "DELETE FROM public.folded_key WHERE k = 'BBBB'",
                "INSERT INTO public.folded_key VALUES ('aaa', 3), ('ZZZZZ', 3)"),
        later=("DELETE FROM public.folded_key WHERE k = 'E'",),
        columns=("k", "v"),
        rows=(("0000", "2"), ("9", "2"), ("AAAA", "2"), ("CCCC", "2"), ("ZZZZZ", "3"), ("_", "2"), ("aaa", "3"),
              ("zzzz", "2")),
    ),
    Reported(
        "recased_key", "block/spirit#29",
        ("CREATE TABLE public.recased_key (n int, k varchar(20), v varchar(9), PRIMARY KEY (n, k))"
         " COLLATE utf8mb4_general_ci",
         "INSERT INTO public.recased_key VALUES (1, 'a', 'x'), (1, 'b', 'x'), (2, 'a', 'x'), (2, 'b', 'x')"),
        # The same keys for the server, with another text.
        window=("UPDATE public.recased_key SET k = 'A' WHERE n = 1 AND k = 'a'",
                "REPLACE INTO public.recased_key VALUES (1, 'B', 'y')"),
        later=("REPLACE INTO public.recased_key VALUES (2, 'A', 'z')",
               "INSERT INTO public.recased_key VALUES (2, 'B', 'q') ON DUPLICATE KEY UPDATE v = 'w'"),
        columns=("n", "k", "v"), rows=(("1", "A", "x"), ("1", "B", "y"), ("2", "A", "z"), ("2", "b", "w")),
    ),
    Reported(
        "binary_key", "apache/flink-cdc#1816",
        ("CREATE TABLE public.binary_key (k binary(2) PRIMARY KEY, v int)",
         "INSERT INTO public.binary_key VALUES (x'0000', 1), (x'7fff', 1), (x'8000', 1), (x'ff00', 1), (x'ffff', 1)"),
        window=("UPDATE public.binary_key SET v = 2", "DELETE FROM public.binary_key WHERE k = x'8000'",
                "INSERT INTO public.binary_key VALUES (x'0020', 3), (x'fffe', 3)"),
        later=("UPDATE public.binary_key SET k = x'0a5c' WHERE k = x'ff00'",),
        columns=("k", "v"),
        rows=((r"\x0000", "2"), (r"\x0020", "3"), (r"\x0a5c", "2"), (r"\x7fff", "2"), (r"\xfffe", "3"),
              (r"\xffff", "2")),
    ),
    Reported(
        "unsigned_key", "risingwavelabs/risingwave#25947",
        ("CREATE TABLE public.unsigned_key (id bigint unsigned PRIMARY KEY, v int)",
         "INSERT INTO public.unsigned_key VALUES"
         " (9223372036854775807, 1), (9223372036854775808, 1), (9223372036854775809, 1), (18446744073709551615, 1)"),
        # Below all keys that the dump has read; as a signed number it is above them.
        window=("INSERT INTO public.unsigned_key VALUES (5, 3)",
                "UPDATE public.unsigned_key SET v = 2 WHERE id >= 9223372036854775808"),
        later=("UPDATE public.unsigned_key SET id = 18446744073709551614 WHERE id = 9223372036854775807",),
        columns=("id", "v"),
        rows=(("18446744073709551614", "1"), ("18446744073709551615", "2"), ("5", "3"), ("9223372036854775808", "2"),
              ("9223372036854775809", "2")),
    ),
    Reported(
        "moved_key", "block/spirit#417",
        ("CREATE TABLE public.moved_key (org int, sender int, id int, v varchar(9), PRIMARY KEY (org, sender, id))",
         "INSERT INTO public.moved_key VALUES (1, 1, 1, 'a'), (1, 1, 2, 'b'), (1, 2, 3, 'c'), (2, 1, 4, 'd')"),
        # Out of the chunk that was read, into it, and beyond the table's last key.
        window=("UPDATE public.moved_key SET sender = 9 WHERE id = 1",
                "UPDATE public.moved_key SET sender = 0 WHERE id = 3"),
        later=("UPDATE public.moved_key SET org = 3, v = 'w' WHERE id IN (2, 4)",),
        columns=("org", "sender", "id", "v"),
        rows=(("1", "9", "1", "a"), ("1", "0", "3", "c"), ("3", "1", "2", "w"), ("3", "1", "4", "w")),
    ),
    Reported(
        "swapped_unique", "block/spirit#847",
        ("CREATE TABLE public.swapped_unique (id int PRIMARY KEY, active int UNIQUE, v varchar(9))",
         "INSERT INTO public.swapped_unique VALUES (1, 1, 'a'), (2, NULL, 'b'), (3, NULL, 'c')"),
        window=("START TRANSACTION", "UPDATE public.swapped_unique SET active = NULL WHERE id = 1",
                "UPDATE public.swapped_unique SET active = 1 WHERE id = 2", "COMMIT"),
        # REPLACE deletes the row that has the unique value, under another primary key.
        later=("REPLACE INTO public.swapped_unique VALUES (3, 1, 'r')",),
        columns=("id", "active", "v"), rows=(("1", None, "a"), ("3", "1", "r")),
    ),
    Reported(
        "truncated", "MaterializeInc/materialize#25051",
        ("CREATE TABLE public.truncated (id int PRIMARY KEY, v int)",
         "INSERT INTO public.truncated VALUES (1, 1), (2, 2), (3, 3)"),
        window=("TRUNCATE public.truncated", "INSERT INTO public.truncated VALUES (2, 20), (4, 40)"),
        later=("TRUNCATE public.truncated", "INSERT INTO public.truncated VALUES (4, 41)"),
        columns=("id", "v"), rows=(("4", "41"),),
    ),
    Reported(
        "relabelled_enum", "PeerDB-io/peerdb#3183",
        ("CREATE TABLE public.relabelled_enum (id int PRIMARY KEY, via enum('sms', 'mail'))",
         "INSERT INTO public.relabelled_enum VALUES (1, 'sms'), (2, 'mail'), (3, NULL)"),
        # The number of 'mail' changes between two rows of one run.
        later=("INSERT INTO public.relabelled_enum VALUES (4, 'mail')",
               "ALTER TABLE public.relabelled_enum MODIFY via enum('sms', 'chat', 'mail')",
               "INSERT INTO public.relabelled_enum VALUES (5, 'mail'), (6, 'chat')",
               "UPDATE public.relabelled_enum SET via = 'chat' WHERE id = 2"),
        columns=("id", "via"),
        rows=(("1", "sms"), ("2", "chat"), ("3", None), ("4", "mail"), ("5", "mail"), ("6", "chat")),
    ),
    Reported(
        "small_numbers", "airbytehq/airbyte#76180",
        ("CREATE TABLE public.small_numbers (id int PRIMARY KEY, n tinyint(1), u tinyint(1) unsigned)",
         "INSERT INTO public.small_numbers VALUES (1, -128, 0), (2, 5, 255), (3, 1, 1)"),
        window=("UPDATE public.small_numbers SET n = 127 WHERE id = 2",),
        later=("INSERT INTO public.small_numbers VALUES (4, -1, 2), (5, NULL, NULL)",),
        columns=("id", "n", "u"),
        rows=(("1", "-128", "0"), ("2", "127", "255"), ("3", "1", "1"), ("4", "-1", "2"), ("5", None, None)),
    ),
    Reported(
        "converted_charset", "airbytehq/airbyte#3932",
        ("CREATE TABLE public.converted_charset (id int PRIMARY KEY, a varchar(20) CHARACTER SET cp1251,"
         " b varchar(20) CHARACTER SET utf16)",
         "INSERT INTO public.converted_charset VALUES (1, 'тест', '😀é'), (2, 'да', 'x')"),
        later=("INSERT INTO public.converted_charset VALUES (3, 'три', '日本')",
               "ALTER TABLE public.converted_charset CONVERT TO CHARACTER SET utf8mb4",
               "INSERT INTO public.converted_charset VALUES (4, '😀', 'четыре')",
               "UPDATE public.converted_charset SET a = 'нет' WHERE id = 2"),
        columns=("id", "a", "b"),
        rows=(("1", "тест", "😀é"), ("2", "нет", "x"), ("3", "три", "日本"), ("4", "😀", "четыре")),
    ),
    Reported(
        "json_text", "airbytehq/airbyte#10032",
        ("CREATE TABLE public.json_text (id int PRIMARY KEY, j json)",
         """INSERT INTO public.json_text VALUES (1, '{"näme": "日本"}'), (2, '["é"]'), (3, NULL)"""),
        window=("""UPDATE public.json_text SET j = '{"ключ": "😀"}' WHERE id = 2""",),
        later=("""INSERT INTO public.json_text VALUES (4, '"ü"')""",),
        columns=("id", "j"),
        rows=(("1", '{"näme": "日本"}'), ("2", '{"ключ": "😀"}'), ("3", None), ("4", '"ü"')),
    ),
    Reported(
        "added_unsigned", "risingwavelabs/risingwave#24855",
        ("CREATE TABLE public.added_unsigned (id int PRIMARY KEY, v int)",
         "INSERT INTO public.added_unsigned VALUES (1, 1), (2, 2)"),
        later=("UPDATE public.added_unsigned SET v = 20 WHERE id = 2",
               "ALTER TABLE public.added_unsigned ADD n bigint unsigned, ADD m mediumint unsigned",
               "INSERT INTO public.added_unsigned VALUES (3, 3, 18446744073709551615, 16777215)",
               "UPDATE public.added_unsigned SET n = 9223372036854775808 WHERE id = 1"),
        columns=("id", "v", "n", "m"),
        rows=(("1", "1", "9223372036854775808", None), ("2", "20", None, None),
              ("3", "3", "18446744073709551615", "16777215")),
    ),
    Reported(
        "relaxed_column", "MaterializeInc/materialize#25451",
        ("CREATE TABLE public.relaxed_column (id int PRIMARY KEY, a int NOT NULL, b varchar(9))",
         "INSERT INTO public.relaxed_column VALUES (1, 1, 'x'), (2, 2, 'y')"),
        later=("ALTER TABLE public.relaxed_column MODIFY a int NULL",
               "UPDATE public.relaxed_column SET a = NULL WHERE id = 1",
               "INSERT INTO public.relaxed_column VALUES (3, NULL, 'z')",
               "ALTER TABLE public.relaxed_column DROP COLUMN b", "INSERT INTO public.relaxed_column VALUES (4, 4)"),
        columns=("id", "a"), rows=(("1", None), ("2", "2"), ("3", None), ("4", "4")),
    ),
)


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def backend(request: pytest.FixtureRequest) -> Iterator[MysqlBackend]:
    with emptied(request.getfixturevalue(request.param)) as server:
        server.run("CREATE DATABASE public")
        yield MysqlBackend(server)


@pytest.fixture(scope="module")
def captured(backend: MysqlBackend, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    lake = CaptureLake(tmp_path_factory.mktemp("reported"))
    return capture_all(lake, INPUTS, backend.server.run, lambda: backend.source("public.*"))


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: f"{given.name}-{given.source}")
def test_reported_input_equals_source(backend: MysqlBackend, captured: Captured, given: Reported) -> None:
    """State has the source's own rows, which are also typed out."""
    there = ordered(tuple(map(_text, (row[name] for name in given.columns))) for row in backend.rows(given.table))
    assert there == ordered(given.rows)
    assert captured.rows(given) == there
    assert captured.lives[given.table].state is LifeState.FOLLOWED


def _text(value: str | bytes | None) -> str | None:
    return rf"\x{value.hex()}" if isinstance(value, bytes) else value
