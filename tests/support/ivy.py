"""Jars of Maven Central, fetched by Ivy, which is among pyspark's jars, into a cache of their own, once.

Raises ``debian.Unavailable`` if they cannot be fetched.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.debian import Unavailable
from tests.support.java import find_java

_DEPENDENCY = '    <dependency org="{}" name="{}" rev="{}" conf="default"/>'
_ONE_JAR = """\
    <dependency org="{0}" name="{1}" rev="{2}" conf="default" transitive="false">
      <artifact name="{1}" type="jar" ext="jar" m:classifier="{3}"/>
    </dependency>"""
_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="dblake" module="{}"/>
  <dependencies>
{}
  </dependencies>
</ivy-module>
"""
_FETCH_SECONDS = 600


def fetched_jars(name: str, packages: Sequence[str]) -> Path:
    """Return the folder ``name`` of the cache, with the packages ``organisation:module:version`` and what they need.

    Of ``organisation:module:version:classifier`` it has only that jar.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblake/servers"
    folder = cache / name
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _fetch(folder, packages)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{name} cannot be fetched: {type(error).__name__}. Next: check that Maven Central is "
                          "reachable, or set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…") from error
    return folder


def _fetch(folder: Path, packages: Sequence[str]) -> None:
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark and pyspark.submodule_search_locations
    ivy = next(Path(pyspark.submodule_search_locations[0]).glob("jars/ivy-*.jar"), None)
    if ivy is None:
        raise Unavailable(f"{folder.name} cannot be fetched: pyspark has no Ivy. Next: install requirements-dev.lock")
    print(f"dblake: fetching {folder.name} into {folder.parent}", file=sys.stderr, flush=True)
    parts = [package.split(":") for package in packages]
    needed = "\n".join((_DEPENDENCY if len(one) == 3 else _ONE_JAR).format(*one) for one in parts)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.new.") as new:
        (Path(new) / "ivy.xml").write_text(_MODULE.format(folder.name, needed), encoding="utf-8")
        done = subprocess.run(
            [find_java(), "-jar", str(ivy), "-ivy", f"{new}/ivy.xml", "-cache", f"{new}/cache", "-types", "jar",
             "bundle", "-confs", "default", "-retrieve", f"{new}/jars/[artifact]-[revision].[ext]"],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=_FETCH_SECONDS, cwd=new,
        )
        if done.returncode:
            # Ivy's last section has what it could not resolve, and why; a JVM that did not start has none.
            sys.stderr.write(done.stdout.rpartition(":: problems summary ::")[2])
            raise Unavailable(f"{folder.name} cannot be fetched: Ivy failed with {done.returncode}. Next: see its "
                              "problems above, check that Maven Central is reachable, or set "
                              "JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…")
        shutil.move(f"{new}/jars", folder)
