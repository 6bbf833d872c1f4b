"""How a job's ending becomes an exit code and one line on stderr; each case is a small job in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
SECRET = "row-value-4711"

JOB = """\
import click
from dblake.core import errors
from jobs.cli.frame import job_options, run_job, stop_requested

@click.command("probe")
@job_options
@click.option("--number", type=int)
def probe(config, number):
    {body}

if __name__ == "__main__":
    run_job(probe)
"""

GROUP = """\
import click
from jobs.cli.frame import job_options, run_job

@click.group("probe")
@job_options
def probe():
    "A group."

@probe.command()
@job_options
def start(config):
    print(config.source.name)

if __name__ == "__main__":
    run_job(probe)
"""


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "DBLAKE_CONF"}
    return kept | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"}


def run(folder: Path, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "probe.py").write_text(code, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(folder / "probe.py"), *arguments],
        env=environment() | variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


CONF = str(HOME / "conf" / "quickstart.yaml")


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("print(config.source.name)", 0, ""),
        ("return 3", 3, ""),
        ("raise click.exceptions.Exit(4)", 4, ""),
        ("raise errors.UsageError('no', next_step='yes')", 64, "dblake probe: no. Next: yes\n"),
        ("raise errors.ConfigError('no', next_step='yes')", 78, "dblake probe: no. Next: yes\n"),
        ("raise errors.Fenced('no', next_step='yes')", 75, "dblake probe: no. Next: yes\n"),
        ("raise errors.WindowInvariantViolated('a\\n b')", 70, "dblake probe: a b\n"),
        ("raise click.UsageError('both.')", 64, "dblake probe: both. Next: see ./spark-submit.sh probe --help\n"),
        ("raise KeyboardInterrupt", 130, "dblake probe: interrupted\n"),
        (f"raise ValueError('{SECRET}')", 70,
         "dblake probe: unexpected ValueError at {folder}/probe.py:9; this is a bug. "
         "Next: run again with --verbose and report what it shows\n"),
    ],
)  # fmt: skip
def test_endings(tmp_path: Path, body: str, code: int, line: str) -> None:
    done = run(tmp_path, JOB.format(body=body), "--conf", CONF)
    assert (done.returncode, done.stderr) == (code, line.replace("{folder}", tmp_path.name))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("__import__('deltalake').DeltaTable('az://container/table')",
         "the warehouse's storage does not answer, or Spark's machines do not"),
        ("__import__('os').write(__import__('os').open('/dev/full', 1), b'x')", "a disk is full"),
        ("raise __import__('py4j.protocol').protocol.Py4JNetworkError('Answer from Java side is empty')",
         "Spark's JVM ended before the job: killed, for memory perhaps"),
        ("raise __import__('pyspark').errors.PySparkException('java.lang.OutOfMemoryError: Java heap space')",
         "Spark ran out of memory"),
    ],
)  # fmt: skip
def test_what_may_be_gone_the_next_time_is_worth_another_try(tmp_path: Path, body: str, told: str) -> None:
    nobody_there = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": "http://127.0.0.1:1/",
                    "AZURE_STORAGE_ACCOUNT_NAME": "x", "AZURE_STORAGE_ACCOUNT_KEY": "eA=="}
    done = run(tmp_path, JOB.format(body=body), "--conf", CONF, **nobody_there)
    assert done.returncode == 75
    assert done.stderr.startswith(f"dblake probe: {told} (") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("Next: see to that, then run again\n")


def test_a_traceback_is_shown_only_when_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body=f"raise ValueError('{SECRET}')"), "--conf", CONF, "--verbose")
    assert done.returncode == 70
    assert f"ValueError: {SECRET}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--nonsense"], "dblake probe: No such option '--nonsense'. Next: see ./spark-submit.sh probe --help\n"),
        (["--number", "x"],
         "dblake probe: Invalid value for '--number': 'x' is not a valid integer. "
         "Next: see ./spark-submit.sh probe --help\n"),
        ([], "dblake probe: no configuration file. Next: give --conf FILE or set DBLAKE_CONF; "
             "conf/ has files to start from\n"),
    ],
)  # fmt: skip
def test_usage(tmp_path: Path, arguments: list[str], line: str) -> None:
    done = run(tmp_path, JOB.format(body="pass"), *arguments)
    assert (done.returncode, done.stderr, done.stdout) == (64, line, "")


def test_a_missing_configuration_file(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body="pass"), "--conf", "none.yaml")
    assert done.returncode == 78
    assert done.stderr.startswith("dblake probe: the configuration file none.yaml cannot be read: No such file")


def test_the_configuration_may_be_named_by_the_environment(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body="print(config.source.name)"), DBLAKE_CONF=CONF)
    assert (done.returncode, done.stdout) == (0, "shop\n")


@pytest.mark.parametrize("arguments", [["--conf", CONF, "start"], ["start", "--conf", CONF]])
def test_conf_before_or_after_a_subcommand(tmp_path: Path, arguments: list[str]) -> None:
    done = run(tmp_path, GROUP, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "shop\n", "")


def test_a_group_without_its_subcommand_is_usage(tmp_path: Path) -> None:
    done = run(tmp_path, GROUP)
    assert done.returncode == 64
    assert "Commands:\n  start" in done.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(JOB.format(body="[print(n) for n in range(200_000)]"), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", '"$0" "$1" --conf "$2" | head -n 1; echo "${PIPESTATUS[0]}"',
         sys.executable, str(tmp_path / "probe.py"), CONF],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n0\n", "")


WHILE_WAITING = """
    import os, signal
    with stop_requested() as stop:
        with stop._cond:  # what the main thread holds for a moment inside wait()
            os.kill(os.getpid(), signal.SIGTERM)
        print(stop.wait(10))
"""


def test_a_stop_that_comes_inside_wait_does_not_lock_up(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body=WHILE_WAITING), "--conf", CONF)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


GRACEFUL = """
    with stop_requested() as stop:
        print("ready", flush=True)
        stop.wait(30)
        print("tidied up", flush=True)
"""


@pytest.mark.parametrize(
    ("body", "number", "code", "out"),
    [
        ("import time; print('ready', flush=True); time.sleep(30)", signal.SIGTERM, 0, ""),
        ("import time; print('ready', flush=True); time.sleep(30)", signal.SIGINT, 130, ""),
        (GRACEFUL, signal.SIGTERM, 0, "tidied up\n"),
        (GRACEFUL, signal.SIGINT, 0, "tidied up\n"),
    ],
)
def test_stopping(tmp_path: Path, body: str, number: signal.Signals, code: int, out: str) -> None:
    (tmp_path / "probe.py").write_text(JOB.format(body=body), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "probe.py"), "--conf", CONF],
        env=environment(), stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            rest, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, rest) == (code, out)


STUCK_IN_C = """
    import os, pipelines.cli
    pipelines.cli._STOP_SECONDS = 0.5
    os.system("echo ready; exec sleep 30")  # no Python signal handler runs before it returns
"""
STUCK_IN_THREAD = """
    import threading, time, pipelines.cli
    pipelines.cli._STOP_SECONDS = 0.5
    threading.Thread(target=time.sleep, args=(30,)).start()
    print("ready", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("body", [STUCK_IN_C, STUCK_IN_THREAD], ids=["main thread", "other thread"])
def test_sigterm_ends_job_that_does_not_react(tmp_path: Path, body: str) -> None:
    (tmp_path / "probe.py").write_text(JOB.format(body=body), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "probe.py"), "--conf", CONF],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        try:
            code = process.wait(15)
        finally:
            process.kill()
        assert code == 0
        assert process.stderr.readline().startswith("dblake probe: still busy")


def test_as_json_every_line_is_an_object(tmp_path: Path) -> None:
    body = "import logging; logging.getLogger('dblake.x').info('one %d', 1)"
    body += "; raise errors.Fenced('two', next_step='three')"
    (tmp_path / "shop.yaml").write_text((HOME / "conf" / "quickstart.yaml").read_text())
    done = run(tmp_path, JOB.format(body=body), "--conf", str(tmp_path / "shop.yaml"), DBLAKE_LOG="json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line.pop("at")[:2] for line in lines] == ["20", "20"]
    assert lines == [
        {"level": "INFO", "logger": "dblake.x", "message": "one 1"},
        {"level": "ERROR", "logger": "dblake", "message": "two. Next: three", "job": "probe"},
    ]
    assert done.returncode == 75
