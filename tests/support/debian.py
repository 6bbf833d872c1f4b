"""Debian's server packages for tests, unpacked into a cache without installation and without root rights.

``tree("mariadb")`` returns the folder that holds a server's files as its ``/``; the first use fetches it. Each server
is pinned to a Debian release, so that every machine tests the same version. A tree contains all its libraries, the C
library included, so its programs run on any Linux distribution.

``python -m tests.support.debian`` fetches every missing tree; ``./spark-submit.sh tests`` runs it first. The cache is
``${XDG_CACHE_HOME:-~/.cache}/dblake/servers`` (about 600 MB). Fetching takes about a minute and needs the Debian mirror
that apt is configured for. Concurrent processes are serialized: one fetches, the others wait.

Raises ``Unavailable`` if a tree cannot be fetched; ``report`` then skips the tests that need it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path


class Unavailable(RuntimeError):
    """A server that this machine cannot run; the message contains the reason and the next step."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A server's packages and the programs in them that tests run. The first package determines the version.

    A server with programs also gets the libraries that its packages depend on. The Java server has no programs, and its
    package list is complete.
    """

    title: str
    release: str
    packages: tuple[str, ...]
    programs: tuple[str, ...] = ()
    """Paths or glob patterns, relative to the tree."""
    loader_beside: bool = False
    """The program looks for its files beside the executable that the system started, which is the loader."""


TREES = {
    "chromium": Tree("Chromium", "bookworm", ("chromium-headless-shell", "chromium-common", "fonts-dejavu-core"),
                     ("usr/lib/chromium/chromium-headless-shell",), loader_beside=True),
    "mariadb": Tree("MariaDB", "bookworm", ("mariadb-server-core",), ("usr/sbin/mariadbd",)),
    "mariadb-10.5": Tree("MariaDB", "bullseye", ("mariadb-server-core-10.5",), ("usr/sbin/mariadbd",)),
    "mariadb-11.8": Tree("MariaDB", "trixie", ("mariadb-server-core",), ("usr/sbin/mariadbd",)),
    "mariadb-suite": Tree("MariaDB's test suite", "bookworm", ("mariadb-test", "mariadb-test-data"),
                          ("usr/bin/mariadb-test",)),
    # Stable releases of Debian have no MySQL.
    "mysql": Tree("MySQL", "sid", ("mysql-server-core",), ("usr/sbin/mysqld", "usr/bin/mysqlbinlog")),
    # initdb executes postgres, so every program of the folder gets a wrapper.
    "postgresql": Tree("PostgreSQL 15", "bookworm", ("postgresql-15",),
                       ("usr/lib/postgresql/15/bin/*",)),
    "prometheus": Tree("Prometheus", "bookworm", ("prometheus",), ("usr/bin/prometheus", "usr/bin/promtool")),
    # Netty serves TLS.
    "zookeeper": Tree("ZooKeeper", "bookworm", (
        "libzookeeper-java", "libdropwizard-metrics-java", "libjctools-java", "libnetty-java", "libslf4j-java",
        "libsnappy-java",
    )),
}

#: Trees that are fetched when a test uses them.
_ON_DEMAND = {"chromium", "mariadb-10.5", "mariadb-11.8", "mariadb-suite", "prometheus"}
#: Dependencies to fetch: libraries only, since a test server needs no other programs …
_NEEDED = re.compile(r"^(lib|zlib)")
#: … except these. LLVM is large and only compiles long queries.
_NOT_NEEDED = re.compile(r"^lib(c-gconv|db5|gdbm|llvm|perl)|-perl$|-modules$")

_TOOLS = ("apt-get", "apt-cache", "dpkg", "dpkg-deb")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_FORMAT = 1  # version of the cache layout
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
#: Runs a program with the loader and the libraries of its tree. ``argv[0]`` stays the called path: postgres locates its
#: library and share folders by it.
_WRAPPER = """\
#!/bin/sh
tree=${{0%/{program}}}
exec "$tree/{loader}" --library-path "{libraries}" {name} "$tree/{program}.elf" "$@"
"""
#: Folders of libraries that others find by an absolute path.
_INNER_FOLDERS = ("pulseaudio",)
_failures: dict[str, str] = {}


def tree(name: str) -> Path:
    """Return the folder of a server; fetch it first if it is missing.

    Raises:
        Unavailable: if it is missing and cannot be fetched. A second call does not retry.
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


def source_folder(package: str, release: str, folder: str) -> Path:
    """Return a folder of a package's source; fetch it first if it is missing. Raises Unavailable."""
    path = _cache() / f"{package}-{release}-{folder.replace('/', '-')}"
    if path.is_dir():
        return path
    if reason := find_obstacle():
        raise Unavailable(f"the source of {package} cannot be fetched: {reason}")
    with _locked(release):
        if not path.is_dir():
            _fetch_source(package, release, folder, path)
    return path


def version(name: str) -> str:
    """Return the version of a fetched server, without Debian's epoch and revision."""
    first = (_path(name) / "packages.txt").read_text(encoding="utf-8").splitlines()[0]
    return upstream_version(first)


def upstream_version(archive: str) -> str:
    """Return the version in the name of a package file, without Debian's epoch and revision."""
    return re.sub(r"^\d+%3a|[-+].*$", "", archive.split("_")[1])


def find_obstacle() -> str | None:
    """Return the reason why this machine cannot fetch packages, with the next step; None if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not _KEYRING.exists():
        missing.append("debian-archive-keyring")
    if not missing:
        return None
    return f"{', '.join(missing)} not installed. Next: install apt, dpkg and debian-archive-keyring, or use Debian"


def _path(name: str) -> Path:
    server = TREES[name]
    packages = astuple(server)[:4]
    digest = hashlib.sha256(repr((_FORMAT, packages)).encode()).hexdigest()[:8]
    return _cache() / f"{name}-{server.release}-{digest}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblake/servers"


def _provide(release: str, names: Iterable[str]) -> None:
    """Fetch the missing trees of one release. Raises Unavailable."""
    names = list(names)
    titles = " and ".join(TREES[name].title for name in names)
    if reason := find_obstacle():
        raise Unavailable(f"{titles} cannot be fetched: {reason}")
    try:
        with _locked(release):
            missing = [name for name in names if not _path(name).is_dir()]
            if missing:
                _fetch(release, missing)
    except OSError as error:
        raise Unavailable(
            f"{titles} cannot be stored: {error}. Next: set XDG_CACHE_HOME to a writable folder with 1 GB of free space"
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
    for stale in cache.glob(f"{release}.new.*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{release}.new.") as folder:
        apt = Path(folder) / "apt"
        options = _configure(apt, release)
        _log(f"reading the package lists of Debian {release}")
        _run("apt-get", *options, "update")
        for name in names:
            _log(f"fetching {TREES[name].title} into {_path(name)}")
            archives, root = Path(folder) / f"{name}.archives", Path(folder) / name
            archives.mkdir()
            root.mkdir()
            _run("apt-get", *options, "download", *_closure(options, TREES[name]), cwd=archives)
            for archive in archives.iterdir():
                _run("dpkg", "-x", str(archive), str(root))
            _wrap(root, TREES[name])
            order = {package: number for number, package in enumerate(TREES[name].packages)}
            files = sorted((a.name for a in archives.iterdir()), key=lambda a: (order.get(a.split("_")[0], 99), a))
            (root / "packages.txt").write_text("".join(f"{file}\n" for file in files))
            root.chmod(0o755)
            root.rename(_path(name))
            shutil.rmtree(archives)


def _fetch_source(package: str, release: str, folder: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{release}.new.") as name:
        apt, root = Path(name) / "apt", Path(name) / "root"
        options = _configure(apt, release, kind="deb-src")
        _log(f"fetching the source of {package} into {path}")
        _run("apt-get", *options, "update")
        _run("apt-get", *options, "source", "--download-only", package, cwd=Path(name))
        with tarfile.open(next(Path(name).glob("*.orig.tar.*"))) as archive:
            # Where Python has it: Debian's 3.11 does not.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            for member in archive:
                _, _, inner = member.name.partition("/")
                if inner.startswith(f"{folder}/"):
                    member.name = inner.removeprefix(f"{folder}/")
                    archive.extract(member, root)
        root.chmod(0o755)
        root.rename(path)


def _configure(apt: Path, release: str, *, kind: str = "deb") -> list[str]:
    """Create apt's private state; return the options that select it. Proxies and credentials stay the machine's."""
    for folder in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.d", "state"):
        (apt / folder).mkdir(parents=True)
    (apt / "state/status").touch()
    (apt / "apt.conf").write_text(_APT.format(apt=apt))
    (apt / "etc/sources.list").write_text(f"{kind} [signed-by={_KEYRING}] {_mirror()} {release} main\n")
    return ["-c", str(apt / "apt.conf"), "-qq"]


def _mirror() -> str:
    """Return the machine's Debian mirror; Debian's own where none is configured."""
    lines = _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(SITE)", "Created-By: Packages")
    targets = [line.rsplit(" ", 1) for line in lines.splitlines() if "://" in line]
    confirmed = [site for origin, site in targets if origin == "Debian Debian"]
    # apt reports the origin only after an update.
    planned = _run("apt-get", "update", "--print-uris", "-o", "Debug::NoLocking=1")
    likely = re.findall(r"^'(\S+/debian)/dists/", planned, re.MULTILINE)
    return next(iter([*confirmed, *likely]), _MIRROR)


def _closure(options: list[str], server: Tree) -> list[str]:
    """Return the packages to download: the server's own and the libraries that they depend on."""
    if not server.programs:
        return list(server.packages)
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    lines = _run("apt-cache", *options, "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *server.packages)
    libraries = {line for line in lines.splitlines() if _NEEDED.match(line) and not _NOT_NEEDED.search(line)}
    return sorted(libraries | set(server.packages))


def _wrap(root: Path, server: Tree) -> None:
    """Replace each ELF program with a script that starts it with the tree's loader and libraries."""
    for path in [path for pattern in server.programs for path in root.glob(pattern)]:
        if path.is_symlink() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        # Some releases have /lib, some only /usr/lib.
        loader = next(iter([*root.glob("lib/*/ld-linux-*.so.*"), *root.glob("usr/lib/*/ld-linux-*.so.*")]))
        folders = [f"{folder}/{loader.parent.name}" for folder in ("lib", "usr/lib")]
        folders += [f"{folder}/{inner}" for folder in folders for inner in _INNER_FOLDERS]
        if server.loader_beside:
            loader = Path(shutil.copy(loader, path.parent))
        path.rename(path.with_name(f"{path.name}.elf"))
        path.write_text(_WRAPPER.format(
            program=path.relative_to(root), loader=loader.relative_to(root),
            name='--argv0 "$0"' if b"--argv0" in loader.read_bytes() else "",  # glibc has it from 2.33 on
            libraries=":".join(f"$tree/{folder}" for folder in folders if (root / folder).is_dir()),
        ))
        path.chmod(0o755)


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-500:]}. "
                          "Next: check that the Debian mirror of apt's configuration is reachable")
    return done.stdout


def _log(line: str) -> None:
    print(f"dblake: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Fetch all missing trees, different releases in parallel.

    Return 0 on success and where this machine cannot fetch packages (their tests are skipped); 75 if fetching failed.
    """
    wanted = [name for name in TREES if name not in _ON_DEMAND]
    missing = sorted((name for name in wanted if not _path(name).is_dir()), key=lambda name: TREES[name].release)
    if missing and (reason := find_obstacle()):
        _log(f"tests of {', '.join(TREES[name].title for name in missing)} will be skipped: {reason}")
        return 0
    releases = [(release, list(names)) for release, names in groupby(missing, lambda name: TREES[name].release)]
    failed = False
    with ThreadPoolExecutor(max_workers=len(releases) or 1) as pool:
        for (release, names), job in [(r, pool.submit(_provide, *r)) for r in releases]:
            try:
                job.result()
            except Unavailable as failure:
                failed = True
                _log(f"{', '.join(TREES[name].title for name in names)} of {release}: {failure}")
    return 75 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
