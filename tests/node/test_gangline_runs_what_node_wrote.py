"""Records as a Node program leaves them, claimed, run and settled by a Gangline worker."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline import Context, Gangline, RetryPolicy
from support.apps import AT_ONCE, Document, eventually, running, soon
from support.node_side import BY_JOB_NAME, OLD_BY_JOB_NAME, NodeSide
from support.queues import DEAD, dead_node_record, node_record

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
NULLS = dict.fromkeys(["lockId", "lockedUntil", "claimWasStale", "lastRunAt", "tries", "status", "maxTriesReachedAt"])
LOST = {"lockId": "Lf8b6vGqCjX2QwR7n", "lockedUntil": PAST, "lastRunAt": PAST, "tries": 1}

RECORDS: dict[str, Document] = {
    "with a partition": {"partition": 3},
    "a partition that is a double": {"partition": 2.0},
    "without a partition": {"partition": None},
    "a priority that is a double": {"priority": 100.0},
    "a priority that is a fraction": {"priority": 0.5},
    "priority 0": {"priority": 0},
    "params that are null": {"params": None},
    "explicit nulls": NULLS,
    "a lost lease": LOST,
    "a lost lease of an execution that went stale": {**LOST, "priority": 0},
    "a lost lease, claimed by a sorted update": {**LOST, "claimWasStale": True},
}


def written(node: NodeSide, **fields: Any) -> str:
    """Insert a record of the Node side, and return its id; `None` as partition leaves it out."""
    record = node_record("work", **fields)
    if record["partition"] is None:
        del record["partition"]
    node.records.insert_one(record)
    return str(record["_id"])


def free(node: NodeSide) -> Document | None:
    """The record, once an execution of Gangline's has released it."""
    return node.records.find_one({"lastExecutionId": {"$ne": None}, "lockId": {"$exists": False}})


@pytest.mark.parametrize("kind", RECORDS)
async def test_each_kind_of_record_is_run_and_removed(app: Gangline, node: NodeSide, kind: str) -> None:
    seen: list[Context] = []

    @app.event()
    async def work(ctx: Context) -> None:
        seen.append(ctx)

    job = written(node, **RECORDS[kind])
    async with running(app):
        await eventually(lambda: node.records.find_one({}) is None)
    [ctx] = seen
    assert (ctx.id, ctx.priority) == (job, RECORDS[kind].get("priority", 100))
    assert ctx.was_stale is ("lost lease" in kind)
    [entry] = node.history.find()  # of a lost Node execution nothing is invented
    assert (entry["jobId"], entry["status"], entry["executionId"]) == (job, "success", ctx.lease.lock_id)


@pytest.mark.parametrize("kind", RECORDS)
async def test_a_retry_leaves_a_record_that_node_can_claim(app: Gangline, node: NodeSide, kind: str) -> None:
    @app.event(retry=RetryPolicy.fixed("1h"))
    async def work() -> None:
        raise ValueError("no such image")

    node.start()
    job = written(node, **RECORDS[kind])
    async with running(app):
        record = await eventually(lambda: free(node))
    assert {"lockId", "lockedUntil", "claimWasStale"}.isdisjoint(record)
    assert record["tries"] == (2 if "lost lease" in kind else 1)
    assert node.claim("work") is None, "it is not due"
    node.records.update_one({}, {"$set": {"nextRunAt": PAST}})
    for hint in node.hints:
        before = node.record
        claimed = node.claim("work", hint=hint)
        assert claimed is not None
        assert (claimed.id, claimed.tries, claimed.was_stale) == (job, before["tries"] + 1, False)
        assert claimed.priority == RECORDS[kind].get("priority", 100)
        assert node.run_again(claimed, PAST, fresh=False, error="again")
    assert node.history.count_documents({"status": "stale"}) == 0


@pytest.mark.parametrize("expires", [True, False])
async def test_the_dead_stay_as_they_are(app: Gangline, node: NodeSide, expires: bool) -> None:
    done = asyncio.Event()

    @app.event()
    async def work() -> None:
        done.set()

    dead = dead_node_record("work", partition=1, priority=1_000)
    if not expires:
        del dead["expiresAt"]
    locked = dead_node_record("work", lockId="theirs", lockedUntil=PAST)
    node.records.insert_many([dead, locked, dead_node_record("work", partition=99)])
    before = list(node.records.find())
    written(node)
    async with running(app):
        await soon(done.wait())
        await eventually(lambda: list(node.records.find()) == before)


async def test_a_job_of_node_s_that_dies_here_is_dead_for_node_too(app: Gangline, node: NodeSide) -> None:
    @app.event(max_tries=1, keep_dead=None)
    async def work() -> None:
        raise ValueError("no such image")

    node.start()
    unique = node.schedule("work", {}, uniqueIdentifier="image:1")
    async with running(app):
        dead = await eventually(lambda: node.records.find_one({"status": DEAD}))
    assert (dead["_id"], dead["tries"]) == (unique, 1)
    assert "expiresAt" not in dead
    assert [node.claim("work", hint=hint) for hint in node.hints] == [None, None]
    assert node.schedule_many([("work", None, {"uniqueIdentifier": "image:1"})]) == 1, "the identifier is free again"
    node.apply_retention(timedelta(weeks=1))
    kept = node.records.find_one({"status": DEAD})
    assert kept is not None
    assert kept["expiresAt"] - dead["maxTriesReachedAt"] == timedelta(weeks=1)


async def test_a_recurrent_record_without_a_schedule_is_adopted_and_handed_to_and_fro(
    app: Gangline, node: NodeSide
) -> None:
    ran = asyncio.Event()

    @app.recurrent(every="1h")
    async def tick() -> None:
        ran.set()

    node.start(["tick"])
    made = node.record
    assert {"schedule", "params", "tries"}.isdisjoint(made)
    for run in range(2):
        async with running(app):
            await soon(ran.wait())
            record = await eventually(lambda: free(node))
        assert record["_id"] == made["_id"]
        assert record["nextRunAt"] > made["nextRunAt"]
        assert record["tries"] == 0
        assert node.claim("tick") is None, "it is not due"
        ran.clear()
        node.records.update_one({}, {"$set": {"nextRunAt": PAST}, "$unset": {"lastExecutionId": ""}})
        claimed = node.claim("tick", hint=node.hints[run])
        assert claimed is not None
        assert (claimed.type, claimed.tries, claimed.was_stale) == ("recurrent", 1, False)
        assert node.run_again(claimed, PAST, fresh=True)
    node.start(["tick"])
    assert node.records.count_documents({}) == 1
    assert [entry["status"] for entry in node.history.find()] == ["success"] * 4


async def test_what_a_stopped_worker_hands_back_is_node_s_at_once(app: Gangline, node: NodeSide) -> None:
    started = asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    node.start()
    job = node.schedule("work")
    async with running(app, grace=0):
        await soon(started.wait())
        assert [node.claim("work", hint=hint) for hint in node.hints] == [None, None]
    claimed = node.claim("work")
    assert claimed is not None
    assert (claimed.id, claimed.tries, claimed.was_stale) == (job, 1, False)


async def test_a_version_that_knows_no_partitions_shares_the_queue(app: Gangline, node: NodeSide, uri: str) -> None:
    """Both directions: its records are found here, and what was written here it claims by its own indexes."""
    runs: list[str] = []

    @app.event(retry=AT_ONCE)
    async def work(ctx: Context) -> None:
        runs.append(ctx.id)

    with NodeSide(uri, partitions=None) as old:
        old.start()
        ours = (await work.schedule()).id
        assert [(job := old.claim("work", hint=hint)) and job.id for hint in old.hints] == [ours, None]
        theirs = old.schedule("work")
        assert "partition" not in (old.records.find_one({"_id": theirs}) or {"partition": 0})
        async with running(app):
            await eventually(lambda: runs)
            await eventually(lambda: old.records.count_documents({}) == 1)
        assert runs == [theirs]
        assert old.replaced == []


async def test_the_replay_would_show_a_claim_that_node_cannot_make(app: Gangline, node: NodeSide) -> None:
    """Without its indexes a Node worker's hints are refused: the tests above can fail."""
    await app.schedule_by_name("work")
    for hint in (BY_JOB_NAME, OLD_BY_JOB_NAME):
        with pytest.raises(Exception, match="does not correspond to an existing index"):
            node.claim_in(0, ["work"], hint)
