"""``bench claims``: many claimers contend for one backlog, and nothing else happens."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from gangline.bench.crew import run_together, signals
from gangline.bench.load import ServerLoad, server_load
from gangline.bench.queue import JOB, due_records, fill, job_id, opened, start_over
from gangline.bench.reference import Dogs, DogsSorted
from gangline.bench.report import Progress, Row
from gangline.jobs.errors import ConfigurationError
from gangline.jobs.hint import Shape
from gangline.jobs.partitions import PartitionWalk
from gangline.store.claims.batch import Batch
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import ClaimProtocol, ClaimRequest, LeaseLengths, Records, new_token, stamp
from gangline.store.claims.select import ByLimit
from gangline.store.claims.sorted_update import SortedUpdate
from gangline.store.connection import Connection

LIMIT = "limit"
PROTOCOLS: dict[str, Callable[[Records], ClaimProtocol]] = {
    "dogs": Dogs,
    "dogs-sorted-update": DogsSorted,
    "find-and-modify": FindAndModify,
    "sorted-update": SortedUpdate,
    "batch": Batch,
    "by-limit": ByLimit,
}
PLAIN = frozenset({"dogs", "dogs-sorted-update"})
SORTED = frozenset({"dogs-sorted-update", "sorted-update"})
STRATEGIES = (*PROTOCOLS, LIMIT)

_LEASES = LeaseLengths(default=timedelta(minutes=10))

Won = list[tuple[str, str]]
Take = Callable[[int], Awaitable[tuple[Won, bool]]]
"""Takes from a partition: what was won, as pairs of record and lock id, and whether rivals took some of it."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One row to measure.

    Attributes:
        strategy: one of ``STRATEGIES``.
        jobs: how many records are due.
        claimers: how many coroutines claim at once, over all processes.
        batch: the most records of one claim.
        seconds: when the row is cut.
    """

    strategy: str
    jobs: int
    claimers: int
    partitions: int
    batch: int
    processes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ClaimsRow(Row):
    """What a contest came to.

    Attributes:
        seconds: from the common start to the last claim that won something.
        duplicates: claims of a record that had been claimed before.
        cut: the time limit ended it; the rates are those until then. A strategy that slows down as claimed records
            pile up looks better in a row that was cut than it is.
        client_cpu_seconds: of all claimers' processes.
    """

    strategy: str
    partitions: int
    claimers: int
    batch: int
    processes: int
    claims: int
    seconds: float
    claims_per_second: float
    conflicts: int
    conflicts_per_claim: float
    docs_examined_per_claim: float
    client_cpu_seconds: float
    server_cpu_seconds: float
    duplicates: int
    cut: bool


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one process does of a contest."""

    uri: str
    contest: Contest
    number: int

    @property
    def claimers(self) -> int:
        """How many claimers it has."""
        return len(range(self.number, self.contest.claimers, self.contest.processes))


@dataclass(kw_only=True)
class _Tally:
    won: Won = field(default_factory=list)
    last: float = 0.0
    cpu: float = 0.0


def check(contest: Contest, *, sorted_updates: bool) -> None:
    """Raise :class:`ConfigurationError` for a contest that cannot be held on the server."""
    if contest.strategy not in STRATEGIES:
        raise ConfigurationError("strategy", f"{contest.strategy!r} is none", f"Use some of {', '.join(STRATEGIES)}")
    if contest.strategy in SORTED and not sorted_updates:
        raise ConfigurationError("strategy", f"{contest.strategy!r} needs MongoDB 8", "Name such a server by --uri")


def measure(uri: str, contest: Contest, progress: Progress) -> ClaimsRow:
    """Hold ``contest`` in the database of ``uri``, which is emptied for it.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    asyncio.run(_prepare(uri, contest))
    before, started = asyncio.run(_load(uri)), 0.0

    def begin() -> None:
        nonlocal started
        started = time.monotonic()

    def watch(done: int) -> bool:
        progress.reach(done)
        return done >= contest.jobs or time.monotonic() - started > contest.seconds

    progress.begin(f"{contest.strategy}, {contest.partitions} partitions", contest.jobs)
    shares = [_Share(uri=uri, contest=contest, number=number) for number in range(contest.processes)]
    tallies = run_together(_claim_share, shares, begin=begin, watch=watch)
    load = asyncio.run(_load(uri)).since(before)
    return asyncio.run(_verified(uri, _row(contest, tallies, load, started), [pair for t in tallies for pair in t.won]))


def _row(contest: Contest, tallies: Sequence[_Tally], load: ServerLoad, started: float) -> ClaimsRow:
    claims = sum(len(tally.won) for tally in tallies)
    seconds = max(0.0, max(tally.last for tally in tallies) - started)
    return ClaimsRow(
        strategy=contest.strategy,
        partitions=contest.partitions,
        claimers=contest.claimers,
        batch=contest.batch,
        processes=contest.processes,
        claims=claims,
        seconds=seconds,
        claims_per_second=claims / seconds if seconds else 0.0,
        conflicts=load.conflicts,
        conflicts_per_claim=load.conflicts / max(claims, 1),
        docs_examined_per_claim=load.examined / max(claims, 1),
        client_cpu_seconds=sum(tally.cpu for tally in tallies),
        server_cpu_seconds=load.cpu_seconds,
        duplicates=claims - len({record for tally in tallies for record, _ in tally.won}),
        cut=claims < contest.jobs,
    )


async def _prepare(uri: str, contest: Contest) -> None:
    async with opened(uri) as connection:
        await start_over(connection, plain=contest.strategy in PLAIN)
        await fill(connection, due_records(contest.jobs, contest.partitions))


async def _load(uri: str) -> ServerLoad:
    async with opened(uri) as connection:
        return await server_load(connection.records.database)


# In a claimers' process


def _claim_share(share: _Share) -> _Tally:
    return asyncio.run(_claim_together(share))


async def _claim_together(share: _Share) -> _Tally:
    async with opened(share.uri, sockets=share.claimers) as connection:
        # Every claimer has its socket before the clock starts.
        await asyncio.gather(*(connection.records.find_one({}, {"_id": 1}) for _ in range(share.claimers)))
        tally, take = _Tally(), _taker(share, connection)
        signals().ready()
        cpu = time.process_time()
        await asyncio.gather(*(_claim(share.contest, take, tally) for _ in range(share.claimers)))
        tally.cpu = time.process_time() - cpu
        return tally


async def _claim(contest: Contest, take: Take, tally: _Tally) -> None:
    """Claim until the crew has everything, or no partition has a record left."""
    walk, empty = PartitionWalk(contest.partitions, random.Random()), set[int]()
    while len(empty) < contest.partitions and not signals().stopping and signals().done < contest.jobs:
        partition = walk.next()
        won, contended = await take(partition)
        if won:
            tally.won += won
            tally.last = time.monotonic()
            signals().add(len(won))
            empty.clear()
        elif not contended:
            empty.add(partition)


def _taker(share: _Share, connection: Connection) -> Take:
    if share.contest.strategy == LIMIT:
        return _bare_writes(share, connection.records)
    protocol = PROTOCOLS[share.contest.strategy](connection.records)

    async def take(partition: int) -> tuple[Won, bool]:
        claims = await protocol.claim(_request(connection, partition, share.contest.batch))
        return [(record.id, record.lease.lock_id) for record in claims.records], claims.contended

    return take


def _request(connection: Connection, partition: int, limit: int) -> ClaimRequest:
    now = connection.clock.now()
    return ClaimRequest(
        partition=partition, names=[JOB], limit=limit, shape=Shape.BY_NAME, now=now, leases=_LEASES, worker="bench"
    )


def _bare_writes(share: _Share, records: Records) -> Take:
    """What a claim cannot do without: the write. Each takes records that nobody else asks for, by their ids."""
    contest = share.contest
    batches = _slices(range(share.number, contest.jobs, contest.processes), contest.batch)

    async def take(_: int) -> tuple[Won, bool]:
        ids = next(batches, None)
        if ids is None:
            return [], False
        token = new_token()
        update = stamp({"$concat": [f"{token}-", "$_id"]}, _LEASES, "bench", was_stale=False)
        free = {"_id": ids[0] if len(ids) == 1 else {"$in": ids}, "lockedUntil": None}
        write = records.update_one if len(ids) == 1 else records.update_many
        result = await write(free, update, hint="_id_")
        return [(each, f"{token}-{each}") for each in ids[: result.matched_count]], False

    return take


def _slices(numbers: range, size: int) -> Iterator[list[str]]:
    for start in range(0, len(numbers), size):
        yield [job_id(number) for number in numbers[start : start + size]]


# Afterwards


async def _verified(uri: str, row: ClaimsRow, won: Won) -> ClaimsRow:
    async with opened(uri) as connection:
        problems = [*_doubled(won), *await _deviations(connection.records, won)]
        if not row.cut:
            problems += await _second_sweep(connection, row)
    return replace(row, problems=problems)


def _doubled(won: Won) -> Iterator[str]:
    for what, distinct in (("record", {record for record, _ in won}), ("execution id", {lock for _, lock in won})):
        if len(distinct) < len(won):
            yield f"the same {what} was given to more than one claim, {len(won) - len(distinct)} times"


async def _deviations(records: Records, won: Won) -> list[str]:
    """Compare what the claimers were told with what is stored."""
    cursor = records.find({"lockId": {"$exists": True}}, {"lockId": 1, "tries": 1}, batch_size=10_000)
    stored = await cursor.to_list()
    locks = {document["_id"]: document["lockId"] for document in stored}
    found = []
    if len(set(locks.values())) < len(locks):
        found.append("two records are stored with one lock id")
    if locks != dict(won):
        found.append(f"{len(locks.items() ^ dict(won).items())} claims differ from what is stored")
    if overcharged := sum(document["tries"] != 1 for document in stored):
        found.append(f"{overcharged} records have not exactly one try")
    return found


async def _second_sweep(connection: Connection, row: ClaimsRow) -> list[str]:
    """A claim of every partition must find nothing any more."""
    protocol = ByLimit(connection.records) if row.strategy == LIMIT else PROTOCOLS[row.strategy](connection.records)
    left = 0
    for partition in range(row.partitions):
        left += len((await protocol.claim(_request(connection, partition, row.batch))).records)
    return [f"{left} records were left"] if left else []
