"""Names of tables and the folders that hold their data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblake.base.core.names import TableFilter, folder, qualified, split_qualified
from dblake.base.lake.layout import Paths


@pytest.mark.parametrize(
    ("schema", "table", "expected"),
    [
        ("public", "orders", "public.orders"),
        ("public", "o$1_x", "public.o$1_x"),
        ("public", "Orders", 'public."Orders"'),
        ("my schema", "a.b", '"my schema"."a.b"'),
        ("public", 'say "hi"', 'public."say ""hi"""'),
        ("public", "1st", 'public."1st"'),
        ("public", "größe", 'public."größe"'),
    ],
)
def test_qualified_quotes_parts_and_splits_back(schema: str, table: str, expected: str) -> None:
    assert qualified(schema, table) == expected
    assert split_qualified(expected) == (schema, table)


@pytest.mark.parametrize("name", ["", "orders", "a.b.c", 'a."b', "a.", ".b", '"a"b.c'])
def test_split_qualified_malformed_name_raises(name: str) -> None:
    with pytest.raises(ValueError, match=r"not a schema\.table name"):
        split_qualified(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("a-b_c9", "a-b_c9"),
        ("Orders", "~4frders"),
        ("_delta_log", "~5fdelta_log"),
        ("-x", "~2dx"),
        ("..", "~2e~2e"),
        ("a/b", "a~2fb"),
        ("a%2fb", "a~252fb"),
        ("~41", "~7e41"),
        ("größe", "gr~c3~b6~c3~9fe"),
        ("x" * 120, "x" * 120),
        ("x" * 121, "x" * 100 + "~~" + "79072a47bfaa54e6"),
    ],
)
def test_folder_escapes_unsafe_bytes(name: str, expected: str) -> None:
    assert folder(name) == expected


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_folder_is_unique_and_never_special(one: str, other: str) -> None:
    folders = {folder(one).lower(), folder(other).lower()}
    assert len(folders) == len({one, other})
    assert all(f and f[0] not in "_.-" and "/" not in f and len(f) <= 120 for f in folders)


@pytest.mark.parametrize(
    ("patterns", "included", "excluded"),
    [
        (["public.*"], [("public", "orders"), ("public", "A.b")], [("Public", "orders"), ("other", "orders")]),
        (["*.*", "!*.audit_*"], [("a", "b")], [("a", "audit_1")]),
        (["!public.x", "public.*"], [("public", "y")], [("public", "x")]),
        (["public.order[sx]"], [("public", "orders")], [("public", "order")]),
        (['public."a*b"'], [("public", "a*b")], [("public", "axb")]),
        (['"my.schema".*'], [("my.schema", "t")], [("my", "schema")]),
        (['public."say ""hi"""'], [("public", 'say "hi"')], [("public", "say hi")]),
    ],
)
def test_table_filter_matches_patterns(
    patterns: list[str], included: list[tuple[str, str]], excluded: list[tuple[str, str]]
) -> None:
    is_captured = TableFilter(patterns)
    assert [name for name in included if not is_captured(*name)] == []
    assert [name for name in excluded if is_captured(*name)] == []


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["app.*"], True),
        (["*.*"], True),
        (["a*.*", "other.x"], True),
        (["app.**"], True),
        (["app.a*", "app.b*"], False),
        (["app.*", "!app.cache"], False),
        (["app.*", "!*.cache"], False),
        (["app.*", "!other.cache"], True),
        (['app."*"'], False),
        (["App.*"], False),
    ],
)
def test_filter_takes_whole_schema_only_without_exclusion(patterns: list[str], expected: bool) -> None:
    assert TableFilter(patterns).takes_all_of("app") is expected



@pytest.mark.parametrize("pattern", ["", "*", "public", "a.b.c", 'a."b', "!", "public."])
def test_table_filter_malformed_pattern_raises(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"not a schema\.table pattern"):
        TableFilter([pattern])


def test_paths_lie_under_warehouse_and_source() -> None:
    paths = Paths("s3://lake/", "shop")
    assert paths.landing == "s3://lake/shop/landing"
    assert paths.events == "s3://lake/shop/events"
    assert paths.state("public", "Orders") == "s3://lake/shop/state/public/~4frders"
