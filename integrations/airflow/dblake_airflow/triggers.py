"""Wait in Airflow's triggerer, without a worker's slot, until ``status`` shows what a sensor waits for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from dblake_airflow.conditions import Condition, WaitFailed, is_met
from dblake_airflow.status import await_status


class StatusTrigger(BaseTrigger):
    """Fires once a condition is met, or can no longer be: the event's ``error`` is the reason, or None."""

    def __init__(
        self, conf: str, condition: Condition, seconds: float, env: dict[str, str] | None = None,
        command: str | None = None,
    ) -> None:
        super().__init__()
        self.conf, self.condition, self.seconds = conf, condition, seconds
        self.env, self.command = env or {}, command

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores, encrypted: the arguments."""
        return f"{__name__}.StatusTrigger", {
            "conf": self.conf, "condition": dict(self.condition), "seconds": self.seconds, "env": self.env,
            "command": self.command,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Read ``status`` every so many seconds; a reading that may succeed later is no end."""
        while True:
            try:
                document = await await_status(self.conf, os.environ | self.env, self.command)
                if is_met(self.condition, document):
                    yield TriggerEvent({"error": None})
                    return
            except (AirflowFailException, WaitFailed) as error:
                yield TriggerEvent({"error": str(error)})
                return
            except AirflowException as error:
                self.log.warning("%s", error)
            await asyncio.sleep(self.seconds)
