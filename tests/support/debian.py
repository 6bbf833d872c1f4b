"""Servers for tests without installing them: Debian's packages, unpacked beside the system.

``tree("mariadb")`` is the folder in which a server is unpacked, as if it were ``/``; it is fetched on first use. Each
server has a release of Debian that its packages are of, so that every machine tests the same one. A tree brings all its
libraries, the C library too: its programs run with those, on whatever Linux the machine has. No rights are needed.

``python -m tests.support.debian`` fetches whatever is missing at once; ``./spark-submit.sh tests`` runs it first. The
trees are kept in ``${XDG_CACHE_HOME:-~/.cache}/dblake/servers``, some 600 MB; fetching them takes about a minute and
the Debian mirror that apt is configured for. Several processes may ask at once: one fetches, the others wait.

Raises ``Unavailable`` where a tree cannot be made, by which tests that need it are skipped (see ``report``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path


class Unavailable(RuntimeError):
    """A server that this machine cannot run; the message has the reason and the next step."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A server: its packages, of which the first has its version, and the programs in them that tests run.

    The libraries that the packages depend on are added to a server with programs; Java's has none, and is complete.
    """

    title: str
    release: str
    packages: tuple[str, ...]
    programs: tuple[str, ...] = ()
    """Paths, also as patterns."""


TREES = {
    "mariadb": Tree("MariaDB", "bookworm", ("mariadb-server-core",), ("usr/sbin/mariadbd",)),
    # Stable releases of Debian have no MySQL.
    "mysql": Tree("MySQL", "sid", ("mysql-server-core",), ("usr/sbin/mysqld", "usr/bin/mysqlbinlog")),
    # initdb runs postgres, so all of them are made to run by themselves.
    "postgresql": Tree("PostgreSQL with wal2json", "bookworm", ("postgresql-15", "postgresql-15-wal2json"),
                       ("usr/lib/postgresql/15/bin/*",)),
    # Netty is for TLS.
    "zookeeper": Tree("ZooKeeper", "bookworm", (
        "libzookeeper-java", "libdropwizard-metrics-java", "libjctools-java", "libnetty-java", "libslf4j-java",
        "libsnappy-java",
    )),
}

#: Of what the packages depend on, these are fetched: a server that is only run needs no other programs …
_NEEDED = re.compile(r"^(lib|zlib)")
#: … and not these libraries. LLVM's is large, and only compiles long queries.
_NOT_NEEDED = re.compile(r"^lib(c-gconv|db5|gdbm|llvm|perl)|-perl$|-modules$")

_TOOLS = ("apt-get", "apt-cache", "dpkg", "dpkg-deb")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_FORMAT = 1  # of a tree on disk
_APT = """\
Dir::State "{apt}/state";
Dir::State::lists "{apt}/lists";
Dir::State::status "{apt}/state/status";
Dir::Cache "{apt}/cache";
Dir::Etc::sourcelist "{apt}/etc/sources.list";
Dir::Etc::sourceparts "{apt}/etc/sources.d";
Dir::Etc::preferences "{apt}/etc/preferences";
Dir::Etc::preferencesparts "{apt}/etc/preferences.d";
APT::Sandbox::User "";
APT::Default-Release "";
Acquire::Languages "none";
Acquire::Retries "3";
#clear APT::Update;
#clear DPkg::Post-Invoke;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
"""
#: Runs a program with its tree's loader and libraries. It keeps the name it was called by: postgres finds its library
#: and share folders by that.
_WRAPPER = """\
#!/bin/sh
tree=${{0%/{program}}}
exec "$tree/{loader}" --library-path "{libraries}" --argv0 "$0" "$tree/{program}.elf" "$@"
"""
_failures: dict[str, str] = {}


def tree(name: str) -> Path:
    """Returns the folder of a server, fetching it first if it is missing.

    Raises:
        Unavailable: if it is missing and cannot be fetched. A second call does not try again.
    """
    path = _path(name)
    if not path.is_dir():
        if name in _failures:
            raise Unavailable(_failures[name])
        try:
            _provide(TREES[name].release, [name])
        except Unavailable as failure:
            _failures[name] = str(failure)
            raise
    return path


def version(name: str) -> str:
    """The version of a fetched server, without Debian's part of it."""
    first = (_path(name) / "packages.txt").read_text(encoding="utf-8").splitlines()[0]
    return upstream(first)


def upstream(archive: str) -> str:
    """The version in the name of a package's file, without Debian's epoch and revision."""
    return re.sub(r"^\d+%3a|[-+].*$", "", archive.split("_")[1])


def obstacle() -> str | None:
    """What keeps this machine from fetching anything, and the next step; None if nothing does."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not _KEYRING.exists():
        missing.append("debian-archive-keyring")
    if not missing:
        return None
    return f"{', '.join(missing)} not installed. Next: install apt, dpkg and debian-archive-keyring, or use Debian"


def _path(name: str) -> Path:
    wanted = TREES[name]
    digest = hashlib.sha256(repr((_FORMAT, astuple(wanted))).encode()).hexdigest()[:8]
    return _cache() / f"{name}-{wanted.release}-{digest}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblake/servers"


def _provide(release: str, names: Iterable[str]) -> None:
    """Fetches what is missing of one release."""
    names = list(names)
    titles = " and ".join(TREES[name].title for name in names)
    if reason := obstacle():
        raise Unavailable(f"{titles} cannot be fetched: {reason}")
    try:
        with _locked(release):
            missing = [name for name in names if not _path(name).is_dir()]
            if missing:
                _fetch(release, missing)
    except OSError as error:
        raise Unavailable(
            f"{titles} cannot be kept: {error}. Next: set XDG_CACHE_HOME to a folder with 1 GB to write to"
        ) from error


@contextmanager
def _locked(release: str) -> Iterator[None]:
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(release: str, names: list[str]) -> None:
    cache = _cache()
    for rest in cache.glob(f"{release}.new.*"):  # of a process that was killed
        shutil.rmtree(rest, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{release}.new.") as folder:
        apt = Path(folder) / "apt"
        options = _configure(apt, release)
        _say(f"reading the package lists of Debian {release}")
        _run("apt-get", *options, "update")
        for name in names:
            _say(f"fetching {TREES[name].title} into {_path(name)}")
            archives, root = Path(folder) / f"{name}.archives", Path(folder) / name
            archives.mkdir()
            root.mkdir()
            _run("apt-get", *options, "download", *_closure(options, TREES[name]), cwd=archives)
            for archive in archives.iterdir():
                _run("dpkg", "-x", str(archive), str(root))
            _wrap(root, TREES[name].programs)
            order = {package: number for number, package in enumerate(TREES[name].packages)}
            files = sorted((a.name for a in archives.iterdir()), key=lambda a: (order.get(a.split("_")[0], 99), a))
            (root / "packages.txt").write_text("".join(f"{file}\n" for file in files))
            root.chmod(0o755)
            root.rename(_path(name))
            shutil.rmtree(archives)


def _configure(apt: Path, release: str) -> list[str]:
    """Makes apt a state of its own; returns the options to run it with. Proxies and credentials stay the machine's."""
    for folder in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.d", "state"):
        (apt / folder).mkdir(parents=True)
    (apt / "state/status").touch()
    (apt / "apt.conf").write_text(_APT.format(apt=apt))
    (apt / "etc/sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {release} main\n")
    return ["-c", str(apt / "apt.conf"), "-qq"]


def _mirror() -> str:
    """The machine's Debian mirror, or Debian's own on a machine without one."""
    lines = _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(SITE)", "Created-By: Packages")
    targets = [line.rsplit(" ", 1) for line in lines.splitlines() if "://" in line]
    known = [site for origin, site in targets if origin == "Debian Debian"]
    # The origin is known after an update only.
    planned = _run("apt-get", "update", "--print-uris", "-o", "Debug::NoLocking=1")
    likely = re.findall(r"^'(\S+/debian)/dists/", planned, re.MULTILINE)
    return next(iter([*known, *likely]), _MIRROR)


def _closure(options: list[str], wanted: Tree) -> list[str]:
    if not wanted.programs:
        return list(wanted.packages)
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    lines = _run("apt-cache", *options, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *wanted.packages)
    found = {line for line in lines.splitlines() if _NEEDED.match(line) and not _NOT_NEEDED.search(line)}
    return sorted(found | set(wanted.packages))


def _wrap(root: Path, programs: tuple[str, ...]) -> None:
    for path in [path for pattern in programs for path in root.glob(pattern)]:
        if path.is_symlink() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        # Some releases have /lib, some only /usr/lib.
        loader = next(iter([*root.glob("lib/*/ld-linux-*.so.*"), *root.glob("usr/lib/*/ld-linux-*.so.*")]))
        folders = [f"{folder}/{loader.parent.name}" for folder in ("lib", "usr/lib")]
        path.rename(path.with_name(f"{path.name}.elf"))
        path.write_text(_WRAPPER.format(
            program=path.relative_to(root), loader=loader.relative_to(root),
            libraries=":".join(f"$tree/{folder}" for folder in folders if (root / folder).is_dir()),
        ))
        path.chmod(0o755)


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-500:]}. "
                          "Next: check that the Debian mirror of apt's configuration is reachable")
    return done.stdout


def _say(line: str) -> None:
    print(f"dblake: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Fetches all missing trees, those of different releases at once.

    Returns 0 if that worked or the machine can fetch none, by which their tests are skipped; 75 if fetching failed.
    """
    missing = sorted((name for name in TREES if not _path(name).is_dir()), key=lambda name: TREES[name].release)
    if missing and (reason := obstacle()):
        _say(f"tests of {', '.join(TREES[name].title for name in missing)} will be skipped: {reason}")
        return 0
    releases = [(release, list(names)) for release, names in groupby(missing, lambda name: TREES[name].release)]
    failed = False
    with ThreadPoolExecutor(max_workers=len(releases) or 1) as pool:
        for (release, names), job in [(r, pool.submit(_provide, *r)) for r in releases]:
            try:
                job.result()
            except Unavailable as failure:
                failed = True
                _say(f"{', '.join(TREES[name].title for name in names)} of {release}: {failure}")
    return 75 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
