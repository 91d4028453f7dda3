"""Checks of the records: where they lie, who serves them, how long they wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gangline.jobs.durations import describe
from gangline.jobs.record import JobType
from gangline.store.claims.protocol import Records
from gangline.store.codec import BEGIN_OF_TIME
from gangline.store.connection import Document
from gangline.store.diagnosis.check import (
    COUNT_UP_TO,
    SHOWN_NAMES,
    Scene,
    Verdict,
    counted,
    largest_partitions,
    listed,
    warning,
    well,
)
from gangline.store.eligibility import Filter, alive
from gangline.store.errors import StoreError, is_refused_hint
from gangline.store.insights import State, in_state
from gangline.store.registry import WorkerEntry
from gangline.store.schema import DEAD_TTL, DUE, FREE, LOCKED, READY_BY_PRIORITY, UNIQUE_RECURRENT

LATE = timedelta(minutes=1)
RECOVERY = timedelta(seconds=5)  # within which a running worker takes over what expired

_SCANNED_UP_TO = 200_000  # records that are read one by one for want of an index: a second at most
_BALANCE_READS = 20_000
_UNEVEN_FACTOR = 4
_ENOUGH_PER_PARTITION = 100  # fewer are uneven by chance, and by batches of 32 taken from one partition


async def partition_balance(scene: Scene) -> Verdict:
    """Whether the free records are spread over the partitions."""
    partitions = scene.partitions
    if partitions is None:
        return well("the number of partitions is not known: no worker runs, and none was given")
    limit = max(2 * _ENOUGH_PER_PARTITION, _BALANCE_READS // partitions)
    records = scene.connection.records
    counts = [await _count(records, {"partition": n, **FREE}, READY_BY_PRIORITY.name, limit) for n in range(partitions)]
    told = f"free records per partition: {min(counts):,} to {max(counts):,}{' or more' if max(counts) == limit else ''}"
    if not uneven(counts):
        return well(told)
    return warning(told, "Some program puts its records into a few partitions: look how it chooses them")


def uneven(counts: Sequence[int]) -> bool:
    """Whether ``counts`` are many and far from one another."""
    mean = sum(counts) / len(counts)
    return mean >= _ENOUGH_PER_PARTITION and (
        max(counts) > _UNEVEN_FACTOR * mean or min(counts) * _UNEVEN_FACTOR < mean
    )


async def partition_range(scene: Scene) -> Verdict:
    """Whether there are free records that no claim asks for."""
    found = await count_misplaced(scene.connection.records, scene.partitions)
    if not found.records:
        return well(found.told)
    remedy = "Workers repair them, 500 at a time; `gangline stats` shows how many are left"
    return warning(found.told, remedy if scene.workers else f"Start a worker. {remedy}")


@dataclass(frozen=True, kw_only=True)
class Misplacement:
    """How many free records lie outside the partitions, at most 10,000; of an unknown number, how many have none."""

    partitions: int | None
    records: int

    @property
    def told(self) -> str:
        """It in words."""
        where = "without a partition" if self.partitions is None else f"outside the {self.partitions} partitions"
        return f"records {where}: {counted(self.records)}"


async def misplacement(records: Records, workers: Sequence[WorkerEntry]) -> Misplacement | None:
    """Return what lies where none of ``workers`` looks; ``None`` while the index for it is missing."""
    try:
        return await count_misplaced(records, largest_partitions(workers))
    except StoreError as error:
        if not is_refused_hint(error):
            raise
        return None


async def count_misplaced(records: Records, partitions: int | None) -> Misplacement:
    """Count what lies outside.

    Raises:
        pymongo.errors.OperationFailure: the index for it is missing.
    """
    outside: Filter = {"partition": None if partitions is None else {"$nin": list(range(partitions))}}
    count = await _count(records, {**outside, **FREE, **alive()}, READY_BY_PRIORITY.name)
    return Misplacement(partitions=partitions, records=count)


async def unserved_jobs(scene: Scene) -> Verdict:
    """Which waiting job names no running worker serves."""
    records = scene.connection.records
    in_queue = await scene.waiting.read()
    names = [item.name for item in in_queue if item.name not in scene.served]
    if not names:
        return well(f"job names that wait: {len(in_queue)}; each is served by a running worker")
    counts = {name: await _count(records, {"jobName": name, **FREE}, DUE.name) for name in names[:SHOWN_NAMES]}
    more = f", and {len(names) - SHOWN_NAMES} other names" if len(names) > SHOWN_NAMES else ""
    return warning(
        f"no running worker of Gangline's serves {listed(counts)}{more}",
        "Start a worker that defines them; they wait for it. If a Node worker serves them, all is well",
    )


async def orphaned_recurrent(scene: Scene) -> Verdict:
    """Which recurrent records have no definition."""
    recurrent = await _recurrent(scene.connection.records)
    orphans = [name for name in recurrent if name not in scene.definitions]
    if not orphans:
        return well(f"recurrent records: {len(recurrent)}; each has a definition")
    return warning(
        f"no running worker of Gangline's defines {_some(orphans)}",
        "Start a worker that defines them. What was removed from the code for good can be deleted: "
        f"db.getCollection('{scene.connection.records.name}').deleteOne({{jobName: '…', type: 'recurrent'}})",
    )


async def job_types(scene: Scene) -> Verdict:
    """Which records are of another type than their definition: they are set aside instead of run."""
    records, definitions = scene.connection.records, scene.definitions
    event, recurrent = JobType.EVENT.value, JobType.RECURRENT.value
    wrong = {
        name: f"{name} is defined as {event} and has a recurrent record"
        for name in await _recurrent(records)
        if definitions.get(name) == frozenset({event})
    }
    for name in _defined_only_as(definitions, recurrent):
        other = {"jobName": name, "type": {"$ne": recurrent}, **FREE, **alive()}
        if await records.find_one(other, {"_id": 1}, hint=DUE.name) is not None:
            wrong[name] = f"{name} is defined as recurrent and has records of another type"
    if not wrong:
        return well("no waiting record is of another type than its definition")
    return warning(_some(list(wrong.values())), "They are set aside as dead when claimed. Rename one of the two jobs")


def _defined_only_as(definitions: Mapping[str, frozenset[str]], kind: str) -> list[str]:
    return sorted(name for name, kinds in definitions.items() if kinds == frozenset({kind}))


async def dead_jobs(scene: Scene) -> Verdict:
    """How many records are dead, and why."""
    records = scene.connection.records
    dead = in_state(State.DEAD, scene.now)
    hint, unseen = None, ""
    if await records.estimated_document_count() > _SCANNED_UP_TO:
        # Those that are kept for ever are in no small index.
        dead = {"expiresAt": {"$gte": BEGIN_OF_TIME}, **dead}
        hint, unseen = DEAD_TTL.name, " that will expire; those kept for ever are not counted in a queue of this size"
    counts = await _count_by(records, dead, {"name": "$jobName", "error": "$lastError.type"}, hint)
    if not counts:
        return well(f"no dead jobs{unseen}")
    told = {f"{key.get('name')} ({key.get('error', 'no error known')})": count for key, count in counts}
    return warning(
        f"{counted(sum(told.values()))} dead jobs{unseen}: {listed(told)}",
        "Look at them: gangline jobs list --state dead, and gangline jobs show ID for the error",
    )


async def oldest_due(scene: Scene) -> Verdict:
    """How long the record has waited that has waited longest."""
    due = [item for item in await scene.waiting.read() if item.since <= scene.now]
    if not due:
        return well("nothing is due")
    oldest = min(due, key=lambda item: item.since)
    waited = scene.now - oldest.since
    told = f"a record of {oldest.name} has been due for {describe(timedelta(seconds=int(waited.total_seconds())))}"
    if waited <= LATE:
        return well(told)
    return warning(told, "If workers serve it, start more of them or raise their concurrency; see unserved-jobs")


async def expired_leases(scene: Scene) -> Verdict:
    """Which records are locked although their lease ended."""
    ended = {"lockedUntil": {"$gte": BEGIN_OF_TIME, "$lte": scene.now - RECOVERY}, **alive()}
    counts = await _count_by(scene.connection.records, ended, {"name": "$jobName"}, LOCKED.name)
    if not counts:
        return well("no lease has ended without being taken over")
    told = {str(key.get("name")): count for key, count in counts}
    return warning(
        f"leases that ended more than {describe(RECOVERY)} ago: {listed(told)}",
        "A running worker with a free slot takes them over within a poll interval: start one that serves these names",
    )


async def _recurrent(records: Records) -> list[str]:
    found = records.find({"type": JobType.RECURRENT.value}, {"jobName": 1}).hint(UNIQUE_RECURRENT.name)
    return [str(document.get("jobName")) for document in await found.limit(COUNT_UP_TO).to_list()]


async def _count(records: Records, chosen: Filter, hint: str, limit: int = COUNT_UP_TO) -> int:
    return await records.count_documents(chosen, hint=hint, limit=limit)


async def _count_by(
    records: Records, chosen: Filter, key: Mapping[str, str], hint: str | None
) -> list[tuple[Document, int]]:
    """The counts by ``key`` of the first 10,000 records."""
    pipeline: list[Document] = [
        {"$match": chosen},
        {"$limit": COUNT_UP_TO},
        {"$group": {"_id": dict(key), "count": {"$sum": 1}}},
    ]
    options: dict[str, Any] = {} if hint is None else {"hint": hint}
    groups = await (await records.aggregate(pipeline, **options)).to_list()
    return [(group["_id"], group["count"]) for group in groups]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return f"{shown}, and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown
