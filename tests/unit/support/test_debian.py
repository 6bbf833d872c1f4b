"""Fetching of servers: errors without the tools or a writable cache, and programs that run with their own libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import debian
from tests.support.debian import Unavailable


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(debian, "_failures", {})
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("archive", "version"),
    [
        ("mariadb-server-core_1%3a10.11.19-0+deb12u1_amd64.deb", "10.11.19"),
        ("libzookeeper-java_3.8.0-11+deb12u2_all.deb", "3.8.0"),
        ("mysql-server-core_8.4.6_arm64.deb", "8.4.6"),
    ],
)
def test_upstream_archive_name_gives_version(archive: str, version: str) -> None:
    assert debian.upstream_version(archive) == version


def test_tree_without_tools_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"^MariaDB cannot be fetched: apt-get, .* Next: install apt, dpkg and"):
        debian.tree("mariadb")
    assert debian.main() == 0
    assert "tests of MariaDB, PostgreSQL 15, ZooKeeper, MySQL will be skipped" in capsys.readouterr().err


def test_tree_after_failure_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fail(release: str, names: list[str]) -> None:
        fetched.extend(names)
        raise Unavailable(f"no {release}")

    monkeypatch.setattr(debian, "find_obstacle", lambda: None)
    monkeypatch.setattr(debian, "_fetch", fail)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"^no sid$"):
            debian.tree("mysql")
    assert fetched == ["mysql"]
    assert debian.main() == 75


def test_tree_unwritable_cache_is_unavailable(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(debian, "find_obstacle", lambda: None)
    cache.touch()
    with pytest.raises(Unavailable, match="Next: set XDG_CACHE_HOME"):
        debian.tree("mysql")


def test_wrap_program_runs_with_tree_loader(tmp_path: Path) -> None:
    program = Path(shutil.which("cat") or "/bin/cat").resolve()
    loader = next(iter(Path("/").glob("lib*/*/ld-linux-*.so.*")), None)
    if loader is None or program.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("this machine has no GNU C library to copy")
    root = tmp_path / "tree with space"
    libraries = root / "usr/lib" / loader.parent.name
    (root / "bin").mkdir(parents=True)
    libraries.mkdir(parents=True)
    for library in (loader, loader.parent / "libc.so.6"):
        shutil.copy(library, libraries / library.name)
    shutil.copy(program, root / "bin/cat")
    (root / "bin/script").write_text("#!/bin/sh\n")
    debian._wrap(root, debian.Tree("cat", "any", (), ("bin/*",)))
    assert {path.name for path in (root / "bin").iterdir()} == {"cat", "cat.elf", "script"}
    root = root.rename(tmp_path / "moved")
    maps = subprocess.run([root / "bin/cat", "/proc/self/maps"], check=True, capture_output=True, text=True).stdout
    loaded = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if ".so" in line}
    assert loaded == set((root / "usr/lib" / loader.parent.name).iterdir())
