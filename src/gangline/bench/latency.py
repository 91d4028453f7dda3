"""``bench latency``: how long a job waits on an idle queue."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gangline.app import Gangline
from gangline.bench.crew import run_together, signals
from gangline.bench.queue import opened, start_over
from gangline.bench.report import Progress, Row, quantile
from gangline.jobs.errors import ConfigurationError
from gangline.worker.loop import run

SCENES = ("same-process", "other-process", "delayed")

_PATIENCE = 30.0
_DELAY = timedelta(milliseconds=400)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One row to measure.

    Attributes:
        scene: who schedules: the worker's own process, or another one; ``delayed`` is another one, 400 ms ahead.
        change_stream: whether the worker is told of new records, or only polls.
        pause: the longest time between two jobs in seconds; each is drawn at random, so that no poll is in step.
    """

    scene: str
    change_stream: bool
    jobs: int
    partitions: int
    poll_interval: float
    pause: float


@dataclass(frozen=True, kw_only=True)
class LatencyRow(Row):
    """What the waits came to: from the call of ``schedule``, or the instant that a job was due, to its start.

    Attributes:
        schedule_p50_ms: how long the call of ``schedule`` itself took, which is part of the wait.
    """

    scene: str
    change_stream: bool
    jobs: int
    partitions: int
    poll_interval: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    schedule_p50_ms: float


@dataclass(frozen=True, kw_only=True)
class _Part:
    uri: str
    wait: Wait
    works: bool
    schedules: bool


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """By the number of the job, on the clock that all processes of a host share."""

    started: dict[int, float]
    due: dict[int, float]
    calls: Sequence[float]


def check(wait: Wait) -> None:
    """Raise :class:`ConfigurationError` for a scene that is none."""
    if wait.scene not in SCENES:
        raise ConfigurationError("scene", f"{wait.scene!r} is none", f"Use some of {', '.join(SCENES)}")


def measure(uri: str, wait: Wait, progress: Progress) -> LatencyRow:
    """Measure ``wait`` in the database of ``uri``, which is emptied for it.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    asyncio.run(_empty(uri))
    together = wait.scene == "same-process"
    parts = [_Part(uri=uri, wait=wait, works=True, schedules=together)]
    if not together:
        parts.append(_Part(uri=uri, wait=wait, works=False, schedules=True))
    progress.begin(f"{wait.scene}, {'change stream' if wait.change_stream else 'polling'}", wait.jobs)
    limit = time.monotonic() + wait.jobs * (wait.pause + wait.poll_interval + _DELAY.total_seconds()) + _PATIENCE

    def watch(done: int) -> bool:
        progress.reach(min(done, wait.jobs))
        return done >= wait.jobs or time.monotonic() > limit

    return _row(wait, run_together(_play, parts, watch=watch))


def _row(wait: Wait, seen: Sequence[_Seen]) -> LatencyRow:
    started = {number: at for part in seen for number, at in part.started.items()}
    due = {number: at for part in seen for number, at in part.due.items()}
    waits = [(started[number] - due[number]) * 1000 for number in due if number in started]
    row = LatencyRow(
        scene=wait.scene,
        change_stream=wait.change_stream,
        jobs=len(waits),
        partitions=wait.partitions,
        poll_interval=wait.poll_interval,
        p50_ms=quantile(waits, 0.5),
        p95_ms=quantile(waits, 0.95),
        p99_ms=quantile(waits, 0.99),
        max_ms=max(waits, default=0.0),
        schedule_p50_ms=quantile([call * 1000 for part in seen for call in part.calls], 0.5),
    )
    missing = wait.jobs - len(waits)
    return replace(row, problems=[f"{missing} jobs never started"]) if missing else row


async def _empty(uri: str) -> None:
    async with opened(uri) as connection:
        await start_over(connection, plain=False)


def _play(part: _Part) -> _Seen:
    return run(_take_part(part))


async def _take_part(part: _Part) -> _Seen:
    wait, seen = part.wait, _Seen(started={}, due={}, calls=[])
    async with Gangline(part.uri, partitions=wait.partitions) as app:

        @app.event(name="bench")
        async def job(number: int) -> None:
            seen.started[number] = time.monotonic()
            signals().add(1)

        worker = app.worker(poll_interval=wait.poll_interval, change_stream=wait.change_stream)
        if part.works:
            await worker.start()
        calls: list[float] = []
        signals().ready()
        if part.schedules:
            for number in range(wait.jobs):
                await asyncio.sleep(random.uniform(wait.pause / 2, wait.pause))
                began = time.monotonic()
                seen.due[number] = began + (_DELAY.total_seconds() if wait.scene == "delayed" else 0.0)
                await job.options(run_in=_DELAY if wait.scene == "delayed" else 0).schedule(number)
                calls.append(time.monotonic() - began)
        await asyncio.to_thread(signals().wait_for_stop)
        await worker.stop()
    return replace(seen, calls=calls)
