"""The Containerfile, built by buildah from a bare Debian, and what its targets run as their ordinary user."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.report import note_version
from tests.support.roots import call, need_programs, unpack_root
from tests.support.wheel import HOME

pytestmark = pytest.mark.timeout(3600)
_EXTRAS = "postgres,mysql,zookeeper,sql,iceberg,kafka,http,avro,demo"
_FIRST_ROWS = re.compile(r"state has its first rows after ([\d.]+) s")


class Builder:
    """buildah with a store of its own, without a registry and without namespaces."""

    def __init__(self, folder: Path) -> None:
        self._command = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self.base = "localhost/debian"
        root = unpack_root(folder / "root")
        container = self("from", "scratch")
        self("add", container, str(root), "/")
        self("commit", "--rm", container, self.base)

    def __call__(self, *arguments: str) -> str:
        return call(*self._command, *arguments).strip()

    def build(self, target: str) -> str:
        """Build a target of the Containerfile; return the image's name."""
        image = f"localhost/dblake:{target}"
        done = subprocess.run(
            [*self._command, "build", "--isolation", "chroot", "--layers", "--pull-never", "--build-arg",
             f"BASE={self.base}", "--build-arg", f"EXTRAS={_EXTRAS}", "--file", str(HOME / "Containerfile"),
             "--target", target, "--tag", image, str(HOME)],
            capture_output=True, text=True, check=False, timeout=2400,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
        return image

    def command(self, container: str, *arguments: str) -> list[str]:
        """Return the command line of a program in a container, as the image's user."""
        return [*self._command, "run", "--isolation", "chroot", container, "--", *arguments]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    need_programs("buildah", "mmdebstrap")
    note_version("buildah", call("buildah", "--version").split()[2])
    builder = Builder(tmp_path_factory.mktemp("buildah"))
    yield builder
    builder("rm", "--all")
    builder("rmi", "--all", "--force")


def test_light_image_runs_demo_without_root(builder: Builder, tmp_path: Path) -> None:
    """Neither Java nor PySpark is in it; a second program in the container reads the copy."""
    container = builder("from", "--pull-never", builder.build("light"))
    assert json.loads(builder("inspect", "--type", "container", container))["OCIv1"]["config"]["User"] == "10001:10001"
    absent = subprocess.run(builder.command(container, "sh", "-c", "command -v java || python3 -c 'import pyspark'"),
                            capture_output=True, check=False, timeout=60)
    assert absent.returncode == 1
    log = tmp_path / "demo.log"
    with log.open("wb") as sink:
        demo = subprocess.Popen(
            builder.command(container, "timeout", "--foreground", "--signal=INT", "90", "dblake", "up", "--demo"),
            stdout=sink, stderr=sink, stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + 80
        while not _FIRST_ROWS.search(log.read_text()):
            assert time.monotonic() < deadline and demo.poll() is None, log.read_text()
            time.sleep(0.5)
        query = ["dblake", "sql", "--conf", "dblake-demo/demo.yaml", "--json", "SELECT count(*) AS n FROM customers"]
        while True:
            read = subprocess.run(builder.command(container, *query), capture_output=True, text=True, check=False,
                                  timeout=120)
            if read.returncode == 0 and json.loads(read.stdout) == [{"n": 1000}]:
                break
            assert time.monotonic() < deadline, read.stderr + log.read_text()
        # `timeout` ends with 124 whatever the command that it stopped returned.
        assert demo.wait(120) == 124, log.read_text()
        assert "capture | landed" in log.read_text()
    finally:
        demo.kill()
        demo.wait()


def test_spark_image_runs_quickstart(builder: Builder) -> None:
    container = builder("from", "--pull-never", builder.build("spark"))
    script = "cp -r /opt/dblake/conf . && dblake quickstart --conf conf/quickstart.yaml --scale 1"
    # With chroot isolation the name of the machine has no address.
    command = builder.command(container, "env", "SPARK_LOCAL_IP=127.0.0.1", "bash", "-ec", script)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "equal" in done.stdout and "DIFFERENT" not in done.stdout
