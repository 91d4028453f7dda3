"""``bench throughput``: a pre-loaded queue is worked off, end to end, by worker processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from gangline.app import Gangline
from gangline.bench.crew import run_together, signals
from gangline.bench.load import ServerLoad, server_load
from gangline.bench.queue import due_records, fill, job_id, opened, start_over
from gangline.bench.reference import Dogs, entry, settle
from gangline.bench.report import Progress, Row, quantile
from gangline.handles import EventJob
from gangline.jobs.errors import ConfigurationError
from gangline.jobs.hint import Shape
from gangline.jobs.partitions import PartitionWalk
from gangline.store.claims.protocol import ClaimRequest, LeaseLengths, new_token, stamp
from gangline.store.connection import Connection
from gangline.worker.loop import run

STRATEGIES = ("gangline", "dogs", "limit")
KINDS = ("async", "thread", "sleep")

_LEASES = LeaseLengths(default=timedelta(minutes=10))
_SLEEP = 0.01
_REPORT_EVERY = 0.02
_WRITERS = 4  # of bare writes, in a process: more gained nothing


@dataclass(frozen=True, kw_only=True)
class Load:
    """One row to measure.

    Attributes:
        kind: what a job does: ``async`` and ``thread`` nothing, ``sleep`` 10 ms in the loop.
        seconds: when the row is cut.
    """

    strategy: str
    kind: str
    history: bool
    jobs: int
    partitions: int
    processes: int
    concurrency: int
    max_batch: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ThroughputRow(Row):
    """What a load came to.

    Attributes:
        seconds: from the first start of a job to an empty queue.
        scheduled_per_second: how fast the jobs were scheduled before, in bulk by one process; zero for a reference.
        p50_ms: from the workers' common start, when all jobs were due, to the start of half of them; p95 and p99 alike.
        client_cpu_ms_per_1000: CPU time of the worker processes for 1,000 jobs, after their start.
    """

    strategy: str
    kind: str
    history: bool
    processes: int
    concurrency: int
    batch: int
    partitions: int
    jobs: int
    seconds: float
    jobs_per_second: float
    scheduled_per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    client_cpu_ms_per_1000: float
    server_cpu_ms_per_1000: float
    conflicts: int
    cut: bool


@dataclass(frozen=True, kw_only=True)
class _Share:
    uri: str
    load: Load
    number: int


@dataclass(kw_only=True)
class _Tally:
    """When jobs started, on the clock that all processes of a host share."""

    starts: list[float] = field(default_factory=list)
    cpu: float = 0.0


def check(load: Load) -> None:
    """Raise :class:`ConfigurationError` for a load that cannot be measured."""
    for setting, value, known in (("strategy", load.strategy, STRATEGIES), ("kind", load.kind, KINDS)):
        if value not in known:
            raise ConfigurationError(setting, f"{value!r} is none", f"Use some of {', '.join(known)}")


def measure(uri: str, load: Load, progress: Progress) -> ThroughputRow:
    """Measure ``load`` in the database of ``uri``, which is emptied for it.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    progress.begin(_title(load), load.jobs)
    scheduling = asyncio.run(_prepare(uri, load))
    before, began, ended = asyncio.run(_server(uri)), 0.0, 0.0

    def begin() -> None:
        nonlocal began
        began = time.monotonic()

    def watch(done: int) -> bool:
        nonlocal ended
        progress.reach(min(done, load.jobs))
        over = time.monotonic() - began > load.seconds or (done >= load.jobs and not asyncio.run(_left(uri)))
        if over and not ended:
            ended = time.monotonic()
        return over

    shares = [_Share(uri=uri, load=load, number=number) for number in range(load.processes)]
    tallies = run_together(_WORK[load.strategy], shares, begin=begin, watch=watch)
    server = asyncio.run(_server(uri)).since(before)
    return asyncio.run(_verified(uri, load, _row(load, tallies, server, scheduling, began, ended)))


def _title(load: Load) -> str:
    return f"{load.strategy}, {load.kind}, history {'on' if load.history else 'off'}"


def _row(
    load: Load, tallies: Sequence[_Tally], server: ServerLoad, scheduling: float, began: float, ended: float
) -> ThroughputRow:
    starts = [start for tally in tallies for start in tally.starts]
    seconds = ended - min(starts, default=began)
    waits = [(start - began) * 1000 for start in starts]
    thousands = max(len(starts), 1) / 1000
    return ThroughputRow(
        strategy=load.strategy,
        kind=load.kind,
        history=load.history,
        processes=load.processes,
        concurrency=load.concurrency,
        batch=load.max_batch if load.strategy != "dogs" else 1,
        partitions=load.partitions,
        jobs=len(starts),
        seconds=seconds,
        jobs_per_second=len(starts) / seconds,
        scheduled_per_second=load.jobs / scheduling if scheduling else 0.0,
        p50_ms=quantile(waits, 0.5),
        p95_ms=quantile(waits, 0.95),
        p99_ms=quantile(waits, 0.99),
        client_cpu_ms_per_1000=sum(tally.cpu for tally in tallies) * 1000 / thousands,
        server_cpu_ms_per_1000=server.cpu_seconds * 1000 / thousands,
        conflicts=server.conflicts,
        cut=len(starts) < load.jobs,
    )


async def _prepare(uri: str, load: Load) -> float:
    """Fill the queue; return how long Gangline took to schedule the jobs in bulk."""
    async with opened(uri) as connection:
        await start_over(connection, plain=load.strategy == "dogs")
        if load.strategy != "gangline":
            await fill(connection, due_records(load.jobs, load.partitions))
            return 0.0
    async with Gangline(uri, partitions=load.partitions) as app:
        job = _jobs(app, [])[load.kind]
        calls = [job.call() for _ in range(load.jobs)]
        started = time.monotonic()
        await app.schedule_many(calls)
        return time.monotonic() - started


async def _server(uri: str) -> ServerLoad:
    async with opened(uri) as connection:
        return await server_load(connection.records.database)


async def _left(uri: str) -> int:
    async with opened(uri) as connection:
        return await connection.records.count_documents({})


async def _verified(uri: str, load: Load, row: ThroughputRow) -> ThroughputRow:
    async with opened(uri) as connection:
        left = await connection.records.count_documents({})
        executions = await connection.history.count_documents({})
    problems = []
    if row.jobs > load.jobs or (left and not row.cut):
        problems.append(f"{load.jobs} jobs were scheduled, {row.jobs} started, {left} are left")
    if executions != (load.jobs - left if load.history else 0):
        problems.append(f"the history has {executions} executions, {load.jobs - left} ended")
    return replace(row, problems=problems)


# In a worker process


def _jobs(app: Gangline, starts: list[float]) -> dict[str, EventJob[[], [], Any]]:
    @app.event(name="bench")
    async def nothing() -> None:
        starts.append(time.monotonic())

    @app.event(name="bench-thread")
    def in_thread() -> None:
        starts.append(time.monotonic())

    @app.event(name="bench-sleep")
    async def sleep() -> None:
        starts.append(time.monotonic())
        await asyncio.sleep(_SLEEP)

    return {"async": nothing, "thread": in_thread, "sleep": sleep}


def _gangline(share: _Share) -> _Tally:
    return run(_run_worker(share))


async def _run_worker(share: _Share) -> _Tally:
    load, tally = share.load, _Tally()
    async with Gangline(share.uri, partitions=load.partitions) as app:
        _jobs(app, tally.starts)
        worker = app.worker(
            concurrency=load.concurrency, max_batch=load.max_batch, keep_history="1w" if load.history else 0
        )
        signals().ready()
        cpu = time.process_time()
        await worker.start()
        await _tell_progress(tally)
        tally.cpu = time.process_time() - cpu
        await worker.stop()
    return tally


async def _tell_progress(tally: _Tally) -> None:
    """Tell the crew what was started, until it is told to stop."""
    told = 0
    while not signals().stopping:
        await asyncio.sleep(_REPORT_EVERY)
        count = len(tally.starts)
        signals().add(count - told)
        told = count


def _dogs(share: _Share) -> _Tally:
    return run(_run_dogs(share))


async def _run_dogs(share: _Share) -> _Tally:
    load, tally = share.load, _Tally()
    async with opened(share.uri, sockets=load.concurrency) as connection:
        signals().ready()
        cpu = time.process_time()
        lanes = [asyncio.create_task(_dog(connection, load, tally)) for _ in range(load.concurrency)]
        await asyncio.gather(_tell_progress(tally), *lanes)
        tally.cpu = time.process_time() - cpu
    return tally


async def _dog(connection: Connection, load: Load, tally: _Tally) -> None:
    """Claim, run, write the history, settle: each awaited before the next."""
    protocol, walk = Dogs(connection.records), PartitionWalk(load.partitions, Random())
    history = connection.history if load.history else None
    while not signals().stopping:
        now = connection.clock.now()
        request = ClaimRequest(
            partition=walk.next(), names=["bench"], limit=1, shape=Shape.BY_NAME, now=now, leases=_LEASES, worker=""
        )
        for record in (await protocol.claim(request)).records:
            tally.starts.append(time.monotonic())
            await _nothing_or_sleep(load.kind)
            await settle(connection.records, history, record)


async def _nothing_or_sleep(kind: str) -> None:
    if kind == "sleep":
        await asyncio.sleep(_SLEEP)
    elif kind == "thread":
        await asyncio.to_thread(int)


def _limit(share: _Share) -> _Tally:
    return run(_run_bare_writes(share))


async def _run_bare_writes(share: _Share) -> _Tally:
    """What no queue can do without: a conditional update, a history insert and a delete, in batches, by known ids."""
    load, tally = share.load, _Tally()
    numbers = range(share.number, load.jobs, load.processes)
    batches = (numbers[start : start + load.max_batch] for start in range(0, len(numbers), load.max_batch))
    async with opened(share.uri) as connection:
        signals().ready()
        cpu = time.process_time()
        lanes = [_write_bare(connection, load, batches, tally) for _ in range(_WRITERS)]
        await asyncio.gather(_tell_progress(tally), *lanes)
        tally.cpu = time.process_time() - cpu
    return tally


async def _write_bare(connection: Connection, load: Load, batches: Iterator[range], tally: _Tally) -> None:
    for batch in batches:
        ids, token, now = [job_id(number) for number in batch], new_token(), datetime.now(UTC)
        update = stamp({"$concat": [f"{token}-", "$_id"]}, _LEASES, "bench", was_stale=False)
        await connection.records.update_many({"_id": {"$in": ids}, "lockedUntil": None}, update, hint="_id_")
        tally.starts += [time.monotonic()] * len(ids)
        locks = [f"{token}-{each}" for each in ids]
        if load.history:
            entries = [entry(each, lock, now) for each, lock in zip(ids, locks, strict=True)]
            await connection.history.insert_many(entries, ordered=False)
        await connection.records.delete_many({"_id": {"$in": ids}, "lockId": {"$in": locks}}, hint="_id_")


_WORK: Mapping[str, Callable[[_Share], _Tally]] = {"gangline": _gangline, "dogs": _dogs, "limit": _limit}
