"""The first configuration file of a source: the example with the values of a database's URL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.errors import UsageError
from dblake.config import load_config
from dblake.config.draft import DatabaseUrl, draft_config, example_of, suggest_name

HOME = Path(__file__).parents[3]


def write(folder: Path, url: DatabaseUrl, **options: Any) -> Path:
    """Write the drafted file and return its path."""
    example = (HOME / example_of(url.kind)).read_text(encoding="utf-8")
    file = folder / "shop.yaml"
    file.write_text(draft_config(example, url, **{"name": "shop", "password": "${env:P}", **options}))
    return file


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann@db.example/shop", DatabaseUrl("postgres", "db.example", 5432, "ann", "shop")),
        ("postgres://ann:p%40ss@[::1]:5433/Shop%20EU", DatabaseUrl("postgres", "::1", 5433, "ann", "Shop EU", "p@ss")),
        ("postgresql+psycopg2://a@h/d", DatabaseUrl("postgres", "h", 5432, "a", "d")),
        ("mysql://ann:@db/shop", DatabaseUrl("mysql", "db", 3306, "ann", "shop", "")),
        ("mariadb://ann@db", DatabaseUrl("mariadb", "db", 3306, "ann", "")),
    ],
)
def test_url_of_database_is_split(url: str, expected: DatabaseUrl) -> None:
    assert DatabaseUrl.parse(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("shop", "has no kind of database before ://"),
        ("oracle://ann@db/shop", "has no kind of database before ://"),
        ("postgresql:///shop", "has no host"),
        ("postgresql://db/shop", "has no user"),
        ("postgresql://ann:secret@db", "has no database"),
        ("postgresql://ann:secret@db:port/shop", "cannot be parsed"),
        ("postgresql://ann:secret@db/shop?sslmode=require", "has options after ?"),
    ],
)
def test_url_without_a_part_is_rejected(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        DatabaseUrl.parse(url)
    assert "secret" not in f"{caught.value}{caught.value.__cause__}"


def test_password_of_url_is_in_no_text() -> None:
    assert "secret" not in repr(DatabaseUrl.parse("mysql://ann:secret@db/shop"))


def test_draft_of_postgres_is_valid_and_keeps_comments(tmp_path: Path) -> None:
    url = DatabaseUrl("postgres", "db.example", 6543, "ann", "Shop EU")
    file = write(tmp_path, url)
    config = load_config(file)
    source = config.source
    assert (source.type, source.host, source.port, source.user, source.database, source.tables, source.slot) == (
        "postgres", "db.example", 6543, "ann", "Shop EU", ("public.*",), "dblake_shop"
    )
    assert str(config.warehouse) == str(tmp_path / "warehouse")
    example = (HOME / "conf" / "postgres.yaml").read_text(encoding="utf-8").splitlines()
    lines = file.read_text().splitlines()
    comments = [[line.partition("#")[2] for line in each] for each in (example, lines)]
    assert comments[0] == comments[1]
    changed = {new.split(":")[0].strip() for old, new in zip(example, lines, strict=True) if old != new}
    assert changed == {"warehouse", "progress", "host", "port", "database", "user", "password", "tables"}


@pytest.mark.parametrize(
    ("database", "tables"),
    [("shop", ("shop.*",)), ("", ("*.*",))],
)
def test_draft_of_mysql_captures_its_database(tmp_path: Path, database: str, tables: tuple[str, ...]) -> None:
    source = load_config(write(tmp_path, DatabaseUrl("mariadb", "db", 3307, "ann", database), tls="require")).source
    assert (source.type, source.port, source.tables, source.tls) == ("mariadb", 3307, tables, "require")


@pytest.mark.parametrize("value", ["a: b", "#1", "yes", "null", "o'clock", 'quo"te', "1e3", "-", "über"])
def test_draft_quotes_odd_names(tmp_path: Path, value: str) -> None:
    source = load_config(write(tmp_path, DatabaseUrl("postgres", "db", 5432, value, value))).source
    assert (source.user, source.database) == (value, value)


@pytest.mark.parametrize(
    ("database", "name"), [("Shop.EU", "shop-eu"), ("shop_1", "shop_1"), ("", "source"), ("日本", "source")]
)
def test_name_of_source_is_made_from_database(database: str, name: str) -> None:
    assert suggest_name(database) == name


def test_values_of_other_sections_replace_the_example(tmp_path: Path) -> None:
    url = DatabaseUrl.parse("postgresql://dblake@h/shop")
    others = {"state": {"interval_seconds": 1.0}, "run": {"check_seconds": None}}
    file = write(tmp_path, url, others=others)
    config = load_config(file)
    assert (config.state.interval_seconds, config.run.check_seconds) == (1.0, None)
    assert (config.reconcile.trigger_seconds, config.run.maintain_seconds) == (1.0, 3600.0)
    assert re.search(r"^  check_seconds: null +# default 3600: ", file.read_text(), re.MULTILINE)
