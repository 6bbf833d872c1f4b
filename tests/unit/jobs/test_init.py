"""``init`` with arguments that cannot become a configuration: an error, and no file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dblake.base.core.errors import DblakeError
from jobs.init import init


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "Database URL is missing. Next: give a URL"),
        (["postgresql://ann@db/shop"], "Password of ann is missing. Next: give --password-env VAR"),
        (["postgresql://ann:p@db/shop", "--name", "a/b"], "'a/b' is no name of a source"),
        (["postgresql://ann:p@db/shop", "--tables", "!x"], "source.tables"),
        (["postgresql://ann:p@db/shop", "--conf", "none/shop.yaml"], "cannot be written: No such file or directory"),
    ],
)  # fmt: skip
def test_init_with_faulty_arguments_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(init, arguments)
    assert isinstance(done.exception, DblakeError) and error in str(done.exception)
    assert list(tmp_path.iterdir()) == []
