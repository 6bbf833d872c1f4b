"""A bare Debian as a folder or an image, with this machine's registries: for the image, and for a new user's machine.

``debian_root`` returns a tar file that mmdebstrap made, from a cache; ``go_program`` a program that Go compiles at a
pinned version. Raises ``Unavailable`` without root rights, or without the programs. What the machine needs to reach its
registries (certificates of its own, settings of pip, the resolver) goes into the folder, never into the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.debian import Unavailable

_RELEASE = "bookworm"
_MACHINE = ("etc/pip.conf", "etc/resolv.conf", "etc/hosts")
_AUTHORITIES = Path("/usr/local/share/ca-certificates")
_SECONDS = 1800


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblake/tools"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def need_programs(*names: str) -> None:
    """Raise Unavailable unless this is root, with these programs."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        why = f"{', '.join(missing)} not installed" if missing else "this is not root"
        raise Unavailable(f"{why}. Next: as root, apt-get install {' '.join(names)}")


def debian_root() -> Path:
    """Return the tar file of a bare Debian with CA certificates; made on first use."""
    need_programs("mmdebstrap", "unshare", "chroot")
    target = _cache() / f"debian-{_RELEASE}.tar"
    if not target.exists():
        partial = target.with_name(f"partial-{os.getpid()}.tar")
        call("mmdebstrap", "--variant=minbase", "--include=ca-certificates", _RELEASE, str(partial))
        partial.rename(target)
    return target


def unpack_root(folder: Path) -> Path:
    """Unpack the bare Debian and give it what this machine needs to reach its registries; return the folder."""
    archive = debian_root()
    folder.mkdir()
    call("tar", "-xf", str(archive), "-C", str(folder), "--exclude=./dev/*")
    for name in _MACHINE:
        if Path("/", name).exists():
            shutil.copy(Path("/", name), folder / name)
    if _AUTHORITIES.is_dir():
        shutil.copytree(_AUTHORITIES, folder / _AUTHORITIES.relative_to("/"), dirs_exist_ok=True)
        call("chroot", str(folder), "update-ca-certificates")
    return folder


def in_root(folder: Path, script: str, environment: dict[str, str], seconds: int) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in a folder as its ``/``; all of its processes and mounts end with it."""
    mounts = f'mount -t proc proc "{folder}/proc"; mount --rbind /dev "{folder}/dev"'
    (folder / "script").write_text(script, encoding="utf-8")
    known = {name: value for name, value in os.environ.items() if name.startswith("PIP_") and name != "PIP_FIND_LINKS"}
    home = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec",
         f'{mounts}; exec chroot "{folder}" bash -eu /script'], env=known | home | environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=seconds,
    )


def go_program(module: str, version: str) -> Path:
    """Return a Go program at a version, compiled on first use."""
    name = module.rpartition("/")[2]
    target = _cache() / f"{name}-{version}"
    if not target.exists():
        if shutil.which("go") is None:
            raise Unavailable(f"{name} needs Go. Next: install Go, https://go.dev/dl/")
        call("go", "install", f"{module}@{version}", environment={"GOBIN": str(_cache())})
        (_cache() / name).rename(target)
    return target


def call(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run a program and return its output. Raises Unavailable if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=_SECONDS, env={**os.environ, **(environment or {})})
    if done.returncode:
        raise Unavailable(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
