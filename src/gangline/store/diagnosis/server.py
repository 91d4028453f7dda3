"""Checks of the server, the workers, and the way of a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gangline.jobs.hint import Shape
from gangline.jobs.settings import MAX_PARTITIONS
from gangline.store.claims.select import select_protocol
from gangline.store.clock import REPORT_SKEW_ABOVE
from gangline.store.connection import Document
from gangline.store.diagnosis.check import Scene, Verdict, broken, warning, well
from gangline.store.diagnosis.waiting import Waiting
from gangline.store.eligibility import MAX_SORTED_NAMES
from gangline.store.indexes import IndexState, IndexStatus, has_lock_id_index, index_status
from gangline.store.probe import explain
from gangline.store.reconcile import in_range
from gangline.store.registry import WorkerEntry

# A healthy claim reads a key or two for each name, and the record itself.
_EXAMINED_AT_MOST = 100
_EXAMINED_PER_NAME = 10


async def version(scene: Scene) -> Verdict:
    """Which server it is, and how workers claim on it."""
    build = await scene.connection.records.database.command("buildInfo")
    protocol = select_protocol(
        "auto",
        scene.connection.records,
        scene.capabilities,
        lock_id_index=await has_lock_id_index(scene.connection),
    )
    wire = scene.capabilities.wire_version
    return well(f"MongoDB {build['version']}, wire version {wire}: workers claim by {protocol.name}")


async def topology(scene: Scene) -> Verdict:
    """Whether the server can fail over and notify."""
    if scene.capabilities.replicated:
        return well("a replica set or a sharded cluster")
    return warning(
        "a standalone server: no fail-over, no notifications (workers poll), no transactions",
        "Run it as a replica set; one node is enough for notifications and transactions",
    )


async def clock(scene: Scene) -> Verdict:
    """How far this host's clock is off."""
    seconds = scene.skew.total_seconds()
    told = f"this host's clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the server's"
    if abs(scene.skew) <= REPORT_SKEW_ABOVE:
        return well(told)
    return warning(
        told,
        "Synchronise the clocks. Gangline goes by the server's, but Node workers take leases by their host's, and so "
        "may programs that compute an instant to run at",
    )


async def workers(scene: Scene) -> Verdict:
    """Which workers run, and whether they agree on the partitions."""
    if not scene.workers:
        return warning("no worker of Gangline's runs", "Start one: gangline worker module:app")
    counts = Counter(worker.partitions for worker in scene.workers)
    if scene.expected.partitions is not None:
        counts.setdefault(scene.expected.partitions, 0)
    if len(counts) > 1:
        return warning(f"partitions differ: {_disagreement(scene, counts)}", "Give all programs the same partitions")
    protocols = ", ".join(sorted({worker.claim_protocol for worker in scene.workers}))
    shapes = ", ".join(sorted({worker.shape for worker in scene.workers}))
    [partitions] = counts
    return well(f"workers: {len(scene.workers)}; partitions: {partitions}; claims: {protocols}; shape: {shapes}")


def _disagreement(scene: Scene, counts: Mapping[int, int]) -> str:
    by_count = [
        f"{partitions} in {', '.join(_names(scene.workers, partitions)) or 'what was expected'}"
        for partitions in sorted(counts)
    ]
    return "; ".join(by_count)


def _names(entries: Sequence[WorkerEntry], partitions: int) -> list[str]:
    return [entry.name for entry in entries if entry.partitions == partitions][:3]


async def indexes(scene: Scene) -> Verdict:
    """Whether all indexes are as needed."""
    found = await index_status(scene.connection)
    wrong = [index for index in found if index.state is IndexState.DIFFERING]
    missing = [index for index in found if index.state is IndexState.MISSING]
    if wrong:
        told = "; ".join(f"{index.name} is {index.note}" for index in wrong)
        return broken(told, ". ".join(dict.fromkeys(index.remedy for index in wrong)))
    if missing:
        # Without a worker nothing suffers yet: the first one makes them at its start.
        verdict = broken if scene.workers and any(_of_records(scene, index) for index in missing) else warning
        return verdict(f"missing: {', '.join(index.name for index in missing)}", "Run `gangline indexes ensure`")
    legacy = [index.name for index in found if index.state is IndexState.LEGACY]
    beside = f"; for Node workers: {', '.join(legacy)}" if legacy else ""
    return well(f"all indexes are as needed{beside}")


def _of_records(scene: Scene, index: IndexStatus) -> bool:
    return index.collection == scene.connection.records.name


async def claim(scene: Scene, shape: Shape) -> Verdict:
    """What the server reads for one claim by ``shape``, on the queue as it is."""
    in_queue = await scene.waiting.read()
    names = _names_to_claim(scene, shape, in_queue)
    if not names:
        return well("no job name is known and nothing waits")
    partition = _partition_to_ask(scene, names, in_queue)
    explained = await explain(scene.connection.records, shape, partition, names, scene.now)
    stats = explained["executionStats"]
    keys, documents = stats["totalKeysExamined"], stats["totalDocsExamined"]
    used = _in_use(scene, shape)
    told = (
        f"{keys:,} keys and {documents:,} documents examined for the next record in partition {partition} "
        f"(job names: {len(names)}){'' if used else '; no worker uses this shape'}"
    )
    sorts = "SORT" in set(_stages(explained))
    if used and (sorts or keys + documents > _EXAMINED_AT_MOST + _EXAMINED_PER_NAME * len(names)):
        return warning(
            f"{told}{', sorted in memory' if sorts else ''}",
            "Something stands in front of what can be claimed: look at `gangline jobs list` for records that are no "
            "jobs, such as dead ones without maxTriesReachedAt",
        )
    return well(told)


def _in_use(scene: Scene, shape: Shape) -> bool:
    """Without a worker the first shape is that of the next one."""
    return shape in ({worker.shape for worker in scene.workers} or {Shape.BY_NAME})


def _names_to_claim(scene: Scene, shape: Shape, in_queue: Sequence[Waiting]) -> list[str]:
    users = [worker.jobs for worker in scene.workers if worker.shape == shape]
    names = sorted(users[0] if users else scene.definitions or {item.name for item in in_queue})
    return names[:MAX_SORTED_NAMES] if shape is Shape.BY_NAME else names


def _partition_to_ask(scene: Scene, names: Sequence[str], in_queue: Sequence[Waiting]) -> int:
    """One in which something is due, if there is."""
    wanted = set(names)
    due = (item for item in in_queue if item.name in wanted and item.since <= scene.now)
    limit = scene.partitions or MAX_PARTITIONS
    return next((int(item.partition) for item in due if in_range(item.partition, limit)), 0)


def _stages(explained: Document) -> Iterator[str]:
    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("stage"), str):
                yield node["stage"]
            for child in node.values():
                yield from walk(child)
        elif isinstance(node, list):
            for child in node:
                yield from walk(child)

    return walk(explained.get("executionStats"))
