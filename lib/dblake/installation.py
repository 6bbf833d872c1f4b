"""Locate ``jobs``, ``pipelines`` and ``conf``, which surround the library, and pack all of it into one archive.

A checkout has them beside ``lib/``; ``pip install`` puts them into ``dblake/_application``, so that no package called
``jobs`` appears among the user's own; an archive, which Spark puts on the path of every process, has the packages side
by side and ``conf`` in ``dblake/_application``. Nothing here imports them.
"""

from __future__ import annotations

import os
import re
import zipfile
from importlib import resources
from pathlib import Path

_PACKAGE = Path(__file__).parent
_SETTING = re.compile(r"^(?!#)(\S+)[ \t]+(.*\S)[ \t]*$", re.MULTILINE)


def application_home() -> Path:
    """Return the folder that holds ``jobs``, ``pipelines`` and ``conf``."""
    checkout = _PACKAGE.parents[1]
    return checkout if (checkout / "jobs").is_dir() else _PACKAGE / "_application"


def import_paths() -> list[str]:
    """Return the folders from which ``dblake``, ``jobs`` and ``pipelines`` are imported."""
    return [str(_PACKAGE.parent), str(application_home())]


def spark_defaults() -> dict[str, str]:
    """Return the settings in ``conf/spark-defaults.conf``, of which Spark's own reader takes the same lines."""
    file = application_home() / "conf" / "spark-defaults.conf"
    packed = resources.files("dblake") / "_application" / "conf" / "spark-defaults.conf"
    text = file.read_text(encoding="utf-8") if file.is_file() else packed.read_text(encoding="utf-8")
    return {match[1]: match[2] for match in _SETTING.finditer(text)}


def write_archive(target: Path) -> None:
    """Write the library, jobs and their settings as one archive for ``--py-files``; replace it in one step."""
    home = application_home()
    sources = [(file, Path("dblake", file.relative_to(_PACKAGE))) for file in _PACKAGE.rglob("*.py")
               if "_application" not in file.relative_to(_PACKAGE).parts]
    for name in ("jobs", "pipelines"):
        sources += [(file, file.relative_to(home)) for file in (home / name).rglob("*.py")]
    sources += [(file, Path("dblake", "_application", "conf", file.name)) for file in (home / "conf").glob("spark-*")]
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name_inside in sorted(sources):
            archive.write(file, name_inside)
        # A folder without it is a package on a disk, but not in an archive.
        archive.writestr("jobs/__init__.py", "")
    partial.replace(target)
