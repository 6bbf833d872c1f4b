"""The statements that prepare a MySQL or MariaDB server for capture, as preflight advises and ``--init`` runs them.

Every name is quoted, whatever it is made of. Which statements a server needs is for ``preflight`` and ``init``.
"""

from __future__ import annotations

from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.sql_literals import identifier, string

WATERMARK_TABLE = "watermark"
WATERMARK_ROWS = range(9)
"""Row 0 is the heartbeat's, row n chunk reader n's."""
PASSWORD_LEFT_OPEN = "<the password of source.password>"

Account = tuple[str, str]


def spelled(account: Account) -> str:
    """An account as statements name it."""
    return "@".join(map(string, account))


def new_account(settings: MysqlSettings) -> Account:
    """The account that ``--init`` makes: from any host, since capture may be moved."""
    return settings.user, "%"


def create_user(account: Account, password: str) -> str:
    """The capture role."""
    return f"CREATE USER {spelled(account)} IDENTIFIED BY {string(password)}"


def grant_log(account: Account) -> str:
    """Leave to read the log and to ask where it is; MariaDB calls the second BINLOG MONITOR, too."""
    return f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {spelled(account)}"


def grant_select(account: Account, schema: str, table: str) -> str:
    """Leave to read one table's chunks."""
    return f"GRANT SELECT ON {identifier(schema, table)} TO {spelled(account)}"


def grant_watermarks(settings: MysqlSettings, account: Account) -> str:
    """Leave to write watermarks and to read them back."""
    return f"GRANT SELECT, UPDATE ON {watermark_table(settings)} TO {spelled(account)}"


def create_watermark_schema(settings: MysqlSettings) -> str:
    """The database of the watermark table."""
    return f"CREATE DATABASE IF NOT EXISTS {identifier(settings.watermark_schema)}"


def create_watermark_table(settings: MysqlSettings) -> str:
    """The watermark table."""
    return (
        f"CREATE TABLE IF NOT EXISTS {watermark_table(settings)} (id int PRIMARY KEY, value varchar(36)) ENGINE=InnoDB"
    )


def move_watermark_table(settings: MysqlSettings) -> str:
    """Moves a table that stands in the watermark table's place out of its way."""
    before = identifier(settings.watermark_schema, f"{WATERMARK_TABLE}_before")
    return f"RENAME TABLE {watermark_table(settings)} TO {before}"


def insert_watermark_rows(settings: MysqlSettings) -> str:
    """The watermark table's rows; those that are there stay."""
    rows = ", ".join(f"({number}, '')" for number in WATERMARK_ROWS)
    return f"INSERT IGNORE INTO {watermark_table(settings)} (id, value) VALUES {rows}"


def set_variable(settings: MysqlSettings, variable: str, value: str) -> str:
    """Changes a setting for good; MariaDB forgets it at a restart unless its configuration has it, too."""
    if settings.flavour == "mysql":
        return f"SET PERSIST {variable} = {value}"
    return f"SET GLOBAL {variable} = {value}; -- and in the server's configuration, for after a restart"


def rename_column(schema: str, table: str, column: str, name: str) -> str:
    """Gives a column another name."""
    return f"ALTER TABLE {identifier(schema, table)} RENAME COLUMN {identifier(column)} TO {identifier(name)}"


def watermark_table(settings: MysqlSettings) -> str:
    """The watermark table's name."""
    return identifier(settings.watermark_schema, WATERMARK_TABLE)
