"""Use an archive of the classes that Spark loads: a JVM maps them instead of parsing, verifying and linking each.

Place: set-up builds the archive with ``class_data_build``; ``jvm`` uses it for jobs on one machine. The archive belongs
to one Java and one set of jars, which its name depends on. Guarantee: it only saves time. A JVM ignores an archive that
does not fit it, and a job without one runs as before.

A JVM archives no classes if a folder with files is on its class path, as Spark's ``conf`` is: an empty folder takes its
place, and options name the files.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from dblake.installation import application_home
from dblake.transform.spark.startup import find_java

_KNOWN_FILES = frozenset({"log4j2.properties", "spark-defaults.conf"})
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"


def class_data_folder() -> Path:
    """Return the folder of the archive, in the environment."""
    return Path(sys.prefix) / "class-data"


def submit_options() -> list[str]:
    """Return the options of ``spark-submit`` and set its environment for a JVM that can use or write an archive.

    Returns none, and changes nothing, if set-up has not prepared it, or if ``conf`` or the environment has settings
    that reach Spark through the class path only.
    """
    conf, folder = application_home() / "conf", class_data_folder()
    if not (folder / "conf").is_dir() or _has_class_path_settings(conf):
        return []
    os.environ["SPARK_CONF_DIR"] = str(folder / "conf")
    options = [f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}"]
    archive = find_archive()
    if archive.is_file() and archive.stat().st_size:
        # An archive that does not fit, because Java or a jar was replaced, is not worth a warning in each job's log.
        options += ["-Xshare:auto", "-Xlog:cds*=off,class+path=off", f"-XX:SharedArchiveFile={archive}"]
    os.environ[SUBMIT_OPTIONS] = " ".join([*map(quoted, options), os.environ.get(SUBMIT_OPTIONS, "")]).strip()
    return ["--properties-file", str(conf / "spark-defaults.conf")]


def find_archive() -> Path:
    """Return the archive's file for the Java and the jars that Spark starts with now; it may not exist."""
    java = find_java()
    jars = [*_spark_home().glob("jars/*.jar"), *Path(sys.prefix, "jars").glob("*.jar")]
    digest = hashlib.sha256()
    for file in ([java] if java else []) + sorted(jars):
        status = file.stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return class_data_folder() / f"spark-{digest.hexdigest()[:16]}.jsa"


def _has_class_path_settings(conf: Path) -> bool:
    """Return True if Spark or Hadoop would read more than the known files from folders on the class path."""
    has_others = any(not (file.name in _KNOWN_FILES or file.suffix in (".yaml", ".yml")) for file in conf.iterdir())
    return has_others or any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_HOME") or _find_spark_home())


def quoted(option: str) -> str:
    """Return an option as Spark's launcher splits them."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
