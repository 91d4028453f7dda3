"""The course of the demo: schedule, let workers run, compare with a plain loop, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from gangline.demo.app import Facts, app, digest, tick
from gangline.demo.check import Findings, check
from gangline.demo.files import Files
from gangline.demo.fleet import Fleet
from gangline.store.insights import Insights

_BATCH = 1_000
_LOOK_EVERY = 0.2

DIGEST = digest.definition.name
TICK = tick.definition.name


class Progress(Protocol):
    """Is told how far the demo is."""

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` files."""

    def reach(self, done: int) -> None:
        """Tell that ``done`` files of the stage are done."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of the demo.

    Attributes:
        files: how many were to be processed.
        size: the bytes of those files.
        skipped: links, devices, unreadable files.
        runs: executions of the job, as the history tells them.
        claims: how often a record was taken; each execution takes one.
        seconds: from the start of the first run to the end of the last one.
        write_conflicts_per_job: on the whole server, meanwhile; ``None`` if it does not tell.
        ticks: runs of the recurrent job beside.
        plain_seconds: how long a plain loop took for the same files afterwards, when the system has them in memory.
    """

    files: int
    size: int
    skipped: int
    runs: int
    findings: Findings
    claims: int
    seconds: float
    write_conflicts_per_job: float | None
    ticks: int
    processes: int
    plain_seconds: float

    @property
    def right(self) -> bool:
        """Whether no file is missing, doubled or different."""
        return not self.findings.problems

    @property
    def jobs_per_second(self) -> float:
        """How many jobs ended in a second."""
        return self.runs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class _Played:
    """What the history and the server tell after the workers have ended."""

    executions: list[Mapping[str, Any]]
    ticks: int
    conflicts: int | None


def run_demo(
    files: Files,
    *,
    uri: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    processes: int,
    progress: Progress,
) -> Report:
    """Process ``files`` by ``processes`` workers at ``uri``, whose database must be empty, and check the results.

    Raises:
        WorkerEnded: a worker process ended by itself.
        ConfigurationError: the URI cannot be read.
    """
    app.configure(uri=uri)
    played = asyncio.run(_play(list(files.stamps), Fleet(command, environment, processes), progress))
    expected, plain_seconds = _plain_loop(list(files.stamps), progress)
    conflicts = None if played.conflicts is None else played.conflicts / len(files.stamps)
    return Report(
        files=len(expected),
        size=sum(facts["size"] for facts in expected.values()),
        skipped=files.skipped,
        runs=len(played.executions),
        findings=check(expected, played.executions, lambda path: None if files.changed(path) else _facts(path)),
        claims=len({execution["executionId"] for execution in played.executions}),
        seconds=_span(played.executions),
        write_conflicts_per_job=conflicts,
        ticks=played.ticks,
        processes=processes,
        plain_seconds=plain_seconds,
    )


async def _play(paths: list[Path], fleet: Fleet, progress: Progress) -> _Played:
    async with app:
        insights = app.insights
        await _schedule(paths, progress)
        before = await insights.write_conflicts()
        progress.begin("Running jobs", len(paths))
        async with fleet:
            await _follow(insights, fleet, len(paths), progress)
        after = await insights.write_conflicts()
        return _Played(
            executions=[execution async for execution in insights.executions_of(DIGEST)],
            ticks=await insights.count_executions(TICK),
            conflicts=None if before is None or after is None else after - before,
        )


async def _schedule(paths: list[Path], progress: Progress) -> None:
    progress.begin("Scheduling", len(paths))
    for start in range(0, len(paths), _BATCH):
        for outcome in await app.schedule_many([digest.call(path=path) for path in paths[start : start + _BATCH]]):
            if outcome.error is not None:
                raise outcome.error
        progress.reach(min(start + _BATCH, len(paths)))


async def _follow(insights: Insights, fleet: Fleet, total: int, progress: Progress) -> None:
    """Wait until every job has ended; one that failed for good has as well."""
    while True:
        fleet.check()
        runs = await insights.count_executions(DIGEST)
        progress.reach(min(runs, total))
        if runs >= total and not await _left(insights):
            return
        await asyncio.sleep(_LOOK_EVERY)


async def _left(insights: Insights) -> int:
    counts = [job for job in await insights.counts() if job.name == DIGEST]
    return sum(job.scheduled + job.ready + job.running + job.stale for job in counts)


def _plain_loop(paths: list[Path], progress: Progress) -> tuple[dict[Path, Facts], float]:
    """Do the same work without a queue. A decorated function is still a function."""
    progress.begin("Plain loop", len(paths))
    started = time.perf_counter()
    found = dict(_read(paths, progress))
    return found, time.perf_counter() - started


def _read(paths: list[Path], progress: Progress) -> Iterator[tuple[Path, Facts]]:
    for number, path in enumerate(paths, start=1):
        facts = _facts(path)
        if facts is not None:
            yield path, facts
        if number % _BATCH == 0 or number == len(paths):
            progress.reach(number)


def _facts(path: Path) -> Facts | None:
    """``None`` for a file that is gone by now."""
    try:
        return digest(path)
    except OSError:
        return None


def _span(executions: Sequence[Mapping[str, Any]]) -> float:
    if not executions:
        return 0.0
    first: datetime = min(execution["startedAt"] for execution in executions)
    last: datetime = max(execution["endedAt"] for execution in executions)
    return (last - first).total_seconds()
