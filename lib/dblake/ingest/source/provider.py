"""Managed databases: how preflight recognizes a provider's server, and where its settings are changed.

Place: below preflight and ``--init`` of both kinds of database. Guarantee: a provider is recognized only by what its
servers alone show, so that a server of one's own never gets a provider's steps. The steps come from documentation
(docs/managed.md); no test runs on a provider's own server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider. ``steps`` has the whole step of a setting that the provider names or changes in its own way."""

    title: str
    parameters: str
    """Where the provider keeps settings, as its console names it."""
    steps: Mapping[str, str] = field(default_factory=dict)
    grants_replication: bool = False
    """True if membership of the role rds_replication replaces the attribute REPLICATION."""
    expires_log_early: bool = False
    """True if the server removes its binlog by the provider's own setting, whatever the server's settings are."""

    def set_parameter(self, variable: str, value: str) -> str:
        """Return the step that changes a setting of the server."""
        return self.steps.get(variable, f"set {variable} to {value} in {self.parameters}")


_RDS_LOG = "set rds.logical_replication to 1 in {}, then reboot"
RDS = Provider(
    "Amazon RDS", "the instance's DB parameter group",
    {
        "wal_level": _RDS_LOG.format("the instance's DB parameter group"),
        "log_bin": "turn automated backups on: set the instance's backup retention period to 1 day or more",
    },
    grants_replication=True, expires_log_early=True,
)
AURORA = Provider(
    "Amazon Aurora", "the DB cluster parameter group",
    {
        "wal_level": _RDS_LOG.format("the DB cluster parameter group"),
        "log_bin": "set binlog_format to ROW in the DB cluster parameter group, then reboot the writer",
    },
    grants_replication=True, expires_log_early=True,
)
CLOUD_SQL = Provider(
    "Google Cloud SQL", "the instance's database flags",
    {
        "wal_level": "set the flag cloudsql.logical_decoding to on; the instance restarts",
        "log_bin": "turn point-in-time recovery (binary logging) on",
    },
)
ALLOYDB = Provider(
    "Google AlloyDB", "the instance's database flags",
    {"wal_level": "set the flag alloydb.logical_decoding to on; the instance restarts"},
)
AZURE = Provider(
    "Azure Database", "the server parameters",
    {"wal_level": "set wal_level to LOGICAL in the server parameters, then restart"},
)
SUPABASE = Provider("Supabase", "the database's settings (supabase postgres-config update)")

_BY_ROLE = {
    "rds_superuser": RDS, "alloydbsuperuser": ALLOYDB, "cloudsqlsuperuser": CLOUD_SQL, "azure_pg_admin": AZURE,
    "supabase_admin": SUPABASE,
}
"""Roles that only one provider's PostgreSQL has; AlloyDB has Cloud SQL's, too."""
POSTGRES_ROLES = tuple(_BY_ROLE)


def find_postgres_provider(roles: Collection[str], *, has_aurora_version: bool) -> Provider | None:
    """Return the provider of a PostgreSQL server with some of ``POSTGRES_ROLES``; None for a server of one's own.

    ``has_aurora_version`` is True if the function ``aurora_version()`` exists.

    >>> find_postgres_provider(["rds_superuser"], has_aurora_version=False).title
    'Amazon RDS'
    """
    if has_aurora_version:
        return AURORA
    return next((provider for role, provider in _BY_ROLE.items() if role in roles), None)


def find_mysql_provider(version: str, variables: Mapping[str, str], *, has_rds_procedures: bool) -> Provider | None:
    """Return the provider of a MySQL or MariaDB server, from its version and settings; None for a server of one's own.

    >>> find_mysql_provider("8.0.36-google", {}, has_rds_procedures=False).title
    'Google Cloud SQL'
    """
    if "aurora_version" in variables:
        return AURORA
    if has_rds_procedures or variables.get("basedir", "").startswith("/rdsdbbin"):
        return RDS
    if version.endswith("-google") or "cloudsql_iam_authentication" in variables:
        return CLOUD_SQL
    return AZURE if "aad_auth_only" in variables else None
