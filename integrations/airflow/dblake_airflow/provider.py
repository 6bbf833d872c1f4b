"""What Airflow lists of this package as a provider; imports nothing, because every Airflow command calls it."""

from __future__ import annotations

from typing import Any

VERSION = "0.9.0"
"""Released with dblake, under its version."""


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's ``provider_info.schema.json``."""
    name = "dblake"
    return {
        "package-name": "dblake-airflow",
        "name": name,
        "description": "dblake: change data capture from PostgreSQL, MySQL and MariaDB into Delta Lake",
        "integrations": [{"integration-name": name, "external-doc-url": "https://pypi.org/project/dblake/"}],
        "operators": [{"integration-name": name, "python-modules": ["dblake_airflow.operators"]}],
        "sensors": [{"integration-name": name, "python-modules": ["dblake_airflow.sensors"]}],
        "triggers": [{"integration-name": name, "python-modules": ["dblake_airflow.triggers"]}],
        "extra-links": ["dblake_airflow.links.ReportLink"],
    }
