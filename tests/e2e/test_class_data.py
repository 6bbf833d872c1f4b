"""The archive of Spark's classes, as set-up builds it and jobs use it, in real JVMs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dblake.installation import import_paths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_PROLOGUE = """
import pathlib, sys
from dblake.spark import class_data
class_data.class_data_folder = lambda: pathlib.Path(sys.argv[1])
"""
_BUILD = _PROLOGUE + """
from dblake.spark.class_data_build import build_archive
print(build_archive())
"""
_JOB = _PROLOGUE + """
from dblake.spark.session import spark_session
spark = spark_session("job")
spark.range(5).write.format("delta").save(sys.argv[2])
print(spark.read.format("delta").load(sys.argv[2]).count(),
      spark._jvm.java.lang.System.getProperty("arrow.enable_null_check_for_get"))
"""


def run(code: str, *arguments: object, options: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=550, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(import_paths()), "SPARK_SUBMIT_OPTS": options},
    )


def test_archive_is_built_once_and_used_by_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "class data"
    built = run(_BUILD, folder)
    assert built.returncode == 0 and built.stdout.strip() == str(next(folder.glob("*.jsa"))), built.stderr
    assert "archiving" in built.stderr and "archiving" not in run(_BUILD, folder).stderr
    # With this option a JVM that cannot use the archive does not start.
    mapped = run(_JOB, folder, tmp_path / "1", options="-Xshare:on")
    assert mapped.stdout == "5 false\n", mapped.stderr
    # Settings of logging hold: Spark's own ones print much more.
    assert " INFO " not in mapped.stderr and "NativeCodeLoader" not in mapped.stderr
    Path(built.stdout.strip()).chmod(0o644)
    Path(built.stdout.strip()).write_bytes(b"of another Java" * 1000)
    assert run(_JOB, folder, tmp_path / "2", options="-Xshare:on").returncode != 0
    unfit = run(_JOB, folder, tmp_path / "3")
    assert (unfit.stdout, unfit.returncode) == ("5 false\n", 0), unfit.stderr
    assert "archive" not in unfit.stderr
