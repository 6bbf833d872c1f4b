"""The section ``outputs``: values, defaults, and the fault text of each kind of mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.errors import ConfigError
from dblake.config import load_config
from dblake.serve.consume.partition import Partition
from dblake.serve.outputs.target import ConfiguredOutput, Group

BASE = {
    "warehouse": "./warehouse", "progress": "file:./progress",
    "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
               "password": "${env:SHOP_PASSWORD}", "tables": ["public.*"]},
}


def write(folder: Path, outputs: dict[str, Any]) -> Path:
    file = folder / "shop.yaml"
    file.write_text(json.dumps(BASE | {"outputs": outputs}), encoding="utf-8")
    return file


def test_output_becomes_target(tmp_path: Path) -> None:
    partition = {"by": "mod", "of": 4, "take": [0, 3]}
    config = load_config(write(tmp_path, {
        "archive": {"type": "jsonl", "path": "./out/{table}.jsonl", "partition": partition, "start": "now"},
        "mine": {"class": "my.module:Class", "settings": {"depth": 3}, "columns": {"public.*": ["id"]}},
        "bus": {"type": "kafka", "brokers": "b:9092"},
    }))
    targets = {name: ConfiguredOutput(**output.as_target(Partition, Group)) for name, output in config.outputs.items()}
    assert (targets["archive"].kind, targets["archive"].settings) == (
        "jsonl", {"path": f"{tmp_path}/out/{{table}}.jsonl"}
    )
    assert (targets["archive"].partition, targets["archive"].start) == (Partition("mod", 4, (0, 3)), "now")
    assert (targets["mine"].kind, targets["mine"].settings) == ("my.module:Class", {"depth": 3})
    assert dict(targets["mine"].columns) == {"public.*": ["id"]}
    assert targets["bus"].settings["topic"] == "{source}.{table}"
    assert targets["bus"].start == "bootstrap"


def test_group_has_its_own_zookeeper_or_that_of_progress(tmp_path: Path) -> None:
    """Files of its URL are relative to the configuration file."""
    hook = {"type": "http", "url": "https://x"}
    own = {"partitions": 4, "url": "zookeeper://h/a?tls=verify&ca=ca.pem"}
    file = write(tmp_path, {"hook": hook | {"group": own}, "again": hook | {"group": {"partitions": 2}}})
    file.write_text(file.read_text("utf-8").replace("file:./progress", "zookeeper://h:2181/dblake"), "utf-8")
    outputs = load_config(file).outputs
    groups = [ConfiguredOutput(**outputs[name].as_target(Partition, Group)).group for name in ("hook", "again")]
    assert groups == [Group(4, f"zookeeper://h:2181/a?tls=verify&ca={tmp_path}/ca.pem"), Group(2)]


@pytest.mark.parametrize(("output", "fault"), [
    ({"type": "jsonl"}, "outputs.x.path is missing"),
    ({"type": "jsonl", "path": "x", "tabels": ["a.b"]}, "outputs.x.tabels is not a key, did you mean tables?"),
    ({"type": "redis"}, "outputs.x: type must be jsonl, kafka, sql or http; or class, package.module:Class"),
    ({"class": "nothing"}, "outputs.x.class: must be package.module:Class"),
    ({"type": "jsonl", "path": "x", "tables": ["orders"]}, "outputs.x.tables: not a schema.table pattern: orders"),
    ({"type": "jsonl", "path": "x", "format": "xml"},
     "outputs.x.format: must be native, debezium, avro or package.module:Class"),
    ({"type": "jsonl", "path": "x", "partition": {"of": 4, "take": [4]}},
     "outputs.x.partition: take must be numbers from 0 to of - 1"),
    ({"type": "http", "url": "https://x", "group": {"partitions": 4}},
     "outputs: x: because progress is a file, group needs url, zookeeper://host:2181/path"),
    ({"type": "http", "url": "https://x", "group": {"partitions": 4, "url": "zookeeper://h"}},
     "outputs.x.group.url: must be zookeeper://host:port,…/path"),
    ({"type": "http", "url": "https://x", "group": {"partitions": 0, "url": "zookeeper://h/a"}},
     "outputs.x.group.partitions: must be at least 1"),
    ({"type": "http", "url": "https://x", "partition": {"of": 2, "take": [0]},
      "group": {"partitions": 4, "url": "zookeeper://h/a"}},
     "outputs.x: partition and group exclude each other: a group assigns its partitions itself"),
    ({"type": "jsonl", "path": "x", "live": True, "rows": "whole"},
     "outputs.x: live: true requires rows: sent: rows are completed from events, which have to come first"),
    ({"type": "http", "url": "http://x", "headers": {"Authorization": "${env:TOKEN}"}},
     "outputs.x: http:// is plain text: write https://, or set tls to disable"),
    ({"type": "http", "url": "https://x", "tls": "disable"}, "outputs.x: https:// contradicts tls: disable"),
    ({"type": "kafka", "brokers": "b:1", "tls": "off"}, "outputs.x.tls: must be verify, require or disable"),
    ({"type": "http", "url": "ftp://x"}, "outputs.x.url: must be an address that begins with http://"),
])
def test_faulty_output_names_key(tmp_path: Path, output: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, {"x": output}))
    assert fault in str(caught.value)


def test_output_name_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"outputs: \.\./x: a name has a to z"):
        load_config(write(tmp_path, {"../x": {"type": "jsonl", "path": "x"}}))
