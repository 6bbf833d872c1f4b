"""The environment's own errors: a machine without Python, and packages and jars that cannot be fetched.

The commands are real; programs of the network are stubs that fail.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError, StorageUnavailable
from dblake.transform.spark import s3_jars

HOME = Path(__file__).parents[3]
_TOOLS = ("bash", "dirname", "readlink", "cksum", "mkdir", "mktemp", "sed", "cat", "tail", "rm", "mv", "flock")
_PYTHON = """#!/bin/bash
[[ $1 == -c ]] && exit 0
if [[ $1 == -m && $2 == venv ]]; then
    mkdir -p "$3/bin" && cat "$0" >"$3/bin/python" && chmod +x "$3/bin/python"
    exit
fi
echo "pip: no route to host" >&2
exit 1
"""


def write_program(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return file


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a ``PATH`` that has tools and what the test has written to ``bin``."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in (*_TOOLS, "chmod"):
        found = shutil.which(name)
        assert found, name
        (folder / "bin" / name).symlink_to(found)
    return subprocess.run(
        [str(folder / "bin/bash"), str(HOME / "spark-submit.sh"), *arguments], capture_output=True, text=True,
        timeout=60, check=False,
        env={"PATH": str(folder / "bin"), "HOME": str(folder), "DBLAKE_VENV": str(folder / "venv"), **variables},
    )


def test_machine_without_python_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "setup")
    assert (done.returncode, "no Python 3.11 or newer" in done.stderr) == (78, True), done.stderr


def test_packages_that_are_unreachable_are_named(tmp_path: Path) -> None:
    write_program(tmp_path / "bin/python3", _PYTHON)
    done = run(tmp_path, "setup")
    assert (done.returncode, "packages could not be installed. Next: see pip" in done.stderr) == (75, True), done.stderr


def test_delta_jars_that_are_unreachable_are_named(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    write_program(venv / "bin/python", _PYTHON)
    checksum = subprocess.run(
        ["cksum"], input=(HOME / "requirements.lock").read_text(encoding="utf-8"), capture_output=True, text=True,
        check=True,
    ).stdout.strip()
    (venv / "requirements.lock.installed").write_text(checksum)
    write_program(venv / "lib/python3.11/site-packages/pyspark/bin/spark-submit", "#!/bin/bash\nexit 1\n")
    write_program(tmp_path / "java/bin/java", "#!/bin/bash\necho 'openjdk version \"17.0.1\"' >&2\n")
    done = run(tmp_path, "setup", JAVA_HOME=str(tmp_path / "java"))
    assert (done.returncode, "the Delta jars could not be resolved. Next: see Ivy" in done.stderr) == (75, True), (
        done.stderr
    )


def test_jars_for_s3_that_are_unreachable_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "spark/bin/spark-submit", "#!/bin/bash\nexit 1\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(StorageUnavailable, match="the jars for S3 could not be resolved") as caught:
        s3_jars.s3_jars()
    assert "SPARK_SUBMIT_OPTS" in caught.value.next_step
    assert not (tmp_path / "jars-s3").exists()


def test_jars_for_s3_in_read_only_environment_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image whose root is read-only: the kernel's error is EROFS, which is no PermissionError."""

    def refuse(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(s3_jars, "_locked", refuse)
    with pytest.raises(ConfigError, match="is not writable: Read-only file system"):
        s3_jars.s3_jars()


@pytest.mark.skipif(not os.path.isdir("/sys"), reason="no folder that every user is denied")
def test_jars_for_s3_in_foreign_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user, root included, may create a file there."""
    monkeypatch.setattr(sys, "prefix", "/sys")
    with pytest.raises(ConfigError, match="the jars for S3 are missing, and /sys is not writable") as caught:
        s3_jars.s3_jars()
    assert caught.value.next_step == "run ./spark-submit.sh setup --s3 as the environment's owner"
