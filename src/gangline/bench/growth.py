"""``bench growth``: whether claims slow down as the queue grows, and whether a worker grows as it works."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path

from pymongo.collection import Collection

from gangline.app import Gangline
from gangline.bench.claims import PLAIN, PROTOCOLS, SORTED, Won
from gangline.bench.crew import run_together, signals
from gangline.bench.load import ServerLoad, server_load
from gangline.bench.queue import JOB, LONG_DUE, due_records, fill, opened, start_over
from gangline.bench.report import Progress, Row
from gangline.jobs.errors import ConfigurationError
from gangline.jobs.hint import Shape
from gangline.jobs.partitions import PartitionWalk
from gangline.store.claims.protocol import ClaimProtocol, ClaimRequest, LeaseLengths
from gangline.store.connection import Address, Connection, Document, open_sync_records
from gangline.store.schema import DEAD, DEFAULT_PREFIX
from gangline.worker.loop import run

STRATEGIES = tuple(PROTOCOLS)
ROUND = 500
"""How many records are claimed before they are set free again: half of the smallest queue, so that none runs dry."""

_LEASES = LeaseLengths(default=timedelta(minutes=10))
_DAY = timedelta(days=1)
_IN_FRONT = 200  # the priority of what is in front; the waiting records have 100


# Claims


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """One row to measure.

    Attributes:
        waiting: how many records can be claimed.
        locked: how many records of higher priority are locked; ``dead`` and ``future`` alike.
        claims: how many claims are timed; the same in all rows, or they do not compare.
        seconds: when the row is cut, filling not counted.
    """

    strategy: str
    waiting: int
    locked: int = 0
    dead: int = 0
    future: int = 0
    claims: int
    claimers: int
    batch: int
    partitions: int
    seconds: float

    @property
    def round(self) -> int:
        """How many records are claimed at least before they are set free again."""
        return max(1, min(ROUND, self.waiting // 2, self.claims))


@dataclass(frozen=True, kw_only=True)
class GrowthRow(Row):
    """What claims came to in front of a backlog.

    Attributes:
        claims: a little more than was asked for, as claims go in batches.
        seconds: the claims alone, without setting records free.
        ratio_to_first: claims per second in parts of those of the strategy's first row; see :func:`with_ratios`.
        cut: the time limit ended it.
    """

    strategy: str
    waiting: int
    locked: int
    dead: int
    future: int
    partitions: int
    claimers: int
    batch: int
    claims: int
    seconds: float
    claims_per_second: float
    docs_examined_per_claim: float
    client_cpu_seconds: float
    server_cpu_seconds: float
    cut: bool
    ratio_to_first: float = 1.0


@dataclass(kw_only=True)
class _Sum:
    claims: int = 0
    seconds: float = 0.0
    client_cpu: float = 0.0
    server: ServerLoad = field(default_factory=ServerLoad)
    problems: list[str] = field(default_factory=list)


def check(backlog: Backlog, *, sorted_updates: bool) -> None:
    """Raise :class:`ConfigurationError` for a backlog that cannot be measured on the server."""
    if backlog.strategy not in STRATEGIES:
        raise ConfigurationError("strategy", f"{backlog.strategy!r} is none", f"Use some of {', '.join(STRATEGIES)}")
    if backlog.strategy in SORTED and not sorted_updates:
        raise ConfigurationError("strategy", f"{backlog.strategy!r} needs MongoDB 8", "Name such a server by --uri")


def measure(uri: str, backlog: Backlog, progress: Progress) -> GrowthRow:
    """Measure claims in front of ``backlog`` in the database of ``uri``, which is emptied for it.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    return run(_measure(uri, backlog, progress))


def with_ratios(rows: Sequence[GrowthRow]) -> list[GrowthRow]:
    """Return ``rows`` with their ``ratio_to_first``."""
    first: dict[str, float] = {}
    for row in rows:
        first.setdefault(row.strategy, row.claims_per_second)
    return [replace(row, ratio_to_first=row.claims_per_second / (first[row.strategy] or 1.0)) for row in rows]


async def _measure(uri: str, backlog: Backlog, progress: Progress) -> GrowthRow:
    async with opened(uri, sockets=backlog.claimers) as connection:
        await start_over(connection, plain=backlog.strategy in PLAIN)
        progress.begin(f"{_title(backlog)}: filling", _size(backlog))
        await fill(connection, _told(_records(backlog, connection), progress))
        progress.begin(f"{_title(backlog)}: claims", backlog.claims)
        total = await _rounds(connection, backlog, progress)
    return _row(backlog, total)


def _row(backlog: Backlog, total: _Sum) -> GrowthRow:
    return GrowthRow(
        strategy=backlog.strategy,
        waiting=backlog.waiting,
        locked=backlog.locked,
        dead=backlog.dead,
        future=backlog.future,
        partitions=backlog.partitions,
        claimers=backlog.claimers,
        batch=backlog.batch,
        claims=total.claims,
        seconds=total.seconds,
        claims_per_second=total.claims / total.seconds if total.seconds else 0.0,
        docs_examined_per_claim=total.server.examined / max(total.claims, 1),
        client_cpu_seconds=total.client_cpu,
        server_cpu_seconds=total.server.cpu_seconds,
        cut=total.claims < backlog.claims,
        problems=list(dict.fromkeys(total.problems)),
    )


def _title(backlog: Backlog) -> str:
    front = [f"{count} {kind}" for kind, count in _obstacles(backlog).items() if count]
    return f"{backlog.strategy}, {backlog.waiting} waiting" + (f" behind {' and '.join(front)}" if front else "")


def _obstacles(backlog: Backlog) -> dict[str, int]:
    return {"locked": backlog.locked, "dead": backlog.dead, "future": backlog.future}


def _size(backlog: Backlog) -> int:
    return backlog.waiting + sum(_obstacles(backlog).values())


def _records(backlog: Backlog, connection: Connection) -> Iterator[Document]:
    """Give the records of the backlog, what is in front of the waiting ones first."""
    now = connection.clock.now()
    past = {"priority": _IN_FRONT, "nextRunAt": LONG_DUE - _DAY}
    fields: dict[str, Document] = {
        "locked": {**past, "lockId": "rival", "lockedUntil": now + _DAY, "lockedBy": "rival", "tries": 1},
        "dead": {**past, "status": DEAD, "maxTriesReachedAt": LONG_DUE, "tries": 10},
        "future": {"priority": _IN_FRONT, "nextRunAt": now + _DAY},
    }
    fronts = (_named(kind, count, backlog, fields[kind]) for kind, count in _obstacles(backlog).items())
    return chain(*fronts, due_records(backlog.waiting, backlog.partitions))


def _named(kind: str, count: int, backlog: Backlog, fields: Document) -> Iterator[Document]:
    for record in due_records(count, backlog.partitions, **fields):
        yield {**record, "_id": f"{kind}-{record['_id']}"}


def _told(records: Iterator[Document], progress: Progress) -> Iterator[Document]:
    for done, record in enumerate(records, start=1):
        yield record
        if done % 1_000 == 0:
            progress.reach(done)


async def _rounds(connection: Connection, backlog: Backlog, progress: Progress) -> _Sum:
    """Claim round after round from the same queue: what a round claimed is free again in the next."""
    protocol, total = PROTOCOLS[backlog.strategy](connection.records), _Sum()
    await _release(connection, await _claim_round(connection, backlog, protocol))  # sockets and caches are warm then
    deadline = time.monotonic() + backlog.seconds
    while total.claims < backlog.claims and time.monotonic() < deadline:
        won = await _timed_round(connection, backlog, protocol, total)
        total.problems += await _deviations(connection, backlog, won)
        await _release(connection, won)
        progress.reach(min(total.claims, backlog.claims))
    return total


async def _timed_round(connection: Connection, backlog: Backlog, protocol: ClaimProtocol, total: _Sum) -> Won:
    before, cpu, started = await server_load(connection.records.database), time.process_time(), time.monotonic()
    won = await _claim_round(connection, backlog, protocol)
    total.seconds += time.monotonic() - started
    total.client_cpu += time.process_time() - cpu
    load = (await server_load(connection.records.database)).since(before)
    total.server = ServerLoad(
        examined=total.server.examined + load.examined, cpu_seconds=total.server.cpu_seconds + load.cpu_seconds
    )
    total.claims += len(won)
    return won


async def _claim_round(connection: Connection, backlog: Backlog, protocol: ClaimProtocol) -> Won:
    won: Won = []
    await asyncio.gather(*(_claim(connection, backlog, protocol, won) for _ in range(backlog.claimers)))
    return won


async def _claim(connection: Connection, backlog: Backlog, protocol: ClaimProtocol, won: Won) -> None:
    walk, empty = PartitionWalk(backlog.partitions, random.Random()), set[int]()
    while len(won) < backlog.round and len(empty) < backlog.partitions:
        partition = walk.next()
        claims = await protocol.claim(_request(connection, backlog, partition))
        won += [(record.id, record.lease.lock_id) for record in claims.records]
        if claims.records:
            empty.clear()
        elif not claims.contended:
            empty.add(partition)


def _request(connection: Connection, backlog: Backlog, partition: int) -> ClaimRequest:
    now = connection.clock.now()
    return ClaimRequest(
        partition=partition,
        names=[JOB],
        limit=backlog.batch,
        shape=Shape.BY_NAME,
        now=now,
        leases=_LEASES,
        worker="bench",
    )


async def _release(connection: Connection, won: Won) -> None:
    stamps = dict.fromkeys(("lockId", "lockedUntil", "lockedBy", "lastRunAt"), "")
    ids = [record for record, _ in won]
    await connection.records.update_many({"_id": {"$in": ids}}, {"$unset": stamps, "$set": {"tries": 0}})


async def _deviations(connection: Connection, backlog: Backlog, won: Won) -> list[str]:
    """Compare what a round was told with what is stored."""
    found, records = [], connection.records
    told = dict(won)
    if len(told) < len(won) or len(set(told.values())) < len(told):
        found.append("a record, or a lock id, was given to more than one claim")
    stored = await records.find({"_id": {"$in": list(told)}}, {"lockId": 1, "tries": 1, "priority": 1}).to_list()
    if {document["_id"]: document.get("lockId") for document in stored} != told:
        found.append("claims differ from what is stored")
    if any(document["tries"] != 1 for document in stored):
        found.append("a record has not exactly one try")
    if any(document["priority"] == _IN_FRONT for document in stored):
        found.append("a record was claimed that is locked, dead or not due")
    if await records.count_documents({"lockId": {"$exists": True}}) != backlog.locked + len(told):
        found.append("records are locked that no claim was told of")
    return found


# Memory


@dataclass(frozen=True, kw_only=True)
class Endurance:
    """The row of a worker that runs many jobs.

    Attributes:
        seconds: when it is cut.
    """

    jobs: int
    history: bool
    concurrency: int
    partitions: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class MemoryRow(Row):
    """How large a worker's process is.

    Attributes:
        rss_rest_mb: resident memory of the worker that runs and has had no job yet.
        rss_after_tenths_mb: after each tenth of the jobs.
        rss_growth_mb: from the second to the last of them; during the first, buffers and caches reach their size.
        cut: the time limit ended it; the last tenths are missing.
    """

    jobs: int
    history: bool
    seconds: float
    jobs_per_second: float
    rss_rest_mb: float
    rss_after_tenths_mb: Sequence[float]
    rss_growth_mb: float
    cut: bool


@dataclass(frozen=True, kw_only=True)
class _Share:
    uri: str
    endurance: Endurance


@dataclass(kw_only=True)
class _Worked:
    jobs: int = 0
    rest: float = 0.0
    tenths: list[float] = field(default_factory=list)


_PORTION = 5_000
_MEGABYTE = 1024 * 1024
_LOOK_EVERY = 0.02


def measure_memory(uri: str, endurance: Endurance, progress: Progress) -> MemoryRow:
    """Let one worker process run jobs that do nothing, in the database of ``uri``, which is emptied for it.

    They are inserted in portions while it runs, so that the database stays small.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    asyncio.run(_empty(uri))
    progress.begin(f"memory, history {'on' if endurance.history else 'off'}", endurance.jobs)
    records = open_sync_records(Address.parse(uri, prefix=DEFAULT_PREFIX))
    waiting, inserted, began, ended = due_records(endurance.jobs, endurance.partitions), 0, 0.0, 0.0

    def begin() -> None:
        nonlocal began
        began = time.monotonic()

    def watch(done: int) -> bool:
        nonlocal inserted, ended
        progress.reach(min(done, endurance.jobs))
        inserted += _insert(records, waiting) if inserted - done < _PORTION else 0
        over = time.monotonic() - began > endurance.seconds or (done >= endurance.jobs and not _any(records))
        if over and not ended:
            ended = time.monotonic()
        return over

    try:
        [worked] = run_together(_work, [_Share(uri=uri, endurance=endurance)], begin=begin, watch=watch)
    finally:
        records.database.client.close()
    return asyncio.run(_verified(uri, endurance, _memory_row(endurance, worked, ended - began)))


def _memory_row(endurance: Endurance, worked: _Worked, seconds: float) -> MemoryRow:
    settled = worked.tenths[1:]
    return MemoryRow(
        jobs=worked.jobs,
        history=endurance.history,
        seconds=seconds,
        jobs_per_second=worked.jobs / seconds,
        rss_rest_mb=worked.rest,
        rss_after_tenths_mb=worked.tenths,
        rss_growth_mb=settled[-1] - settled[0] if settled else 0.0,
        cut=worked.jobs < endurance.jobs,
    )


def _insert(records: Collection[Document], waiting: Iterator[Document]) -> int:
    portion = list(islice(waiting, _PORTION))
    if portion:
        records.insert_many(portion, ordered=False)
    return len(portion)


def _any(records: Collection[Document]) -> bool:
    return records.find_one({}, {"_id": 1}) is not None


async def _empty(uri: str) -> None:
    async with opened(uri) as connection:
        await start_over(connection, plain=False)


async def _verified(uri: str, endurance: Endurance, row: MemoryRow) -> MemoryRow:
    async with opened(uri) as connection:
        left = await connection.records.count_documents({})
        executions = await connection.history.count_documents({})
    problems = []
    if row.jobs > endurance.jobs or (left and not row.cut):
        problems.append(f"{endurance.jobs} jobs were inserted, {row.jobs} started, {left} are left")
    if not row.cut and executions != (row.jobs if endurance.history else 0):
        problems.append(f"the history has {executions} executions of {row.jobs} jobs")
    return replace(row, problems=problems)


# In the worker's process


def _work(share: _Share) -> _Worked:
    return run(_run_worker(share))


async def _run_worker(share: _Share) -> _Worked:
    endurance, worked = share.endurance, _Worked()
    async with Gangline(share.uri, partitions=endurance.partitions) as app:

        @app.event(name=JOB)
        async def nothing() -> None:
            worked.jobs += 1

        worker = app.worker(concurrency=endurance.concurrency, keep_history="1w" if endurance.history else 0)
        await worker.start()
        await asyncio.sleep(1.0)  # what a worker does once, at its start, is done
        worked.rest = _resident()
        signals().ready()
        await _note_tenths(endurance, worked)
        await worker.stop()
    return worked


async def _note_tenths(endurance: Endurance, worked: _Worked) -> None:
    told = 0
    while not signals().stopping:
        await asyncio.sleep(_LOOK_EVERY)
        count = worked.jobs
        signals().add(count - told)
        told = count
        reached = min(10, 10 * count // endurance.jobs)
        worked.tenths += [_resident()] * (reached - len(worked.tenths))


def _resident() -> float:
    """Return this process's resident memory in MB."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE
