"""``bench priority``: how often a job overtakes one of higher priority, for each bound of a claim's batch."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from gangline.app import Gangline
from gangline.bench.crew import run_together, signals
from gangline.bench.queue import JOB, due_records, fill, opened, start_over
from gangline.bench.report import Progress, Row
from gangline.store.connection import Document
from gangline.worker.loop import run

_SEED = 20_240_101  # the same queue in every row
_REPORT_EVERY = 0.02


@dataclass(frozen=True, kw_only=True)
class Mix:
    """One row to measure: jobs of all priorities, due from the beginning, for one worker.

    Attributes:
        priorities: how many there are; the jobs are spread over them evenly, and shuffled.
        max_batch: the most records of one claim.
        seconds: when the row is cut.
    """

    jobs: int
    priorities: int
    partitions: int
    concurrency: int
    max_batch: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PriorityRow(Row):
    """How far the order of the starts was from that of the priorities.

    Priority is strict within a partition. Across partitions a claim cannot see the others, so that some jobs are
    overtaken also when each claim takes a single record: that row is the baseline.

    Attributes:
        overtakings: starts of a job while one of higher priority waited.
        overtaken_share: of all starts.
        mean_rank_error: by how many places a start was away from where its priority belongs, on average.
        worst_overtaken: how many jobs of lower priority started before the last one of the highest.
        cut: the time limit ended it; jobs that never started count as waiting.
    """

    max_batch: int
    priorities: int
    partitions: int
    concurrency: int
    jobs: int
    seconds: float
    jobs_per_second: float
    overtakings: int
    overtaken_share: float
    mean_rank_error: float
    worst_overtaken: int
    cut: bool


@dataclass(frozen=True, kw_only=True)
class _Share:
    uri: str
    mix: Mix


@dataclass(kw_only=True)
class _Tally:
    """The numbers of the jobs in the order of their starts, and when the first and the last one started."""

    order: list[int] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0


def measure(uri: str, mix: Mix, progress: Progress) -> PriorityRow:
    """Measure ``mix`` in the database of ``uri``, which is emptied for it.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    progress.begin(f"batches of {mix.max_batch}", mix.jobs)
    asyncio.run(_prepare(uri, mix))
    began = 0.0

    def begin() -> None:
        nonlocal began
        began = time.monotonic()

    def watch(done: int) -> bool:
        progress.reach(min(done, mix.jobs))
        return time.monotonic() - began > mix.seconds or (done >= mix.jobs and not asyncio.run(_left(uri)))

    [tally] = run_together(_work, [_Share(uri=uri, mix=mix)], begin=begin, watch=watch)
    return _row(mix, tally, asyncio.run(_left(uri)))


def _row(mix: Mix, tally: _Tally, left: int) -> PriorityRow:
    ranks = _ranks(mix)
    starts = [ranks[number] for number in tally.order]
    overtakings = sum(_overtakings(starts, Counter(ranks)))
    seconds, cut = tally.last - tally.first, len(starts) < mix.jobs
    return PriorityRow(
        max_batch=mix.max_batch,
        priorities=mix.priorities,
        partitions=mix.partitions,
        concurrency=mix.concurrency,
        jobs=len(starts),
        seconds=seconds,
        jobs_per_second=len(starts) / seconds if seconds else 0.0,
        overtakings=overtakings,
        overtaken_share=overtakings / max(len(starts), 1),
        mean_rank_error=sum(_rank_errors(starts, Counter(ranks))) / max(len(starts), 1),
        worst_overtaken=_worst(starts, max(ranks)),
        cut=cut,
        problems=_problems(mix, tally.order, left, cut=cut),
    )


# The order of starts. A rank is a priority: the higher goes first.


def _overtakings(starts: Sequence[int], waiting: Counter[int]) -> Iterator[bool]:
    """Tell for each start whether a job of higher rank had not started yet."""
    for rank in starts:
        yield any(count > 0 for other, count in waiting.items() if other > rank)
        waiting[rank] -= 1


def _rank_errors(starts: Sequence[int], ranks: Counter[int]) -> Iterator[int]:
    """Tell for each start how many places it is away from the places of its rank in the right order."""
    places: dict[int, range] = {}
    end = 0
    for rank in sorted(ranks, reverse=True):
        places[rank] = range(end, end + ranks[rank])
        end += ranks[rank]
    for place, rank in enumerate(starts):
        yield max(places[rank].start - place, place - places[rank].stop + 1, 0)


def _worst(starts: Sequence[int], highest: int) -> int:
    last = max((place for place, rank in enumerate(starts) if rank == highest), default=-1)
    return sum(rank != highest for rank in starts[: last + 1])


def _problems(mix: Mix, order: Sequence[int], left: int, *, cut: bool) -> list[str]:
    problems = []
    if len(set(order)) < len(order):
        problems.append(f"{len(order) - len(set(order))} jobs started twice")
    if left and not cut:
        problems.append(f"{mix.jobs} jobs were inserted, {len(order)} started, {left} are left")
    if unordered := _unordered_partitions(mix, order):
        problems.append(f"within {unordered} partitions a job overtook one of higher priority")
    return problems


def _unordered_partitions(mix: Mix, order: Sequence[int]) -> int:
    ranks = _ranks(mix)
    by_partition: dict[int, list[int]] = {}
    for number in order:
        by_partition.setdefault(number % mix.partitions, []).append(ranks[number])
    return sum(started != sorted(started, reverse=True) for started in by_partition.values())


def _ranks(mix: Mix) -> list[int]:
    """Return the priorities of the jobs by their numbers."""
    ranks = [number % mix.priorities for number in range(mix.jobs)]
    Random(_SEED).shuffle(ranks)
    return ranks


async def _prepare(uri: str, mix: Mix) -> None:
    async with opened(uri) as connection:
        await start_over(connection, plain=False)
        await fill(connection, _records(mix))


def _records(mix: Mix) -> Iterator[Document]:
    ranks = _ranks(mix)
    for number, record in enumerate(due_records(mix.jobs, mix.partitions)):
        yield {**record, "priority": ranks[number], "params": {"number": number}}


async def _left(uri: str) -> int:
    async with opened(uri) as connection:
        return await connection.records.count_documents({})


# In the worker's process


def _work(share: _Share) -> _Tally:
    return run(_run_worker(share))


async def _run_worker(share: _Share) -> _Tally:
    mix, tally = share.mix, _Tally()
    async with Gangline(share.uri, partitions=mix.partitions) as app:

        @app.event(name=JOB)
        async def note(number: int) -> None:
            tally.last = time.monotonic()
            tally.first = tally.first or tally.last
            tally.order.append(number)

        worker = app.worker(concurrency=mix.concurrency, max_batch=mix.max_batch, keep_history=0)
        signals().ready()
        await worker.start()
        await _tell_progress(tally)
        await worker.stop()
    return tally


async def _tell_progress(tally: _Tally) -> None:
    told = 0
    while not signals().stopping:
        await asyncio.sleep(_REPORT_EVERY)
        count = len(tally.order)
        signals().add(count - told)
        told = count
