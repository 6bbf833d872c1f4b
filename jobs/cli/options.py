"""Options that several commands share: ports, the engine, and flags that exclude each other, which click lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from dblake.base.core.errors import UsageError
from dblake.config import Config


def port_option(name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option with the number of a port on ``status.listen``."""
    return click.option(name, type=click.IntRange(1, 65535), metavar="PORT", help=text)


def exclusive_flags(
    name: str, helps: dict[str, str], *, default: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a flag per key of ``helps``; the command receives the given one, or ``default``, as ``name``."""

    def choose(context: click.Context, option: click.Parameter, is_given: bool) -> None:
        if not is_given:
            return
        earlier = context.params.get(name)
        if earlier is not None:
            raise UsageError(f"--{earlier} and --{option.name} contradict each other",
                             next_step=f"give one of {', '.join(f'--{flag}' for flag in helps)}")
        context.params[name] = option.name

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(**options: Any) -> Any:
            return function(**{name: default, **options})

        decorated: Callable[..., Any] = wrapper
        for flag, text in reversed(list(helps.items())):
            option = click.option(f"--{flag}", is_flag=True, expose_value=False, callback=choose, help=text)
            decorated = option(decorated)
        return decorated

    return decorate


def engine_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--engine``, which overrides ``spark.engine`` in the configuration that the command receives."""

    @click.option("--engine", type=click.Choice(["auto", "spark"]),
                  help="auto: work where it is cheapest; spark: in Spark tasks alone. Default: spark.engine.")
    @functools.wraps(function)
    def wrapper(config: Config, engine: str | None, **options: Any) -> Any:
        if engine is not None:
            config = config.model_copy(update={"spark": config.spark.model_copy(update={"engine": engine})})
        return function(config=config, **options)

    return wrapper
