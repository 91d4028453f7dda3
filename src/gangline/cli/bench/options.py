"""Options that the benchmarks share, and lists as option values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gangline.jobs.errors import ConfigurationError
from gangline.jobs.settings import MAX_PARTITIONS, whole_number

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON to FILE.")]
TimeLimit = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="When a row is cut, and marked as such.")]
Jobs = Annotated[int, typer.Option(min=1, help="How many jobs a row has.")]
Processes = Annotated[int, typer.Option(min=1, max=64, help="How many processes do the work.")]
Partitions = Annotated[int, typer.Option(min=1, max=MAX_PARTITIONS, help="How many partitions the queue has.")]
PartitionCounts = Annotated[str, typer.Option("--partitions", metavar="LIST", help="Numbers of partitions.")]
Claimers = Annotated[int, typer.Option(min=1, max=10_000, help="Coroutines that claim at once, in all.")]
Batch = Annotated[int, typer.Option(min=1, max=1_000, help="The most records of one claim.")]
Concurrency = Annotated[int, typer.Option(min=1, max=10_000, help="Jobs that run at once in a process.")]
PollInterval = Annotated[float, typer.Option(min=0.01, metavar="SECONDS", help="How often an idle worker looks.")]


def words(value: str) -> list[str]:
    """Return the members of a list such as ``dogs,batch``."""
    return [word.strip() for word in value.split(",") if word.strip()]


def numbers(setting: str, value: str, *, at_most: int | None = None) -> list[int]:
    """Return the members of a list such as ``1,8,32``.

    Raises:
        ConfigurationError: one is no number, or out of bounds.
    """
    try:
        found = [int(word) for word in words(value)]
    except ValueError as error:
        raise ConfigurationError(setting, f"{value!r} is no list of numbers", "Give one such as 1,8,32") from error
    return [whole_number(setting, number, at_most=at_most) for number in found]


def switches(setting: str, value: str) -> list[bool]:
    """Return the members of a list of ``on`` and ``off``.

    Raises:
        ConfigurationError: one is something else.
    """
    found = words(value)
    if not {*found} <= {"on", "off"}:
        raise ConfigurationError(setting, f"{value!r} is no list of on and off", "Give on, off, or on,off")
    return [word == "on" for word in found]
