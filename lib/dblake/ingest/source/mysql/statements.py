"""Builds the statements that prepare a MySQL or MariaDB server for capture; quotes every name.

Preflight prints them, ``--init`` runs them; which ones a server needs is left to these two.
"""

from __future__ import annotations

from dblake.ingest.source.mysql.log_retention import RDS_SHOW
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.sql_literals import identifier, string
from dblake.ingest.source.mysql.watermarks import WATERMARK_TABLE
from dblake.ingest.source.provider import Provider

WATERMARK_ROWS = range(9)
"""Row 0 is for heartbeats, row n for chunk reader n."""
PASSWORD_PLACEHOLDER = "<the password of source.password>"  # noqa: S105 - the placeholder, as shown

Account = tuple[str, str]
"""User and host."""


def quote_account(account: Account) -> str:
    """Return an account in the notation of statements."""
    return "@".join(map(string, account))


def new_account(settings: MysqlSettings) -> Account:
    """Return the account that ``--init`` creates: for any host, as capture may be moved."""
    return settings.user, "%"


def create_user(account: Account, password: str) -> str:
    """Return the statement that creates the capture role."""
    return f"CREATE USER {quote_account(account)} IDENTIFIED BY {string(password)}"


def grant_log(account: Account) -> str:
    """Return the GRANT for reading the log and its position; MariaDB calls the second BINLOG MONITOR, too."""
    return f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {quote_account(account)}"


def grant_select(account: Account, schema: str, table: str) -> str:
    """Return the GRANT for reading one table's chunks."""
    return f"GRANT SELECT ON {identifier(schema, table)} TO {quote_account(account)}"


def grant_select_in_schema(account: Account, schema: str) -> str:
    """Return the GRANT for reading all tables of a schema, those that are created later included."""
    # In this place alone, _ and % of a name are wildcards.
    pattern = schema.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
    return f"GRANT SELECT ON {identifier(pattern)}.* TO {quote_account(account)}"


def grant_watermarks(settings: MysqlSettings, account: Account) -> str:
    """Return the GRANT for writing watermarks and reading them back."""
    return f"GRANT SELECT, UPDATE ON {watermark_table(settings)} TO {quote_account(account)}"


def create_watermark_schema(settings: MysqlSettings) -> str:
    """Return the statement that creates the watermark table's database."""
    return f"CREATE DATABASE IF NOT EXISTS {identifier(settings.watermark_schema)}"


def create_watermark_table(settings: MysqlSettings) -> str:
    """Return the statement that creates the watermark table."""
    return (
        f"CREATE TABLE IF NOT EXISTS {watermark_table(settings)} (id int PRIMARY KEY, value varchar(36)) ENGINE=InnoDB"
    )


def move_watermark_table(settings: MysqlSettings) -> str:
    """Return the statement that renames another table that has the watermark table's name."""
    renamed = identifier(settings.watermark_schema, f"{WATERMARK_TABLE}_before")
    return f"RENAME TABLE {watermark_table(settings)} TO {renamed}"


def insert_watermark_rows(settings: MysqlSettings) -> str:
    """Return the statement that inserts the watermark table's missing rows."""
    rows = ", ".join(f"({number}, '')" for number in WATERMARK_ROWS)
    return f"INSERT IGNORE INTO {watermark_table(settings)} (id, value) VALUES {rows}"


def set_variable(settings: MysqlSettings, variable: str, value: str, provider: Provider | None = None) -> str:
    """Return what changes a setting persistently: a statement, on a managed server its provider's step.

    MariaDB needs it in its configuration file, too.
    """
    if provider:
        return provider.set_parameter(variable, value.strip("'") or "an empty value")
    if settings.flavour == "mysql":
        return f"SET PERSIST {variable} = {value}"
    return f"SET GLOBAL {variable} = {value}; -- and in the server's configuration, for after a restart"


def keep_log(hours: int) -> str:
    """Return the statement that keeps the binlog on Amazon RDS and Aurora."""
    return f"CALL mysql.rds_set_configuration('binlog retention hours', {hours})"


def grant_retention(account: Account) -> str:
    """Return the GRANT for reading how long Amazon RDS and Aurora keep the binlog."""
    return f"GRANT EXECUTE ON PROCEDURE {RDS_SHOW} TO {quote_account(account)}"


def rename_column(schema: str, table: str, column: str, name: str) -> str:
    """Return the statement that renames a column."""
    return f"ALTER TABLE {identifier(schema, table)} RENAME COLUMN {identifier(column)} TO {identifier(name)}"


def watermark_table(settings: MysqlSettings) -> str:
    """Return the watermark table's quoted name."""
    return identifier(settings.watermark_schema, WATERMARK_TABLE)
