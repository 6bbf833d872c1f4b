"""Wait for a maximum lag, a point, or a dump, by ``status --json --offline``, which starts no JVM.

Guarantee: between two readings a sensor occupies no worker's slot: it waits in the triggerer if it is ``deferrable``,
and is rescheduled otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from airflow.sdk import BaseSensorOperator
from airflow.sdk import conf as airflow_settings
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblake_airflow.conditions import Condition, WaitFailed, is_met, require_point
from dblake_airflow.links import ReportLink
from dblake_airflow.status import read_status
from dblake_airflow.triggers import StatusTrigger

Stage = Literal["landing", "events", "state"]


class StatusSensor(BaseSensorOperator):
    """What all sensors have in common; ``deferrable`` is by default Airflow's ``default_deferrable``."""

    template_fields: Sequence[str] = ("conf", "env")
    operator_extra_links = (ReportLink(),)

    def __init__(
        self, *, conf: str, env: Mapping[str, str] | None = None, command: str | None = None,
        deferrable: bool | None = None, **arguments: Any,
    ) -> None:
        super().__init__(**({"mode": "reschedule"} | arguments))
        self.conf = conf
        self.env = dict(env or {})
        self.command = command
        self.deferrable = (
            airflow_settings.getboolean("operators", "default_deferrable", fallback=False)
            if deferrable is None else deferrable
        )

    def condition(self) -> Condition:
        """Return what is waited for."""
        raise NotImplementedError

    def execute(self, context: Any) -> None:
        """Wait in the triggerer if the sensor is deferrable and the condition does not hold yet."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            trigger = StatusTrigger(self.conf, self.condition(), self.poke_interval, self.env, self.command)
            self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))

    def resume(self, context: Any, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        """End the wait. Raises AirflowFailException if what is waited for can no longer come."""
        if event["error"]:
            raise AirflowFailException(event["error"])

    def poke(self, context: Any) -> bool:  # noqa: ARG002
        """Return whether the condition holds."""
        try:
            document = read_status(self.conf, os.environ | self.env, self.command)
            met = is_met(self.condition(), document)
        except (AirflowFailException, WaitFailed) as error:
            raise AirflowFailException(str(error)) from None
        except AirflowException as error:
            self.log.warning("%s", error)
            return False
        stages = {name: (stage["position"], stage["lag_seconds"]) for name, stage in document["stages"].items()}
        self.log.info("%s: %s, stages %s", self.condition(), "met" if met else "not yet", stages)
        return met


class LagSensor(StatusSensor):
    """Waits until a stage holds everything committed at the source up to ``seconds`` ago."""

    def __init__(self, *, seconds: float, stage: Stage = "state", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seconds = seconds
        self.stage = stage

    def condition(self) -> Condition:
        """Return the lag that is waited for."""
        return {"stage": self.stage, "seconds": self.seconds}


class PointSensor(StatusSensor):
    """Waits until a stage has reached a point, ``incarnation/lsn``, such as one that another task returned."""

    template_fields = (*StatusSensor.template_fields, "point")

    def __init__(self, *, point: str, stage: Stage = "state", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.point = point
        self.stage = stage

    def condition(self) -> Condition:
        """Return the point that is waited for. Raises AirflowFailException for a text that is none."""
        try:
            require_point(self.point)
        except ValueError:
            raise AirflowFailException(f"point: {self.point} is no position; write incarnation/lsn") from None
        return {"stage": self.stage, "point": self.point}


class DumpSensor(StatusSensor):
    """Waits until all tables of a dump are read and have landed; fails if one was cancelled or failed."""

    template_fields = (*StatusSensor.template_fields, "dump")

    def __init__(self, *, dump: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.dump = dump

    def condition(self) -> Condition:
        """Return the dump that is waited for."""
        return {"dump": self.dump}
