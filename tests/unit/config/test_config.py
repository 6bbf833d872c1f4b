"""Configuration files: accepted values, defaults, and the fault text of each kind of mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from dblake.base.core.errors import ConfigError, ExitCode
from dblake.base.core.mask_rules import Rule
from dblake.config import AirflowConfig, CaptureConfig, Config, load_airflow, load_config
from dblake.config.faults import PATTERNS
from tools.reference import build_page

HOME = Path(__file__).parents[3]
CONF = HOME / "conf"
SECRET = "hunter2-very-secret"
SECTIONS = (
    "storage", "source", "mask", "capture", "dump", "reconcile", "state", "maintain", "airflow", "status", "alerts",
    "quality",
)

COMPLETE = """\
warehouse: ./warehouse
progress: file:./progress
source:
  name: shop-eu
  type: postgres
  host: 127.0.0.1
  database: shop
  user: dblake
  password: ${env:SHOP_PASSWORD}
  tables: ["public.*", "!public.audit_*"]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "dblake.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def message(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    assert caught.value.next_step
    assert SECRET not in str(caught.value)
    return str(caught.value).replace(f"{file}:", "").replace(str(file), "FILE")


def test_load_minimal_file_fills_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, COMPLETE))
    assert config.warehouse == f"{tmp_path}/warehouse"
    assert config.progress == f"file:{tmp_path}/progress"
    assert config.source.port == 5432
    assert (config.source.tls, config.source.tls_ca) == ("verify", None)
    assert config.source.watermark_schema == "dblake"
    assert (config.source.slot, config.source.publication) == ("dblake_shop_eu", "dblake_shop_eu")
    assert (config.dump.chunk_size, config.dump.delay, config.dump.readers) == (50_000, 0.0, 1)
    assert (config.capture.profile, config.capture.max_bytes, config.capture.max_rows) == ("default", 16777216, 200_000)
    wants = config.source.wants()
    assert [wants("public", t) for t in ("orders", "audit_log")] == [True, False]


@pytest.mark.parametrize(
    ("given", "key", "expected"),
    [
        ("warehouse: abfss://lake@store/x", "warehouse", "abfss://lake@store/x"),
        ("warehouse: /data/lake", "warehouse", "/data/lake"),
        ("progress: file:/data/progress", "progress", "file:/data/progress"),
        ("progress: zookeeper://a:2181,b:2181/dblake?session_timeout=5", "progress",
         "zookeeper://a:2181,b:2181/dblake?session_timeout=5"),
        ("progress: zookeeper://a/dblake?tls=verify&ca=/etc/ca.pem", "progress",
         "zookeeper://a:2181/dblake?tls=verify&ca=/etc/ca.pem"),
    ],
)  # fmt: skip
def test_load_absolute_places_unchanged(tmp_path: Path, given: str, key: str, expected: str) -> None:
    lines = [given if line.startswith(f"{key}:") else line for line in COMPLETE.splitlines()]
    assert getattr(load_config(write(tmp_path, "\n".join(lines))), key) == expected


@pytest.mark.parametrize(("given", "folder"), [("", None), ("quality: {suites: ./mine}", "mine"),
                                               ("quality: {suites: /data/mine}", "/data/mine")])
def test_load_suites_resolved_beside_file(tmp_path: Path, given: str, folder: str | None) -> None:
    suites = load_config(write(tmp_path, f"{COMPLETE}\n{given}")).quality.suites
    assert suites == (folder and str(tmp_path / folder))


@pytest.mark.parametrize(
    ("capture", "rate"),
    [
        (CaptureConfig(), 1.0),
        (CaptureConfig(profile="low_latency"), 20.0),
        (CaptureConfig(profile="low_latency", commits_per_second=5.0), 5.0),
    ],
)
def test_commit_rate_by_profile(capture: CaptureConfig, rate: float) -> None:
    assert capture.commit_rate == rate


@pytest.mark.parametrize(
    ("was", "becomes", "fault"),
    [
        ("  host: 127.0.0.1\n", "", "3: source.host is missing"),
        ("user: dblake", "user: dblake\n  usr: x", "9: source.usr is not a key, did you mean user?"),
        ("progress: file:./progress", "progres: file:./progress", "2: progres is not a key, did you mean progress?"),
        ("host: 127.0.0.1", "host: 127", "6: source.host: must be text"),
        ("host: 127.0.0.1", 'host: h\n  port: "5432"', "7: source.port: must be a whole number without quotes"),
        ("warehouse: ./warehouse", "warehouse: s3://Bucket/lake", "1: warehouse: must be s3://bucket/prefix"),
        ("warehouse: ./warehouse", "warehouse: s3n://bucket/lake", "1: warehouse: must be s3://bucket/prefix"),
        ("warehouse: ./warehouse", "warehouse: file:./lake", "1: warehouse: must be a path, or a URL with //"),
        ("warehouse: ./warehouse", "warehouse: ~no-such-user/lake", "1: warehouse: unknown user in ~no-such-user"),
        ("type: postgres", "type: [postgres]", "5: source.type: must be postgres, mysql or mariadb"),
        ("user: dblake", 'user: dblake\n  slot: ""', "9: source.slot: must be 1 to 63 of a-z, 0-9 and _"),
        ("user: dblake", 'user: dblake\n  publication: ""', "9: source.publication: must be text that is not empty"),
        ("host: 127.0.0.1", "host: &a {x: *a}", "a YAML anchor refers to itself"),
        ("type: postgres", "type: oracle", "5: source.type: must be postgres, mysql or mariadb"),
        ("name: shop-eu", "name: ../shop", "4: source.name: must be a name of at most 40 of a-z, 0-9, _ and -"),
        ("name: shop-eu", "name: Shop", "4: source.name: must be a name of at most 40 of a-z, 0-9, _ and -"),
        ("${env:SHOP_PASSWORD}", SECRET, "9: source.password: must be a reference"),
        ("${env:SHOP_PASSWORD}", f"x${{env:{SECRET}}}", "9: source.password: must be a reference"),
        ("${env:SHOP_PASSWORD}", "12345", "9: source.password: must be a reference"),
        ('"public.*", ', '"public", ', "10: source.tables: not a schema.table pattern: public"),
        ('"public.*", ', "", '10: source.tables: only excludes tables: at least one pattern without "!" is required'),
        ('["public.*", "!public.audit_*"]', "[]", "10: source.tables: must be a list of at least 1"),
        ("  database: shop\n", "", "3: source: database is missing: PostgreSQL is captured one database at a time"),
        ("type: postgres", "type: mysql", "3: source: database requires type postgres"),
        ("type: postgres", "type: mysql\n  log_ddl: true",
         "3: source: database and log_ddl require type postgres"),
        ("type: postgres", "type: mysql\n  primary: db2\n  watermarks: messages",
         "3: source: database and primary and watermarks require type postgres"),
        ("type: postgres", "type: postgres\n  primary: db2\n  replica: db3",
         "3: source: replica is for a host that is the primary: with primary, chunks are read from host"),
        ("type: postgres", "type: postgres\n  watermarks: rows", "6: source.watermarks: must be table or messages"),
        ("file:./progress", "redis://here", "2: progress: must be file:PATH or zookeeper://host:port/path"),
        ("file:./progress", f"zookeeper://a/x?user=u&password={SECRET}", "2: progress: password must be a reference"),
        ("file:./progress", "zookeeper://a/x?timeout=4", "2: progress: zookeeper has no parameter timeout;"),
        ("file:./progress", "'file:'", "2: progress: must be file:PATH or zookeeper://host:port/path"),
        ("  user: dblake", "  user: dblake\n  user: dblake", "9: duplicate key source.user"),
        ("${env:SHOP_PASSWORD}", f"[{SECRET}", "10: not YAML: "),
        ("file:./progress", "file:./progress\ncapture: {profile: fast}",
         "3: capture.profile: must be default or low_latency"),
        ("file:./progress", "file:./progress\ndump: {chunk_size: 0}",
         "3: dump.chunk_size: must be at least 1"),
        ("${env:SHOP_PASSWORD}", "${env:SHOP_PASSWORD}\n  tls: require\n  tls_ca: ca.pem",
         "3: source: tls_ca requires tls: verify"),
        ("file:./progress", f"file:./progress\nmask: {{key: {SECRET}}}", "3: mask.key: must be a reference"),
        ("file:./progress", "file:./progress\nmask: {tables: {public.t: {a: hash}}}",
         "3: mask: key is missing: hashed columns need one"),
        ("file:./progress", "file:./progress\nmask: {tables: {public.t: {a: blur}}}",
         "3: mask.tables: public.t, column a: must be drop, hash, or {truncate: N}"),
        ("file:./progress", "file:./progress\nmask: {tables: {public.t: {a: {truncate: 0}}}}",
         "3: mask.tables: public.t, column a: must be drop"),
        ("file:./progress", "file:./progress\nmask: {tables: {public.t: {a: {truncate: true}}}}",
         "3: mask.tables: public.t, column a: must be drop"),
        ("file:./progress", "file:./progress\nmask: {tables: {t: {a: drop}}}",
         "3: mask.tables: not a schema.table pattern: t"),
        ("file:./progress", 'file:./progress\nmask: {tables: {"!public.t": {a: drop}}}',
         "3: mask.tables: !public.t excludes tables"),
        ("file:./progress", "file:./progress\nmask: {tables: {public.t: {}}}",
         "3: mask.tables: public.t must list its columns"),
        ("file:./progress", "file:./progress\nreconcile: {max_bytes_per_trigger: lots}",
         "3: reconcile.max_bytes_per_trigger: must be a number and k, m or g, such as 256m"),
        ("file:./progress", "file:./progress\nairflow: {schedule: often}",
         "3: airflow.schedule: must be cron, such as"),
        ("file:./progress", "file:./progress\nairflow: {schedul: null}",
         "3: airflow.schedul is not a key, did you mean schedule?"),
    ],
)  # fmt: skip
def test_load_faulty_key_names_line_and_key(tmp_path: Path, was: str, becomes: str, fault: str) -> None:
    assert was in COMPLETE
    assert fault in message(write(tmp_path, COMPLETE.replace(was, becomes, 1)))


def test_every_pattern_has_an_example() -> None:
    """A message without one would show a regular expression."""
    patterns = set(re.findall(r'"pattern": "((?:[^"\\\\]|\\\\.)*)"', json.dumps(Config.model_json_schema())))
    assert {json.loads(f'"{pattern}"') for pattern in patterns} == PATTERNS.keys()


def test_load_several_faults_reported_at_once(tmp_path: Path) -> None:
    faults = message(write(tmp_path, COMPLETE.replace("  user: dblake\n", "").replace("shop-eu", "Shop")))
    assert "source.user is missing" in faults
    assert "4: source.name" in faults
    assert "source.slot" not in faults and "source.publication" not in faults


@pytest.mark.parametrize("text", ["", "just words", "- a\n- list\n"])
def test_load_file_without_keys_rejected(tmp_path: Path, text: str) -> None:
    assert message(write(tmp_path, text)).startswith(" the file has no keys")


def test_load_missing_file_rejected(tmp_path: Path) -> None:
    fault = message(tmp_path / "none.yaml")
    assert fault.startswith("the configuration file FILE cannot be read: No such file or directory")


def test_load_binary_file_rejected(tmp_path: Path) -> None:
    (tmp_path / "dblake.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in message(tmp_path / "dblake.yaml")


def test_password_read_from_environment_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(write(tmp_path, COMPLETE))
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    password = config.source.password.read()
    assert password.get_secret_value() == SECRET
    assert SECRET not in repr(password) + repr(config) + config.model_dump_json(exclude={"source": {"password"}})


def test_password_read_from_file_beside_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n", encoding="utf-8")
    file = write(tmp_path, COMPLETE.replace("${env:SHOP_PASSWORD}", "${file:./secret}"))
    assert load_config(file).source.password.read().get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("key", "fault"), [("0123456789abcdef", None), (SECRET[:15], "the key has 15 bytes; keys shorter than 16 bytes")]
)
def test_mask_rules_and_key_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, fault: str | None
) -> None:
    monkeypatch.setenv("MASK_KEY", key)
    rules = '{"public.*": {a: hash, b: drop, "c d": {truncate: 2}}}'
    mask = load_config(write(tmp_path, COMPLETE + f"mask: {{key: '${{env:MASK_KEY}}', tables: {rules}}}\n")).mask
    assert mask.tables == {"public.*": {"a": Rule("hash"), "b": Rule("drop"), "c d": Rule("truncate", 2)}}
    assert mask.key is not None
    if fault is None:
        assert mask.key.read() == key.encode()
        return
    with pytest.raises(ConfigError, match=fault) as caught:
        mask.key.read()
    assert key not in str(caught.value)


def test_tls_ca_resolved_beside_file(tmp_path: Path) -> None:
    file = write(tmp_path, COMPLETE.replace("  user:", "  tls_ca: ca.pem\n  user:"))
    assert load_config(file).source.tls_ca == f"{tmp_path}/ca.pem"


def test_unset_secret_reported_only_on_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    file = write(tmp_path, COMPLETE)
    reference = load_config(file).source.password
    with pytest.raises(ConfigError) as caught:
        reference.read()
    assert str(caught.value) == (
        f"{file}:9: source.password: the environment variable SHOP_PASSWORD is not set. Next: export SHOP_PASSWORD"
    )


def test_unreadable_secret_file_rejected(tmp_path: Path) -> None:
    file = write(tmp_path, COMPLETE.replace("${env:SHOP_PASSWORD}", "${file:./secret}"))
    with pytest.raises(ConfigError, match=r":9: source\.password: the secret file .*/secret cannot be read: No such"):
        load_config(file).source.password.read()


@pytest.mark.parametrize(
    "schedule", ["*/5 * * * *", "0 3 1,15 * mon-fri", "@hourly", "@daily", "@weekly", "@monthly", "@continuous", None]
)
def test_airflow_schedule_accepted(tmp_path: Path, schedule: str | None) -> None:
    file = write(tmp_path, COMPLETE + f"airflow: {json.dumps({'schedule': schedule})}\n")
    scheduled = load_airflow(file)
    assert (scheduled.source.name, scheduled.airflow) == ("shop-eu", AirflowConfig(schedule=schedule))


def test_load_airflow_ignores_other_faults(tmp_path: Path) -> None:
    """The DAG's run then reports the fault; a missing DAG would report nothing."""
    file = write(tmp_path, "progress: nowhere\nstat: {}\nsource: {name: shop, type: oracle}\nairflow: {retries: 1}\n")
    scheduled = load_airflow(file)
    assert (scheduled.source.name, scheduled.airflow) == ("shop", AirflowConfig(retries=1))


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ("{archive: {type: jsonl, path: ./out}, bus: {type: kafka}}", ("archive", "bus")),
        ("{archive: wrong, Bus: {}, 7: {}, '': {}, 'a; b': {}}", ("archive",)),
        ("[archive]", ()),
        ("null", ()),
    ],
)
def test_load_airflow_lists_outputs(tmp_path: Path, outputs: str, expected: tuple[str, ...]) -> None:
    """Whatever else is wrong with them: the run reports that."""
    assert load_airflow(write(tmp_path, COMPLETE + f"outputs: {outputs}\n")).outputs == expected


def test_load_airflow_faulty_section_rejected(tmp_path: Path) -> None:
    file = write(tmp_path, COMPLETE + "airflow: {retries: -1}\n")
    with pytest.raises(ConfigError, match=r":11: airflow\.retries: must be at least 0"):
        load_airflow(file)


@pytest.mark.parametrize("file", sorted(CONF.glob("*.yaml")), ids=lambda f: f.name)
def test_shipped_file_loads(file: Path) -> None:
    assert load_config(file).source.name == "shop"


@pytest.mark.parametrize(
    ("file", "foreign_keys"),
    [
        ("postgres.yaml", {"server_id"}),
        ("mysql.yaml", {"database", "log_ddl", "slot", "publication", "primary", "watermarks"}),
    ],
)
def test_shipped_file_has_every_key_with_default(file: str, foreign_keys: set[str]) -> None:
    shown = yaml.safe_load((CONF / file).read_text(encoding="utf-8"))
    assert set(shown) == set(Config.model_fields)
    for section in SECTIONS:
        model = Config.model_fields[section].annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        keys = set(model.model_fields) - (foreign_keys if section == "source" else set())
        assert set(shown[section]) == keys, section
        if section != "source":
            assert shown[section] == model().model_dump(), section


def test_key_descriptions_complete() -> None:
    for section in SECTIONS:
        model = Config.model_fields[section].annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        for name, field in model.model_fields.items():
            assert field.description, f"{section}.{name}"


def test_reference_page_matches_models() -> None:
    page = HOME / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == build_page(), "python -m tools.reference > docs/configuration.md"
