"""The settings of outputs: the documented examples load, and reach the output's class; secrets stay references."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dblake.base.core.errors import ConfigError
from dblake.config import Config, load_config
from dblake.serve.outputs.protocol import OutputContext
from dblake.serve.outputs.registry import make_format, make_output
from dblake.serve.outputs.sql.settings import SqlSettings

_HOME = Path(__file__).parents[4]
_BASE = {
    "warehouse": "./w", "progress": "file:./p",
    "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
               "password": "${env:SHOP_PASSWORD}", "tables": ["public.*"]},
}


def _load(folder: Path, outputs: object) -> Config:
    file = folder / "conf.yaml"
    file.write_text(yaml.safe_dump({**_BASE, "outputs": outputs}, sort_keys=False), encoding="utf-8")
    return load_config(file)


def test_documented_outputs_can_be_constructed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (_HOME / "docs" / "outputs.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```yaml\n(outputs:.*?)```", page, re.DOTALL)
    assert len(snippets) == 6
    made = []
    for snippet in snippets:
        for name in re.findall(r"\$\{env:(\w+)\}", snippet):
            monkeypatch.setenv(name, f"the {name}")
        config = _load(tmp_path, yaml.safe_load(snippet)["outputs"])
        for name, output in config.outputs.items():
            secrets = {key: one.read().get_secret_value() for key, one in output.secrets().items()}
            context = OutputContext(name, ["shop"], make_format(output.format), secrets)
            made.append((type(make_output(output.kind, context, output.own_settings())).__name__, sorted(secrets)))
    assert made == [
        ("SqlOutput", ["password"]), ("KafkaOutput", []), ("HttpOutput", ["headers.Authorization"]),
        ("KafkaOutput", []), ("KafkaOutput", ["settings.sasl.password"]), ("KafkaOutput", []), ("SearchIndex", []),
        ("ActivityLog", []),
    ]


@pytest.mark.parametrize(
    "output",
    [
        {"type": "kafka", "brokers": "b:1", "settings": {"sasl.password": "hunter2"}},
        {"type": "http", "url": "https://h/", "headers": {"Authorization": "Bearer hunter2"}},
        {"type": "kafka", "brokers": "b:1", "format": "avro", "format_settings": {"password": "hunter2"}},
        {"type": "sql", "url": "postgresql://u@h/d", "password": "hunter2"},
    ],
)
def test_literal_secrets_are_rejected_unquoted(tmp_path: Path, output: object) -> None:
    with pytest.raises(ConfigError, match="must be a reference") as caught:
        _load(tmp_path, {"one": output})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:hunter2@h/d", "oracle://u@h/d", "postgresql://h/d", "postgresql://u@h", "mysql://u@h:x/d",
     "mysql://u@h/d?ssl=0", "mysql://u@h/a/b"],
)
def test_urls_without_their_form_are_rejected_unquoted(url: str) -> None:
    with pytest.raises(ConfigError, match=r"outputs\.copy\.url") as caught:
        SqlSettings.parse("copy", url)
    assert "hunter2" not in str(caught.value)


def test_sql_urls_have_default_ports_and_quoted_users() -> None:
    settings = SqlSettings.parse("copy", "mariadb://us%40er@db.example:3307/my%20shop", password="secret")
    assert (settings.flavour, settings.host, settings.port) == ("mariadb", "db.example", 3307)
    assert (settings.user, settings.database) == ("us@er", "my shop")
    assert "secret" not in repr(settings)
