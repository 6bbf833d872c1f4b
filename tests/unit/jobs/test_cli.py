"""The exit code and the one line on stderr of every ending; each case runs a small job in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[3]
SECRET = "row-value-4711"

JOB = """\
import click
from dblake.base.core import errors
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
         "Next: run again with --verbose and report its output\n"),
    ],
)  # fmt: skip
def test_ending_sets_exit_code_and_message(tmp_path: Path, body: str, code: int, line: str) -> None:
    done = run(tmp_path, JOB.format(body=body), "--conf", CONF)
    assert (done.returncode, done.stderr) == (code, line.replace("{folder}", tmp_path.name))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("__import__('deltalake').DeltaTable('az://container/table')",
         "the warehouse's storage or a Spark host is unreachable"),
        ("__import__('os').write(__import__('os').open('/dev/full', 1), b'x')", "the disk is full"),
        ("raise __import__('py4j.protocol').protocol.Py4JNetworkError('Answer from Java side is empty')",
         "Spark's JVM ended before the job; the system may have killed it for its memory"),
        ("raise __import__('pyspark').errors.PySparkException('java.lang.OutOfMemoryError: Java heap space')",
         "Spark ran out of memory"),
        ("raise __import__('pyspark').errors.PySparkException('ExecutorLostFailure (executor 1 exited)')",
         "Spark lost an executor"),
    ],
)  # fmt: skip
def test_transient_error_exits_75(tmp_path: Path, body: str, reason: str) -> None:
    unreachable = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": "http://127.0.0.1:1/",
                    "AZURE_STORAGE_ACCOUNT_NAME": "x", "AZURE_STORAGE_ACCOUNT_KEY": "eA=="}
    done = run(tmp_path, JOB.format(body=body), "--conf", CONF, **unreachable)
    assert done.returncode == 75
    assert done.stderr.startswith(f"dblake probe: {reason} (at ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("Next: remove the cause and run again\n")


def test_traceback_shown_with_verbose(tmp_path: Path) -> None:
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
def test_usage_error_exits_64(tmp_path: Path, arguments: list[str], line: str) -> None:
    done = run(tmp_path, JOB.format(body="pass"), *arguments)
    assert (done.returncode, done.stderr, done.stdout) == (64, line, "")


def test_missing_configuration_exits_78(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body="pass"), "--conf", "none.yaml")
    assert done.returncode == 78
    assert done.stderr.startswith("dblake probe: the configuration file none.yaml cannot be read: No such file")


def test_configuration_named_by_environment(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body="print(config.source.name)"), DBLAKE_CONF=CONF)
    assert (done.returncode, done.stdout) == (0, "shop\n")


@pytest.mark.parametrize("arguments", [["--conf", CONF, "start"], ["start", "--conf", CONF]])
def test_conf_accepted_before_and_after_subcommand(tmp_path: Path, arguments: list[str]) -> None:
    done = run(tmp_path, GROUP, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "shop\n", "")


def test_group_without_subcommand_exits_64(tmp_path: Path) -> None:
    done = run(tmp_path, GROUP)
    assert done.returncode == 64
    assert "Commands:\n  start" in done.stderr


def test_closed_pipe_exits_0(tmp_path: Path) -> None:
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
        with stop._cond:  # the lock that the main thread briefly holds inside wait()
            os.kill(os.getpid(), signal.SIGTERM)
        print(stop.wait(10))
"""


def test_sigterm_inside_wait_does_not_deadlock(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body=WHILE_WAITING), "--conf", CONF)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


GRACEFUL = """
    with stop_requested() as stop:
        print("ready", flush=True)
        stop.wait(30)
        print("cleaned up", flush=True)
"""


# A signal that arrives just before a sleep begins does not interrupt it.
NAPPING = """
    import time
    print("ready", flush=True)
    for _ in range(300):
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("body", "number", "code", "out"),
    [
        (NAPPING, signal.SIGTERM, 0, ""),
        (NAPPING, signal.SIGINT, 130, ""),
        (GRACEFUL, signal.SIGTERM, 0, "cleaned up\n"),
        (GRACEFUL, signal.SIGINT, 0, "cleaned up\n"),
    ],
)
def test_signal_ends_job_cleanly(tmp_path: Path, body: str, number: signal.Signals, code: int, out: str) -> None:
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
    import os, jobs.cli.frame
    jobs.cli.frame._STOP_SECONDS = 0.5
    os.system("echo ready; exec sleep 30")  # no Python signal handler runs before it returns
"""
STUCK_IN_THREAD = """
    import threading, time, jobs.cli.frame
    jobs.cli.frame._STOP_SECONDS = 0.5
    threading.Thread(target=time.sleep, args=(30,)).start()
    print("ready", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize(
    ("body", "message", "number"),
    [
        (STUCK_IN_C, "dblake probe: still busy", signal.SIGTERM), (STUCK_IN_THREAD, "", signal.SIGTERM),
        (STUCK_IN_THREAD, "dblake probe: interrupted", signal.SIGINT),
    ],
    ids=["main thread", "other thread", "other thread, Ctrl-C"],
)
def test_signal_ends_job_that_does_not_react(
    tmp_path: Path, body: str, message: str, number: signal.Signals
) -> None:
    (tmp_path / "probe.py").write_text(JOB.format(body=body), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "probe.py"), "--conf", CONF],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            code = process.wait(15)
        finally:
            process.kill()
        assert code == (130 if number == signal.SIGINT else 0)
        assert process.stderr.readline().startswith(message)


LOGGED = """
    import logging, os, signal, time
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    except KeyboardInterrupt:
        logging.exception("while sending a command")  # as py4j does
        raise
"""


def test_interrupted_call_of_library_leaves_no_trace(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body=LOGGED), "--conf", CONF)
    assert (done.returncode, done.stderr) == (130, "dblake probe: interrupted\n")


SWALLOWED = """
    import time, jobs.cli.stop
    jobs.cli.stop._UNWIND_SECONDS = 0.5
    class Closing:
        def __del__(self):
            print("ready", flush=True)
            time.sleep(2)
    Closing()  # what a signal raises in a destructor is reported and goes no further
    time.sleep(30)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_in_destructor_ends_job_silently(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "probe.py").write_text(JOB.format(body=SWALLOWED), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "probe.py"), "--conf", CONF],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, err.replace("dblake probe: interrupted\n", "")) == (code, "")


FINALIZED = """\
    import os, signal, sys
    class Signalling:
        def __del__(self, kill=os.kill, process=os.getpid(), number=signal.{number}):
            kill(process, number)
    sys.modules["signalling"] = Signalling()  # the interpreter destroys it after the handlers of signals
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_signal_in_finalization_changes_nothing(tmp_path: Path, number: str) -> None:
    """Python restores the default actions of signals before it destroys modules."""
    code = "from jobs.cli.stop import handle_signals\nhandle_signals()\n" + JOB
    done = run(tmp_path, code.format(body=FINALIZED.strip().format(number=number)), "--conf", CONF)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_log_of_other_library_begins_at_warning(tmp_path: Path) -> None:
    body = "import logging; x = logging.getLogger('x'); x.setLevel('INFO'); x.info('chatter'); x.warning('careful')"
    done = run(tmp_path, JOB.format(body=body), "--conf", CONF)
    assert "chatter" not in done.stderr
    assert "careful" in done.stderr


def test_warning_is_logged_once_an_hour(tmp_path: Path) -> None:
    """A job that runs on meets the same problem each second; each stays one line."""
    body = ("import logging; log = logging.getLogger('dblake.x'); "
            "[(log.warning('table %s is suspended', t), log.info('seen')) for t in 'ab' * 3]")
    done = run(tmp_path, JOB.format(body=body), "--conf", CONF)
    assert [done.stderr.count(f"table {t} is suspended") for t in "ab"] == [1, 1]
    assert done.stderr.count("seen") == 6


def test_json_log_lines_are_objects(tmp_path: Path) -> None:
    body = "import logging; logging.getLogger('dblake.x').info('one %d', 1)"
    body += "; raise errors.Fenced('two', next_step='three')"
    (tmp_path / "shop.yaml").write_text((HOME / "conf" / "quickstart.yaml").read_text())
    done = run(tmp_path, JOB.format(body=body), "--conf", str(tmp_path / "shop.yaml"), DBLAKE_LOG="json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line.pop("at")[:2] for line in lines] == ["20", "20"]
    assert lines == [
        {"level": "INFO", "logger": "dblake.x", "message": "one 1"},
        {"level": "ERROR", "logger": "dblake", "message": "two", "job": "probe", "next": "three", "code": 75},
    ]
    assert done.returncode == 75


def test_json_log_has_usage_error_as_object(tmp_path: Path) -> None:
    done = run(tmp_path, JOB.format(body="pass"), "--nonsense", DBLAKE_LOG="json")
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["message"], line["next"], line["code"], done.returncode) == (
        "No such option '--nonsense'", "see ./spark-submit.sh probe --help", 64, 64,
    )
