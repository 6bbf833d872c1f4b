"""MySQL for tests, without installing it: Debian sid's packages unpacked beside the system and run by their own loader.

Kept between runs in ``${XDG_CACHE_HOME:-~/.cache}/dblake/mysql``, some 420 MB; having it takes half a minute and the
Debian mirror that apt is set up for. Several processes may ask at once: one fetches, the others wait.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_PACKAGE = "mysql-server-core"
#: What packages ask for and a server that is only run does not need.
_NOT_NEEDED = re.compile(r"^(perl|libperl|gcc-|debconf|libdb5|libgdbm|openssl-provider|libc-gconv)")
_APT = """\
Dir::State "{apt}/state";
Dir::State::lists "{apt}/lists";
Dir::State::status "{apt}/state/status";
Dir::Cache "{apt}/cache";
Dir::Etc::sourcelist "{apt}/etc/sources.list";
Dir::Etc::sourceparts "{apt}/etc/sources.d";
Dir::Etc::preferencesparts "{apt}/etc/preferences.d";
APT::Sandbox::User "";
"""
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def mysql_root() -> Path:
    """Where MySQL is unpacked; fetched first if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblake"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / "mysql"
    with (cache / "mysql.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "usr/sbin/mysqld").exists():
            shutil.rmtree(root, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache, prefix="mysql.new.") as folder:
                _fetch(Path(folder) / "apt", Path(folder) / "root")
                (Path(folder) / "root").rename(root)
    return root


def program(root: Path, name: str) -> list[str]:
    """How to run one of its programs: with the libraries that came with it, not with the system's."""
    (loader,) = root.glob("usr/lib/*/ld-linux-*.so.*")
    return [str(loader), "--library-path", str(loader.parent), str(root / name)]


def _fetch(apt: Path, root: Path) -> None:
    for folder in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.d", "state"):
        (apt / folder).mkdir(parents=True)
    root.mkdir()
    (apt / "state/status").touch()
    (apt / "apt.conf").write_text(_APT.format(apt=apt))
    sites = _run("apt-get", "indextargets", "--format", "$(SITE)").split()
    mirror = next(site for site in sites if "security" not in site)
    (apt / "etc/sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} sid main\n")
    ours = ("-c", str(apt / "apt.conf"), "-qq")
    _run("apt-get", *ours, "update")
    leave_out = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    depends = _run("apt-cache", *ours, "depends", "--recurse", *leave_out, _PACKAGE).splitlines()
    packages = sorted({line for line in depends if re.match("[a-z]", line) and not _NOT_NEEDED.match(line)})
    archives = apt / "cache/archives"
    _run("apt-get", *ours, "download", *packages, cwd=archives)
    for archive in archives.glob("*.deb"):
        _run("dpkg", "-x", str(archive), str(root))


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed while MySQL was fetched: {done.stderr.strip()}")
    return done.stdout
