"""A store that loses answers, throttles and resets connections all the time, under load: nothing is lost or doubled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dblake.base.core.processes import stop_process
from tests.support.rig import Job, Rig, T, rig_on
from tests.support.s3 import S3Server, location
from tests.support.s3_proxy import Fault, Rule, S3Proxy

_TRANSACTIONS = 10_000
_LOAD_SECONDS, _FINISH_SECONDS = 600, 300
_FAULTS = (
    # Numbers without a common factor, so that every kind of request meets every fault.
    Rule(Fault.LOST_ANSWER, "^PUT ", every=7), Rule(Fault.FAILED_ANSWER, "^PUT ", every=11),
    Rule(Fault.LOST_ANSWER, every=31), Rule(Fault.SLOW_DOWN, every=17), Rule(Fault.RESET, every=23),
)


class Restarted:
    """A job as a supervisor runs it: started again whenever it ends with 75."""

    def __init__(self, rig: Rig, job: str, *arguments: str) -> None:
        self._rig, self._job, self._arguments = rig, job, arguments
        self.starts = 0
        self._start()

    def restart_if_ended(self) -> bool:
        """Start the job again if it has ended with 75; return True if it has ended with 0. Fail for any other code."""
        code = self._process.poll()
        if code is None:
            return False
        assert code in (0, 75), self._process.communicate()[1]
        if code == 75:
            self._start()
        return code == 0

    def stop(self) -> None:
        """Stop the job."""
        stop_process(self._process, 60, group=True)
        self._process.communicate()

    def _start(self) -> None:
        self._process: Job = self._rig.start(*self._arguments, job=self._job)
        self.starts += 1


def finish(rig: Rig, job: str, *arguments: str) -> int:
    """Run a job until it ends with 0; return how often it was started."""
    running, deadline = Restarted(rig, job, *arguments), time.monotonic() + _FINISH_SECONDS
    while not running.restart_if_ended():
        assert time.monotonic() < deadline, f"{job} did not succeed in {running.starts} starts"
        time.sleep(0.2)
    return running.starts


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_load_on_faulty_store_ends_equal(s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A dump runs beside the load; capture and everything right of it reach the store through the proxy alone."""
    with S3Proxy(s3.port) as proxy, rig_on(
        "postgres", request, tmp_path, warehouse=location(s3, port=proxy.port)
    ) as rig:
        rig.lake.dump(T)
        proxy.set(*_FAULTS)
        jobs = [Restarted(rig, "capture"), Restarted(rig, "run", "--continuous", "--check", "never")]
        deadline = time.monotonic() + _LOAD_SECONDS
        with rig.load(seed=22, pause=0.005) as writers:
            while writers.transactions < _TRANSACTIONS:
                assert time.monotonic() < deadline, f"only {writers.transactions} transactions"
                for job in jobs:
                    assert not job.restart_if_ended()
                time.sleep(0.2)
        for job in jobs:
            job.stop()
        starts = [finish(rig, "capture", "--until-caught-up"), finish(rig, "run", "--check", "never")]
        counts = proxy.fault_counts()
        proxy.set()
        assert [dump["state"] for dump in rig.lake.dumps()] == ["done"]
        assert rig.verify_tables() >= _TRANSACTIONS
        assert set(counts) == {rule.fault for rule in _FAULTS}
        assert min(counts.values()) >= 10, counts
        print(f"{writers.transactions} transactions; faults: {counts}; starts: "
              f"{[job.starts for job in jobs] + starts}")
