"""The configuration file of one source: its keys, their defaults and the faults of a file.

``models`` declares the keys, ``load`` reads a file into them, ``file`` records the line of every key, ``references``
resolves secrets. Jobs and pipelines read the configuration; packages behind them receive values.
"""

from __future__ import annotations

from dblake.config.airflow import AirflowConfig
from dblake.config.capture import CaptureConfig, DumpConfig
from dblake.config.load import Scheduled, load_airflow, load_config
from dblake.config.models import Config
from dblake.config.outputs import CustomOutputConfig, OutputConfig
from dblake.config.references import PasswordReference
from dblake.config.stages import MaintainConfig

__all__ = [
    "AirflowConfig", "CaptureConfig", "Config", "CustomOutputConfig", "DumpConfig", "MaintainConfig", "OutputConfig",
    "PasswordReference", "Scheduled", "load_airflow", "load_config",
]
