"""Keep a Spark session usable after a test that ran out of time.

pytest-timeout raises in the middle of a call to the JVM. The answer stays on the thread's connection, and the next call
would take it for its own: every later test of the session would fail with errors that have no meaning.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout "):
        abandon_call()
    return report


def abandon_call() -> None:
    """Cancel the running Spark jobs and give this thread a new connection to the JVM, if Spark runs."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._gateway is None:
        return
    connection = context._gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()
    context.cancelAllJobs()
