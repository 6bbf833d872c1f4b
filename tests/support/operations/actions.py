"""What an operator does in a round: each action changes the live system, and returns what it did in some words.

``ends`` are the exit codes with which capture may end under an action; any other end is a defect. Statements that the
database refuses are part of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext

from tests.support.operations.databases import MARKER, SCHEMA
from tests.support.operations.ddl import PARTITIONED, create_partitioned, create_table, random_change
from tests.support.operations.incarnations import compact_incarnations
from tests.support.operations.paused_imports import pause_import
from tests.support.operations.scene import Action, Scene

_MOST_TABLES = 7
_GAP = _SOURCE = frozenset({78})
"""Log is lost, or a prerequisite of the whole source is not met: capture waits for an operator."""


def change_schema(scene: Scene) -> str:
    table, done = scene.table(), list[str]()
    for _ in range(scene.dice.randint(1, 3)):
        statement = random_change(scene.database.kind, table, scene.dice)
        done.append(statement if scene.try_to_run(statement) else f"refused: {statement}")
        scene.pause(0.7)
    return "; ".join(done)


def change_key(scene: Scene) -> str:
    table, mysql = scene.table(plain=True), scene.database.kind != "postgres"
    name = f"{SCHEMA}.{table}"
    drop = f"ALTER TABLE {name} DROP PRIMARY KEY" if mysql else f"ALTER TABLE {name} DROP CONSTRAINT {table}_pkey"
    choice = scene.dice.choice(["id, n", "id, s", "none", "none for a while"])
    if choice.startswith("none"):
        scene.try_to_run(drop)
        scene.pause()
        if choice != "none":
            _add_key(scene, table, ["id"])
    else:
        scene.try_to_run(drop)
        _add_key(scene, table, choice.split(", "))
    return f"key of {table}: {choice}"


def _add_key(scene: Scene, table: str, columns: Sequence[str]) -> None:
    """Add a primary key; writers may have inserted rows with equal keys, which are deleted."""
    with scene.writers.paused():
        for column in columns[1:]:
            scene.try_to_run(f"DELETE FROM {SCHEMA}.{table} WHERE {column} IS NULL")
        name, key = f"{SCHEMA}.{table}", f"ADD PRIMARY KEY ({', '.join(columns)})"
        if scene.database.kind == "postgres":
            equal = " AND ".join(f"a.{column} = b.{column}" for column in columns)
            scene.try_to_run(f"DELETE FROM {name} a USING {name} b WHERE {equal} AND a.ctid < b.ctid")
            scene.try_to_run(f"ALTER TABLE {name} {key}")
        elif scene.database.kind == "mariadb":
            scene.try_to_run(f"ALTER IGNORE TABLE {name} {key}")
        else:
            key_columns = ", ".join(columns)
            again = f"SELECT {key_columns} FROM {name} GROUP BY {key_columns} HAVING count(*) > 1"
            scene.try_to_run(f"DELETE FROM {name} WHERE ({key_columns}) IN (SELECT * FROM ({again}) again)")
            scene.try_to_run(f"ALTER TABLE {name} {key}")


def lock_table(scene: Scene) -> str:
    table = scene.table()
    with closing(scene.database.connect()) as connection, connection.cursor() as cursor:
        if scene.database.kind == "postgres":
            cursor.execute(f"LOCK TABLE {SCHEMA}.{table} IN ACCESS EXCLUSIVE MODE")
        else:
            cursor.execute(f"LOCK TABLES {SCHEMA}.{table} WRITE")
        scene.system.dump(scene.dice.sample(scene.tables(), 2))
        restarted = scene.dice.random() < 0.5
        if restarted:
            scene.restart_capture()
        scene.system.wait(scene.dice.uniform(1, 5))
        connection.rollback()
    return f"{table} locked" + (", capture restarted" if restarted else "")


def revoke_grant(scene: Scene) -> str:
    table, role = scene.table(), scene.database.role
    what = f"SELECT ON {SCHEMA}.{table}"
    is_run = scene.try_to_run(f"REVOKE {what} FROM {role}")
    if scene.dice.random() < 0.5:
        scene.system.dump([table])
    scene.system.wait(scene.dice.uniform(0.5, 2))
    scene.try_to_run(f"GRANT {what} TO {role}")
    return f"SELECT on {table} revoked" + ("" if is_run else " (refused)")


def create_or_drop(scene: Scene) -> str:
    tables = scene.tables()
    if len(tables) < _MOST_TABLES and (len(tables) < 4 or scene.dice.random() < 0.6):
        name = f"t{scene.dice.randint(0, 9)}"
        if name in tables:
            return f"{name} exists"
        if PARTITIONED not in tables:
            scene.try_to_run(*create_partitioned(scene.database.kind))
            return "partitioned table created"
        key = scene.dice.choice(["PRIMARY KEY (id)", "PRIMARY KEY (id)", ""])
        scene.try_to_run(create_table(scene.database.kind, name, key=key))
        if scene.dice.random() < 0.7:
            scene.database.prepare()
        return f"{name} created, {key or 'no key'}"
    table = scene.table()
    scene.try_to_run(f"DROP TABLE {SCHEMA}.{table}")
    scene.pause()
    if scene.dice.random() < 0.5 and table != PARTITIONED:
        scene.try_to_run(create_table(scene.database.kind, table))
        return f"{table} dropped and created"
    return f"{table} dropped"


def rename_table(scene: Scene) -> str:
    one, to = scene.table(plain=True), f"r{scene.dice.randint(0, 9)}"
    others = [table for table in scene.tables(plain=True) if table != one]
    other = scene.dice.choice(others) if others else ""
    is_swap = bool(other) and scene.dice.random() < 0.5
    if scene.database.kind == "postgres":
        steps = [(one, "swap"), (other, one), ("swap", other)] if is_swap else [(one, to)]
        statements = [f"ALTER TABLE {SCHEMA}.{table} RENAME TO {name}" for table, name in steps]
    else:
        steps = [(one, "swap"), (other, one), ("swap", other)] if is_swap else [(one, to)]
        pairs = ", ".join(f"{SCHEMA}.{table} TO {SCHEMA}.{name}" for table, name in steps)
        statements = [f"RENAME TABLE {pairs}"]
    is_run = scene.try_to_run("; ".join(["BEGIN", *statements, "COMMIT"]) if len(statements) > 1 else statements[0])
    if is_run and not is_swap and scene.dice.random() < 0.4:
        scene.pause()
        back = f"ALTER TABLE {SCHEMA}.{to} RENAME TO {one}"
        scene.try_to_run(back)
        return f"{one} renamed to {to} and back"
    return (f"{one} and {other} swapped" if is_swap else f"{one} renamed to {to}") + ("" if is_run else " (refused)")


def change_patterns(scene: Scene) -> str:
    table = scene.table()
    scene.system.configure(table)
    scene.restart_capture()
    scene.pause(3)
    scene.system.configure()
    scene.restart_capture()
    return f"{table} out of source.tables and back"


def restart_server(scene: Scene) -> str:
    crash, stays_down = scene.dice.random() < 0.5, scene.dice.uniform(0, 2)
    scene.database.stop(crash=crash)
    scene.system.wait(stays_down)
    scene.database.start()
    return f"server stopped {'immediately' if crash else 'fast'}, down for {stays_down:.1f} s"


def change_primary(scene: Scene) -> str:
    """Promote a replica at the server's address, with dumps under way: capture continues there without a gap."""
    system, is_crash = scene.system, scene.dice.random() < 0.5
    scene.database.add_replica()
    system.dump(scene.tables())
    scene.pause()
    scene.note(system.await_heartbeat())
    before = system.incarnation
    # What capture itself writes would land, too, and the replica might miss it.
    scene.note(system.stop_capture())
    with scene.writers.paused():
        scene.database.promote_replica(crash=is_crash)
    system.start_capture()
    scene.note(system.await_heartbeat())
    expected = before if scene.database.kind == "postgres" else before + 1
    if system.incarnation != expected:
        scene.note(f"incarnation {before} was followed by {system.incarnation}, expected {expected}")
    return f"replica promoted after {'a crash' if is_crash else 'a stop'}"


def revert_server(scene: Scene) -> str:
    """Restore a snapshot of the storage while capture runs, and writers may."""
    is_old = scene.database.has_snapshot and scene.dice.random() < 0.5
    if not is_old:
        scene.database.copy_data()
        scene.fault = scene.system.await_heartbeat()
        scene.pause(3)
    with scene.writers.paused() if scene.dice.random() < 0.5 else nullcontext():
        scene.system.wait(1.0)
        scene.database.revert()
        scene.fault = scene.fault or scene.system.await_end(78)
    return f"server reverted to {'an earlier' if is_old else 'a new'} snapshot"


def revert_stopped(scene: Scene) -> str:
    """Restore a snapshot while capture is stopped; it starts before and after the log has grown past its position."""
    database, system = scene.database, scene.system
    database.copy_data()
    scene.fault = system.await_heartbeat()
    scene.pause(2)
    scene.fault = scene.fault or system.stop_capture()
    is_seen_early = scene.dice.random() < 0.5
    with scene.writers.paused():
        end = database.log_end()
        database.revert()
        if is_seen_early:
            scene.fault = scene.fault or system.require_rejected()
        while database.log_end() <= end:
            database.run(*[f"UPDATE {SCHEMA}.{MARKER} SET n = n + 1 WHERE id = 1"] * 200)
    scene.pause()
    scene.fault = scene.fault or system.require_rejected()
    return "server reverted while capture was stopped, log grown" + (", also rejected before" if is_seen_early else "")


def defer_key(scene: Scene) -> str:
    """Let rows share a key within a statement, which the log shows in an order that no key explains."""
    table = scene.table(plain=True)
    name, key = f"{SCHEMA}.{table}", "ADD PRIMARY KEY (id) DEFERRABLE"
    is_full = scene.dice.random() < 0.7
    with scene.writers.paused():
        scene.try_to_run(f"ALTER TABLE {name} REPLICA IDENTITY {'FULL' if is_full else 'DEFAULT'}")
        is_run = scene.try_to_run(f"ALTER TABLE {name} DROP CONSTRAINT {table}_pkey, {key}")
        is_run = is_run and scene.try_to_run(f"UPDATE {name} SET id = id + 1")
        one, other = scene.dice.sample(range(1, 100), 2)
        scene.try_to_run(f"UPDATE {name} SET id = {one} + {other} - id WHERE id IN ({one}, {other})")
    scene.pause()
    is_back = scene.dice.random() < 0.5
    if is_back:
        scene.try_to_run(f"ALTER TABLE {name} DROP CONSTRAINT {table}_pkey")
        _add_key(scene, table, ["id"])
    return f"key of {table} deferrable{'' if is_run else ' (refused)'}{', and not any more' if is_back else ''}"


def request_dump(scene: Scene) -> str:
    if scene.dice.random() < 0.5:
        tables = scene.dice.sample(scene.tables(), scene.dice.randint(1, 3))
        scene.system.dump(tables)
        return f"dump of {', '.join(tables)}"
    scene.system.dump([MARKER], [("1",), ("2",)])
    scene.system.dump(scene.tables())
    scene.pause()
    scene.system.dump(scene.tables())
    return "two dumps of all tables"


def kill_capture(scene: Scene) -> str:
    times = scene.dice.randint(1, 3)
    scene.system.dump(scene.tables())
    for _ in range(times):
        scene.system.wait(scene.dice.uniform(0.2, 3))
        scene.system.kill_capture()
        scene.system.start_capture()
    return f"capture killed {times} times"


def kill_reconcile(scene: Scene) -> str:
    seconds = scene.dice.uniform(0.3, 3)
    scene.system.dump(scene.tables())
    scene.pause(1)
    scene.system.kill_run(seconds)
    return f"reconcile and state killed after {seconds:.1f} s"


def change_publication(scene: Scene) -> str:
    table = scene.table()
    name = f"{SCHEMA}.{table}"
    alter = "ALTER PUBLICATION p"
    choices = {
        "without the table": ([f"{alter} DROP TABLE {name}"], [f"{alter} ADD TABLE {name}"]),
        "inserts only": ([f"{alter} SET (publish = 'insert')"],
                         [f"{alter} SET (publish = 'insert, update, delete, truncate')"]),
        "row filter": ([f"{alter} DROP TABLE {name}", f"{alter} ADD TABLE {name} WHERE (id < 50)"],
                       [f"{alter} DROP TABLE {name}", f"{alter} ADD TABLE {name}"]),
        "column list": ([f"{alter} DROP TABLE {name}", f"{alter} ADD TABLE {name} (id, n)"],
                        [f"{alter} DROP TABLE {name}", f"{alter} ADD TABLE {name}"]),
        "partitions by their own names": ([f"{alter} SET (publish_via_partition_root = false)"],
                                          [f"{alter} SET (publish_via_partition_root = true)"]),
    }
    choice = scene.dice.choice(list(choices))
    broken, restored = choices[choice]
    scene.try_to_run(*broken)
    scene.system.wait(scene.dice.uniform(0, 2))
    scene.try_to_run(*restored)
    return f"publication: {choice} ({table})"


def filter_binlog(scene: Scene) -> str:
    settings = {"binlog_row_image": ("MINIMAL", "FULL"), "binlog_row_metadata": ("MINIMAL", "FULL"),
                "binlog_format": ("STATEMENT", "ROW")}
    setting = scene.dice.choice(list(settings))
    broken, restored = settings[setting]
    scene.try_to_run(f"SET GLOBAL {setting} = '{broken}'")
    scene.system.wait(scene.dice.uniform(0, 2))
    scene.try_to_run(f"SET GLOBAL {setting} = '{restored}'")
    # A session keeps what was set when it began.
    scene.writers.reconnect()
    return f"{setting} = {broken}"


def lose_log(scene: Scene) -> str:
    scene.system.stop_capture()
    scene.pause()
    if scene.dice.random() < 0.5:
        scene.try_to_run("RESET MASTER" if scene.database.kind == "mariadb" else "RESET BINARY LOGS AND GTIDS")
        what = "log reset"
    else:
        # BEFORE excludes files of the present second.
        scene.try_to_run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "DO sleep(1.1)", "PURGE BINARY LOGS BEFORE now()")
        what = "log purged"
    scene.system.start_capture()
    return what


def recreate_schema(scene: Scene) -> str:
    scene.try_to_run(f"DROP DATABASE {SCHEMA}", f"CREATE DATABASE {SCHEMA}")
    kind = scene.database.kind
    scene.try_to_run(f"CREATE TABLE {SCHEMA}.{MARKER} (id int PRIMARY KEY, n int)",
                     f"INSERT INTO {SCHEMA}.{MARKER} VALUES (1, 0)",
                     *(create_table(kind, f"t{n}") for n in range(3)), *create_partitioned(kind))
    return "schema dropped and created"


def drop_slot(scene: Scene) -> str:
    scene.system.stop_capture()
    with closing(scene.database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.commit()
    scene.pause()
    scene.system.start_capture()
    return "slot dropped"


def skip_log(scene: Scene) -> str:
    """Lose log in a way of this database, and compact the events from before and after. Positions may begin lower."""
    return compact_incarnations(scene, scene.dice.choice([revert_server, _LOSES_LOG[scene.database.kind]]))


_LOSES_LOG = {"postgres": drop_slot, "mariadb": lose_log, "mysql": lose_log}
_COMMON = (
    Action("schema", change_schema, weight=5), Action("key", change_key, weight=2), Action("lock", lock_table),
    Action("grant", revoke_grant), Action("table", create_or_drop, weight=3), Action("rename", rename_table, weight=2),
    Action("patterns", change_patterns), Action("server", restart_server, weight=2),
    Action("revert", revert_server, _GAP), Action("reverted log", revert_stopped, _GAP), Action("dump", request_dump),
    Action("capture", kill_capture), Action("reconcile", kill_reconcile), Action("import", pause_import),
    Action("incarnation", skip_log, _GAP), Action("promotion", change_primary),
)
_BINLOG = (Action("binlog", filter_binlog, _SOURCE, weight=2), Action("log", lose_log, _GAP),
           Action("database", recreate_schema))
_OWN = {
    "postgres": (Action("deferrable", defer_key), Action("publication", change_publication, _SOURCE, weight=3),
                 Action("slot", drop_slot, _GAP)),
    "mariadb": _BINLOG, "mysql": _BINLOG,
}


def actions(kind: str) -> dict[str, Action]:
    """Return the actions on a kind of database, by name."""
    return {action.name: action for action in (*_COMMON, *_OWN[kind])}
