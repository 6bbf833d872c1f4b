"""Each prerequisite of a MariaDB or MySQL source: broken, reported by name, corrected by its statement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from dblake.base.core.errors import PrerequisitesNotMet, SourceError
from dblake.base.core.names import TableFilter
from dblake.base.core.source import Check, ChunkRequest, InitPlan
from dblake.ingest.source.mysql import catalog
from dblake.ingest.source.mysql.connection import connect
from dblake.ingest.source.mysql.foreign_keys import read_cascades
from dblake.ingest.source.mysql.grants import Grants
from dblake.ingest.source.mysql.init import plan_init, run_init
from dblake.ingest.source.mysql.preflight import preflight
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from tests.support.mysql import MysqlServer

HOME = Path(__file__).parents[3]
ROLE = "'cap'@'%'"

SHOP = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE shop.`we``ird; drop` (id int PRIMARY KEY, `or``der` text)",
    "INSERT INTO shop.orders VALUES (1, 'a')",
)


def settings_for(server: MysqlServer) -> MysqlSettings:
    return MysqlSettings(
        name="shop", flavour=server.flavour, host="127.0.0.1", port=server.port, user="cap",
        password="it's a \"se\\cret\"", patterns=("shop.*", "!shop.left_out"), tls="disable",
    )


def init(server: MysqlServer, settings: MysqlSettings) -> InitPlan:
    return run_init(settings, server.user, server.password)


@pytest.fixture
def settings(mysql_server: MysqlServer) -> Iterator[MysqlSettings]:
    """Yield the settings of a shop that ``--init`` has prepared."""
    mysql_server.run(*SHOP)
    settings = settings_for(mysql_server)
    init(mysql_server, settings)
    before = dict(mysql_server.rows("SHOW GLOBAL VARIABLES"))
    yield settings
    for name, value in mysql_server.rows("SHOW GLOBAL VARIABLES"):
        if name.startswith(("binlog_", "read_only", "super_read_only")) and before[name] != value:
            old = before[name]
            mysql_server.run(f"SET GLOBAL {name} = " + (old if old.isdigit() else f"'{old}'"))


def found(settings: MysqlSettings, name: str) -> Check:
    (check,) = [c for c in preflight(settings) if c.check == name]
    return check


def failing(settings: MysqlSettings) -> list[str]:
    return [c.check for c in preflight(settings) if not c.ok]


def run_script(server: MysqlServer, script: str) -> None:
    server.run(*(statement.removesuffix(";") for statement in script.split(";\n")))


@pytest.mark.parity
def test_preflight_passes_after_init(settings: MysqlSettings) -> None:
    assert failing(settings) == []


CREATE_WATERMARKS = (
    "CREATE TABLE IF NOT EXISTS `dblake`.`watermark` (id int PRIMARY KEY, value varchar(36)) ENGINE=InnoDB;"
)
#: check, what makes it fail, a part of the detail, the fix ({set} is the flavour's way to change a setting).
BROKEN = [
    ("binlog_format", ["SET GLOBAL binlog_format = 'MIXED'"], "binlog_format is MIXED: ",
     "{set} binlog_format = 'ROW'{for_good}"),
    ("binlog_row_metadata", ["SET GLOBAL binlog_row_metadata = 'MINIMAL'"], "binlog_row_metadata is MINIMAL: ",
     "{set} binlog_row_metadata = 'FULL'{for_good}"),
    ("role", [f"REVOKE REPLICATION SLAVE ON *.* FROM {ROLE}"], "user cap lacks REPLICATION SLAVE or REPLICATION CLIENT",
     f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {ROLE}"),
    ("role", [f"REVOKE REPLICATION CLIENT ON *.* FROM {ROLE}"], "user cap lacks REPLICATION SLAVE or",
     f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {ROLE}"),
    ("watermark_table", ["DROP DATABASE dblake"], "there is no table dblake.watermark",
     "CREATE DATABASE IF NOT EXISTS `dblake`;\n" + CREATE_WATERMARKS),
    ("watermark_table", ["ALTER TABLE dblake.watermark DROP PRIMARY KEY"], "it is not (id int primary key",
     "RENAME TABLE `dblake`.`watermark` TO `dblake`.`watermark_before`;\n" + CREATE_WATERMARKS),
    ("watermark_table", ["ALTER TABLE dblake.watermark ENGINE=MyISAM"], "of engine InnoDB",
     "RENAME TABLE `dblake`.`watermark` TO `dblake`.`watermark_before`;\n" + CREATE_WATERMARKS),
    ("watermark_rows", ["DELETE FROM dblake.watermark WHERE id IN (0, 7)"], "missing: 0, 7",
     "INSERT IGNORE INTO `dblake`.`watermark` (id, value) VALUES (0, ''), (1, ''), (2, ''), (3, ''), (4, ''), (5, ''),"
     " (6, ''), (7, ''), (8, '')"),
    ("watermark_privileges", [f"REVOKE UPDATE ON dblake.watermark FROM {ROLE}"], "may not read and update",
     f"GRANT SELECT, UPDATE ON `dblake`.`watermark` TO {ROLE}"),
    ("table_privileges",
     [f"{verb} ON shop.{table} {who} {ROLE}" for table in ("orders", "`we``ird; drop`")
      for verb, who in (("GRANT INSERT", "TO"), ("REVOKE SELECT", "FROM"))],
     'may not read shop."we`ird; drop", shop.orders',
     f"GRANT SELECT ON `shop`.`we``ird; drop` TO {ROLE};\nGRANT SELECT ON `shop`.`orders` TO {ROLE};"),
    ("column_names", ["ALTER TABLE shop.orders ADD _lsn int"], "shop.orders._lsn",
     "ALTER TABLE `shop`.`orders` RENAME COLUMN `_lsn` TO `lsn_2`;"),
]
BROKEN_MYSQL = [
    ("binlog_order_commits", ["SET GLOBAL binlog_order_commits = OFF"], "commits show in another order than logged",
     "SET PERSIST binlog_order_commits = ON"),
    ("binlog_row_value_options", ["SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'"], "it is PARTIAL_JSON: ",
     "SET PERSIST binlog_row_value_options = ''"),
]


def require_detected_and_fixed(
    server: MysqlServer, settings: MysqlSettings, check: str, provoke: list[str], detail: str, fix: str
) -> None:
    server.run(*provoke)

    broken = found(settings, check)

    assert not broken.ok
    assert detail in broken.detail
    assert broken.fix == fix
    run_script(server, broken.fix)
    assert found(settings, check) == Check(check, True)


@pytest.mark.parametrize(("check", "provoke", "detail", "fix"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_preflight_problem_found_and_fixed_by_statement(
    settings: MysqlSettings, mysql_server: MysqlServer, check: str, provoke: list[str], detail: str, fix: str
) -> None:
    words = {
        "mysql": ("SET PERSIST", ""),
        "mariadb": ("SET GLOBAL", "; -- and in the server's configuration, for after a restart"),
    }[mysql_server.flavour]
    fix = fix.replace("{set}", words[0]).replace("{for_good}", words[1])
    require_detected_and_fixed(mysql_server, settings, check, provoke, detail, fix)


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
@pytest.mark.parametrize(("check", "provoke", "detail", "fix"), BROKEN_MYSQL, ids=["order_commits", "partial_json"])
def test_preflight_mysql_problem_found_and_fixed(
    settings: MysqlSettings, mysql_server: MysqlServer, check: str, provoke: list[str], detail: str, fix: str
) -> None:
    require_detected_and_fixed(mysql_server, settings, check, provoke, detail, fix)


def test_preflight_read_only_server_rejected(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    mysql_server.run("SET GLOBAL read_only = ON")
    detail = "the server is read-only: watermarks cannot be written there"
    assert found(settings, "read_only") == Check("read_only", False, detail, "set source.host to the primary")
    with pytest.raises(SourceError, match=r"read-only: .* Next: wait if a failover is under way") as rejected:
        MysqlSource(settings).open_reader().mark(1, "x")
    assert rejected.value.retryable
    with pytest.raises(SourceError, match=r"read-only: .* Next: wait if a failover is under way") as rejected:
        MysqlSource(settings).require()
    assert rejected.value.retryable


def test_preflight_reports_all_problems_in_fix_order(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    mysql_server.run(
        "DROP DATABASE dblake", f"REVOKE REPLICATION SLAVE ON *.* FROM {ROLE}",
        "SET GLOBAL binlog_row_metadata = 'MINIMAL'", f"REVOKE SELECT, UPDATE ON dblake.watermark FROM {ROLE}",
    )

    problems = [c for c in preflight(settings) if not c.ok]

    assert [c.check for c in problems] == [
        "binlog_row_metadata", "role", "watermark_table", "watermark_rows", "watermark_privileges",
    ]
    for problem in problems:
        run_script(mysql_server, problem.fix)
    assert failing(settings) == []
    with pytest.raises(PrerequisitesNotMet, match="tables: no table matches"):
        MysqlSource(replace(settings, patterns=("none.*",))).require()


#: Met, with something to know: check, what makes it known, detail.
KNOWN = [
    ("role", [f"GRANT CREATE USER ON *.* TO {ROLE}"], "user cap is an administrator; capture needs far less"),
    ("binlog_row_image", ["SET GLOBAL binlog_row_image = 'NOBLOB'"],
     "binlog_row_image is NOBLOB: columns that a change does not touch are not logged; they are filled in from dumps"
     " and earlier changes"),
    ("engines", ["ALTER TABLE shop.orders ENGINE=MyISAM"],
     "changed without transactions, so that a crash of the server may part rows and log: shop.orders (MyISAM)"),
    ("primary_key",
     ["CREATE TABLE shop.log (at datetime)", "CREATE TABLE shop.f (k float PRIMARY KEY)",
      "CREATE TABLE shop.p (k text, PRIMARY KEY (k(5)))"],
     "followed from the log but never dumped, as they have no primary key: shop.log; never dumped, as their keys have"
     " FLOAT columns, whose values no query can match: shop.f; sorted for each chunk, as their keys consist of column"
     " prefixes: shop.p"),
    ("sync_binlog", ["SET GLOBAL sync_binlog = 0"],
     "sync_binlog is 0: a crash of the server's machine may lose log that has landed, which is a gap then"),
    ("innodb_flush_log_at_trx_commit", ["SET GLOBAL innodb_flush_log_at_trx_commit = 2"],
     "innodb_flush_log_at_trx_commit is 2: a crash of the server may lose rows whose log remains, so that state has"
     " them until the next dump"),
    ("binlog_retention", ["SET GLOBAL binlog_expire_logs_seconds = 43200"],
     "the server expires log after 12 hours: a capture stopped for longer finds a gap"),
]


@pytest.mark.parametrize(("check", "provoke", "detail"), KNOWN, ids=lambda v: v if isinstance(v, str) else "")
def test_preflight_notes_do_not_fail(
    settings: MysqlSettings, mysql_server: MysqlServer, check: str, provoke: list[str], detail: str
) -> None:
    mysql_server.run(*provoke)
    init(mysql_server, settings)
    known = found(settings, check)
    assert (known.ok, known.detail) == (True, detail)
    assert failing(settings) == []


def test_preflight_names_unlogged_foreign_keys(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    mysql_server.run(
        "CREATE TABLE shop.lines (id int PRIMARY KEY, o int, CONSTRAINT of_order FOREIGN KEY (o) REFERENCES"
        " shop.orders (id) ON DELETE CASCADE)",
    )
    init(mysql_server, settings)
    silent = "rows that these foreign keys delete or change are not in the log: shop.lines (of_order)"
    # MySQL carries them out where it writes the log since 9.6.
    assert found(settings, "foreign_keys").detail == {"mariadb": silent, "mysql": ""}[mysql_server.flavour]
    assert found(settings, "foreign_keys").ok


@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
def test_cascades_of_dropped_table_are_none(mysql_server: MysqlServer) -> None:
    """A table is dropped after the catalog has listed it: the catalog check of a running capture continues."""
    mysql_server.run("CREATE DATABASE IF NOT EXISTS shop", "CREATE TABLE shop.gone (id int PRIMARY KEY)")
    with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        listed = catalog.captured_tables(cursor, TableFilter(["shop.gone"]), "dblake")
        mysql_server.run("DROP TABLE shop.gone")
        assert [table.table_name for table in listed] == ["gone"]
        assert read_cascades(cursor, listed) == {}


@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
def test_preflight_names_unsupported_tables(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    mysql_server.run(
        "CREATE TABLE shop.small (id int PRIMARY KEY, note text COMPRESSED)",
        "CREATE TABLE shop.old (id int PRIMARY KEY) WITH SYSTEM VERSIONING",
    )
    init(mysql_server, settings)
    refused = found(settings, "unsupported")
    assert not refused.ok
    assert "shop.small: column note: the column is COMPRESSED" in refused.detail
    assert "shop.old: it is system-versioned" in refused.detail
    assert failing(replace(settings, patterns=("shop.*", "!shop.small", "!shop.old"))) == []


def test_preflight_connect_failure_names_cause(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    def checked(**other: object) -> list[tuple[str, bool, str]]:
        return [(c.check, c.ok, c.detail) for c in preflight(replace(settings, **other))]  # type: ignore[arg-type]

    assert checked(password="wrong") == [
        ("connect", False, "source shop: wrong password, or there is no such user for this host")
    ]
    assert checked(port=1) == [
        ("connect", False, f"source shop: {settings.product} at {settings.host}:1: connection refused: "
                           "no server listens there")
    ]
    other = {"mysql": "mariadb", "mariadb": "mysql"}[mysql_server.flavour]
    ((_, _, detail),) = checked(flavour=other)
    assert detail.endswith(f", but source.type is {other}")
    own = int(mysql_server.rows("SELECT @@server_id")[0][0])
    assert found(replace(settings, server_id=own), "server_id").detail == f"source.server_id is the server's own, {own}"


#: Each privilege that ``--init`` grants, and what does not work without it.
NEEDED: list[tuple[str, Callable[[MysqlSource], object]]] = [
    ("REPLICATION SLAVE ON *.*",
     lambda source: source.open_log(None, 1).read(max_bytes=1000, max_rows=10, seconds=2.0)),
    ("REPLICATION CLIENT ON *.*", lambda source: source.open_log(None, 1)),
    ("SELECT ON shop.orders",
     lambda source: source.open_reader().read(ChunkRequest("shop.orders", 1, "", 10), lambda *_: None)),
    ("SELECT ON dblake.watermark",
     lambda source: source.open_reader().read(ChunkRequest("shop.orders", 1, "", 10), lambda *_: None)),
    ("UPDATE ON dblake.watermark", lambda source: source.open_reader().mark(1, "x")),
]


def test_init_names_anonymous_users(mysql_server: MysqlServer, settings: MysqlSettings) -> None:
    """The server takes a login from their host for theirs, so that a right password counts as wrong."""
    mysql_server.run("CREATE USER ''@'127.0.0.1' IDENTIFIED BY 'other'")
    try:
        plan = run_init(settings, mysql_server.user, mysql_server.password)
        assert [warning for warning in plan.warnings if "DROP USER ''@'127.0.0.1'" in warning]
        with pytest.raises(PrerequisitesNotMet, match="wrong password") as refused:
            connect(settings, purpose="test")
        assert "users without a name" in refused.value.next_step
    finally:
        mysql_server.run("DROP USER ''@'127.0.0.1'")
    assert not [warning for warning in run_init(settings, mysql_server.user, mysql_server.password).warnings
                if "without a name" in warning]
    connect(settings, purpose="test").close()


@pytest.mark.parametrize(("privilege", "act"), NEEDED, ids=[privilege for privilege, _ in NEEDED])
def test_init_grants_minimal_privileges(
    settings: MysqlSettings, mysql_server: MysqlServer, privilege: str, act: Callable[[MysqlSource], object]
) -> None:
    act(MysqlSource(settings))
    mysql_server.run(f"REVOKE {privilege} FROM {ROLE}")
    with pytest.raises(SourceError):
        act(MysqlSource(settings))


def test_init_creates_only_missing_objects(mysql_server: MysqlServer) -> None:
    mysql_server.run(*SHOP)
    settings = settings_for(mysql_server)

    plan = plan_init(settings, mysql_server.user, mysql_server.password)

    assert plan.statements == (
        f"CREATE USER {ROLE} IDENTIFIED BY '<the password of source.password>';",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {ROLE};",
        f"GRANT SELECT ON `shop`.`we``ird; drop` TO {ROLE};",
        f"GRANT SELECT ON `shop`.`orders` TO {ROLE};",
        "CREATE DATABASE IF NOT EXISTS `dblake`;",
        CREATE_WATERMARKS,
        "INSERT IGNORE INTO `dblake`.`watermark` (id, value) VALUES (0, ''), (1, ''), (2, ''), (3, ''), (4, ''),"
        " (5, ''), (6, ''), (7, ''), (8, '');",
        f"GRANT SELECT, UPDATE ON `dblake`.`watermark` TO {ROLE};",
    )
    assert mysql_server.rows("SELECT count(*) FROM mysql.user WHERE user = 'cap'") == [(0,)]
    assert init(mysql_server, settings) == plan
    assert init(mysql_server, settings) == InitPlan((), plan.warnings)
    mysql_server.run("CREATE TABLE shop.more (id int PRIMARY KEY)", "DELETE FROM dblake.watermark WHERE id = 3")
    assert [s.split(" (")[0] for s in init(mysql_server, settings).statements] == [
        f"GRANT SELECT ON `shop`.`more` TO {ROLE};", "INSERT IGNORE INTO `dblake`.`watermark`",
    ]


def test_init_rejects_foreign_watermark_table(mysql_server: MysqlServer) -> None:
    mysql_server.run(*SHOP, "CREATE DATABASE dblake", "CREATE TABLE dblake.watermark (id int PRIMARY KEY, level int)")
    with pytest.raises(PrerequisitesNotMet, match="but not with the columns"):
        init(mysql_server, settings_for(mysql_server))
    assert mysql_server.rows("SELECT count(*) FROM mysql.user WHERE user = 'cap'") == [(0,)]


def test_init_grants_whole_database_for_later_tables(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    """A pattern that takes all of a database means tomorrow's tables; _ of its name is no wildcard of the grant."""
    for name in ("my_shop", "myxshop"):
        mysql_server.run(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    try:
        whole = replace(settings, patterns=("my_shop.*",))
        grant = f"GRANT SELECT ON `my\\_shop`.* TO {ROLE};"
        assert plan_init(whole, mysql_server.user, mysql_server.password).statements == (grant,)
        run_init(whole, mysql_server.user, mysql_server.password)
        mysql_server.run("CREATE TABLE my_shop.later (id int PRIMARY KEY)")
        assert failing(whole) == []
        assert found(whole, "future_tables").detail == ""
        assert [t.table for t in MysqlSource(replace(settings, patterns=("my*.*",))).tables()] == [
            "my_shop.later", "my_shop.t",
        ]
    finally:
        mysql_server.run("DROP DATABASE my_shop", "DROP DATABASE myxshop")


def test_init_without_privileges_rejected(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    mysql_server.run("CREATE TABLE shop.more (id int PRIMARY KEY)", f"GRANT INSERT ON shop.more TO {ROLE}")
    with pytest.raises(PrerequisitesNotMet, match="user cap lacks a privilege that --init needs"):
        run_init(settings, settings.user, settings.password)


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
def test_tls_verified_by_default(settings: MysqlSettings) -> None:
    # MySQL generates a self-signed certificate.
    assert found(replace(settings, tls="verify"), "connect").detail == (
        "source shop: the server's certificate cannot be verified"
    )
    assert failing(replace(settings, tls="require")) == []


def test_privileges_of_roles_count(settings: MysqlSettings, mysql_server: MysqlServer) -> None:
    everybody = "'readers'" if mysql_server.flavour == "mariadb" else "'readers'@'%'"
    mysql_server.run(
        f"REVOKE SELECT ON shop.orders FROM {ROLE}", "CREATE ROLE readers", f"GRANT SELECT ON shop.* TO {everybody}",
        f"GRANT {everybody} TO {ROLE}",
        f"SET DEFAULT ROLE readers {'FOR' if mysql_server.flavour == 'mariadb' else 'TO'} {ROLE}",
    )
    try:
        assert failing(settings) == []
    finally:
        mysql_server.run("DROP ROLE readers")


GRANTS = [
    "GRANT USAGE ON *.* TO `cap`@`%` IDENTIFIED BY PASSWORD '*A7EA'",
    "GRANT SELECT, UPDATE (`a`, `b`) ON `shop`.`orders` TO `cap`@`%`",
    "GRANT SELECT ON `a\\_b%`.* TO `cap`@`%`",
    "GRANT ALL PRIVILEGES ON `o``dd`.* TO `cap`@`%`",
]


@pytest.mark.parametrize(
    ("privilege", "schema", "table", "held"),
    [
        ("SELECT", "shop", "orders", True), ("UPDATE", "shop", "orders", False), ("SELECT", "shop", "other", False),
        ("SELECT", "a_b", "t", True), ("SELECT", "a_bc", "t", True), ("SELECT", "axb", "t", False),
        ("UPDATE", "o`dd", "t", True), ("REPLICATION SLAVE", "", "", False),
    ],
)
def test_grants_match_schema_patterns(privilege: str, schema: str, table: str, held: bool) -> None:
    assert Grants(GRANTS).has(privilege, schema, table) is held


# --- the job

def job(
    tmp_path: Path, settings: MysqlSettings, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    conf = tmp_path / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress",
        "source": {
            "name": settings.name, "type": settings.flavour, "host": settings.host, "port": settings.port,
            "user": settings.user, "password": "${env:SHOP_PASSWORD}", "tls": settings.tls,
            "tables": list(settings.patterns),
        },
    }))
    paths = {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": settings.password}
    return subprocess.run(
        [sys.executable, str(HOME / "jobs/preflight.py"), "--conf", str(conf), *arguments],
        capture_output=True, text=True, env=os.environ | paths | environment, check=False, timeout=60,
    )


@pytest.mark.parity
def test_preflight_job_from_empty_server_to_ready(mysql_server: MysqlServer, tmp_path: Path) -> None:
    mysql_server.run(*SHOP)
    settings = settings_for(mysql_server)
    admin = ("--admin-user", mysql_server.user, "--admin-password-env", "ADMIN_PASSWORD")
    secret = {"ADMIN_PASSWORD": mysql_server.password}

    before = job(tmp_path, settings, "--json")
    script = job(tmp_path, settings, "--init", "--dry-run", *admin, **secret)
    done = job(tmp_path, settings, "--init", *admin, **secret)
    after = job(tmp_path, settings, "--json")

    assert before.returncode == 78
    assert [c["check"] for c in json.loads(before.stdout)] == ["connect"]
    assert script.returncode == 0
    assert script.stdout.startswith(f"CREATE USER {ROLE} IDENTIFIED BY '<the password of source.password>';\n")
    assert done.returncode == 0, done.stderr
    assert after.returncode == 0, after.stdout
    assert {tuple(c) for c in json.loads(after.stdout)} == {("check", "ok", "detail", "fix", "tables", "affects")}
    for run in (before, script, done, after):
        assert "se\\cret" not in run.stdout + run.stderr
    with pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="cap", password=settings.password):
        pass
