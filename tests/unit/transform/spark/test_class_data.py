"""The archive of Spark's classes belongs to one Java and one set of jars, and is used only where it can fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dblake.transform.spark import class_data


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an environment with a Java, jars and a folder of the archive, without one yet."""
    for file in ("java/bin/java", "spark/jars/spark-core.jar", "venv/jars/delta.jar"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("1")
        (tmp_path / file).chmod(0o755)
    (tmp_path / "venv/class-data/conf").mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    for name in ("log4j2.properties", "spark-defaults.conf", "shop.yaml"):
        (tmp_path / "conf" / name).touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(class_data, "application_home", lambda: tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    for name in ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.setenv(name, "")
    return tmp_path


@pytest.mark.parametrize("file", ["java/bin/java", "spark/jars/spark-core.jar", "venv/jars/delta.jar"])
def test_archive_changes_with_java_and_jars(prepared: Path, file: str) -> None:
    before = class_data.find_archive()
    assert class_data.find_archive() == before
    (prepared / file).write_text("22")
    replaced = class_data.find_archive()
    os.utime(prepared / file, ns=(1, 1))
    assert len({before, replaced, class_data.find_archive()}) == 3
    (prepared / "venv/jars/other.jar").touch()
    assert class_data.find_archive() not in (before, replaced)


def test_options_name_the_archive_if_there_is_one(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--properties-file", str(prepared / "conf/spark-defaults.conf")]
    assert class_data.submit_options() == options
    assert os.environ["SPARK_CONF_DIR"] == str(prepared / "venv/class-data/conf")
    assert "SharedArchiveFile" not in os.environ["SPARK_SUBMIT_OPTS"]
    class_data.find_archive().touch()
    class_data.submit_options()
    assert "SharedArchiveFile" not in os.environ["SPARK_SUBMIT_OPTS"], "this Java writes none"
    class_data.find_archive().write_text("classes")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xshare:off")
    assert class_data.submit_options() == options
    given = os.environ["SPARK_SUBMIT_OPTS"]
    assert f'"-XX:SharedArchiveFile={class_data.find_archive()}" -Xshare:off' in given, "the user's options come last"


@pytest.mark.parametrize("what", ["folder", "core-site.xml", "spark-env.sh", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_settings_on_class_path_prevent_the_archive(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Spark and Hadoop read such files from folders on the class path, which an archive cannot have."""
    if what == "folder":
        (prepared / "venv/class-data/conf").rmdir()
    elif what.endswith("_DIR"):
        monkeypatch.setenv(what, "/etc/hadoop")
    else:
        (prepared / "conf" / what).touch()
    assert class_data.submit_options() == []
    assert os.environ["SPARK_CONF_DIR"] == os.environ["SPARK_SUBMIT_OPTS"] == ""
