"""The archive of Spark's classes, as set-up builds it and jobs use it, in real JVMs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dblake.installation import import_paths
from dblake.transform.spark.class_data import class_data_folder, find_archive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_PROLOGUE = """
import pathlib, sys
from dblake.transform.spark import class_data
class_data.class_data_folder = lambda: pathlib.Path(sys.argv[1])
"""
_JOB = _PROLOGUE + """
from dblake.transform.spark.session import spark_session
spark = spark_session("job")
spark.range(5).write.format("delta").save(sys.argv[2])
print(spark.read.format("delta").load(sys.argv[2]).count(),
      spark._jvm.java.lang.System.getProperty("arrow.enable_null_check_for_get"))
"""


def run(*command: object, options: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=550, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(import_paths()), "SPARK_SUBMIT_OPTS": options},
    )


def test_archive_of_setup_is_used_by_jobs(tmp_path: Path) -> None:
    """Building one takes minutes on a busy machine: here it is built only if set-up has not done so."""
    for _ in range(2):
        built = run("-m", "dblake.transform.spark.class_data_build")
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    # With this option a JVM that cannot use the archive does not start.
    mapped = run("-c", _JOB, class_data_folder(), tmp_path / "1", options="-Xshare:on")
    assert mapped.stdout == "5 false\n", mapped.stderr
    # Settings of logging hold: Spark's own ones print much more.
    assert " INFO " not in mapped.stderr and "NativeCodeLoader" not in mapped.stderr
    folder = tmp_path / "class data"
    (folder / "conf").mkdir(parents=True)
    (folder / find_archive().name).write_bytes(b"of another Java" * 1000)
    assert run("-c", _JOB, folder, tmp_path / "2", options="-Xshare:on").returncode != 0
    unfit = run("-c", _JOB, folder, tmp_path / "3")
    assert (unfit.stdout, unfit.returncode) == ("5 false\n", 0), unfit.stderr
    assert "archive" not in unfit.stderr
