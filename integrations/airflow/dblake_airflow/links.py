"""The link from a task to the page of ``report``, wherever ``up --report-port`` or a web server shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperatorLink

from dblake.config import load_airflow


class ReportLink(BaseOperatorLink):
    """Opens ``airflow.report_url`` of the task's configuration; a task without it has no link."""

    name = "dblake report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002
        """Return the page's address, which Airflow's worker reads at the end of a task."""
        return load_airflow(Path(operator.conf)).airflow.report_url or "" if operator.conf else ""
