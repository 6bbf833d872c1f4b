"""docs/install.md in a bare Debian: its commands, with the wheel of this checkout, on a database beside it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dblake import __version__
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.e2e.test_docs import blocks
from tests.support.report import note_version
from tests.support.roots import in_root, unpack_root
from tests.support.wheel import HOME

PAGE = HOME / "docs" / "install.md"


@pytest.mark.timeout(1800)
def test_page_replicates_and_shows_lag(wheel: Path, tmp_path: Path) -> None:
    note_version("dblake", __version__)
    root = unpack_root(tmp_path / "root")
    package = Path(shutil.copy(wheel, root / "opt")).relative_to(root)
    # Ended by the end of their namespace, as by the end of the user's session.
    script = "set -m; cd\n" + "\n".join(blocks(PAGE))
    with EmbeddedPostgres(tmp_path / "postgres") as server:
        server.connect().cursor().execute("CREATE DATABASE shop")
        with server.connect("shop").cursor() as cur:
            cur.execute((HOME / "conf" / "demo-shop.sql").read_text(encoding="utf-8"))
        environment = {
            "PGPORT": str(server.port), "PGPASSWORD": server.password, "SHOP_PASSWORD": "hidden-4711",
            "DBLAKE_PACKAGE": f"/{package}", "DEBIAN_FRONTEND": "noninteractive",
        }
        done = in_root(root, script, environment, 1500)
    log = root / "root" / "up.log"
    assert done.returncode == 0, done.stdout[-5000:] + (log.read_text()[-5000:] if log.exists() else "")
    assert f"dblake {__version__}\n" in done.stdout
    assert "written: shop.yaml" in done.stdout and "checks are met" in done.stdout
    assert "orders\n5000\n" in done.stdout.replace("\r", "")
    (lag,) = re.findall(r'^dblake_lag_seconds\{.*source="shop", stage="state"\} => ([\d.e+-]+) @', done.stdout, re.M)
    assert float(lag) < 120
    report = (root / "root" / "dblake-doctor.md").read_text()
    assert f"- dblake {__version__}" in report and '"source": "shop"' in report
    assert "hidden-4711" not in report and server.password not in report
    assert "hidden-4711" not in (root / "root" / "shop.yaml").read_text()
    # Without Java, and without what only Spark needs.
    assert not list(root.glob("root/dblake/lib/python3*/site-packages/pyspark"))
