"""What Gangline writes, claimed and settled by the exact commands of a Node worker; and leases that change sides."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline import Context, Gangline, RetryPolicy, ScheduleStatus
from gangline.jobs.hint import Shape
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import ClaimRequest, LeaseLengths
from gangline.store.connection import Address, Connection
from gangline.store.indexes import ensure_indexes
from support.apps import Document, eventually, named, running, soon
from support.node_side import WEEK, NodeSide
from support.queues import DEAD, NODE_PREFIX

PAST = datetime(2020, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LOCK = {"lockId", "lockedUntil", "claimWasStale"}


@pytest.fixture
async def connection(uri: str) -> AsyncIterator[Connection]:
    """A connection to the Node queue, on which Gangline made its indexes before a Node worker ever started."""
    connection = Connection(Address.parse(uri, prefix=NODE_PREFIX))
    await ensure_indexes(connection)
    await connection.capabilities()
    yield connection
    await connection.close()


@pytest.fixture
def both(connection: Connection, node: NodeSide) -> NodeSide:
    """The Node program, started on the queue of Gangline's."""
    node.start()
    return node


async def claimed_here(connection: Connection, name: str = "work", partition: int = 0) -> Document:
    """Let a Gangline worker that then dies claim a record; return it with its lease at an end."""
    request = ClaimRequest(
        partition=partition,
        names=[name],
        limit=1,
        shape=Shape.BY_NAME,
        now=connection.clock.now() + SECOND,  # the clock is a lower bound: what is due right now is due for it as well
        leases=LeaseLengths(default=timedelta(seconds=30)),
        worker="host:1:gone",
    )
    [record] = (await FindAndModify(connection.records).claim(request)).records
    await connection.records.update_one({"_id": record.id}, {"$set": {"lockedUntil": PAST}})
    document = await connection.records.find_one({"_id": record.id})
    assert document is not None
    return document


# Scheduled here


@pytest.mark.parametrize("shape", [0, 1])
async def test_node_claims_by_both_shapes_and_ends_what_was_scheduled_here(
    app: Gangline, both: NodeSide, shape: int
) -> None:
    scheduled = [
        await app.schedule_by_name("work", {"n": n}, priority=priority) for n, priority in enumerate([0, 100, 0.5])
    ]
    for job in scheduled:
        both.records.update_one({"_id": job.id}, {"$set": {"partition": 2}})
    order = []
    while claimed := both.claim("work", "other", hint=both.hints[shape]):
        order.append(claimed.params["n"])
        assert (claimed.type, claimed.tries, claimed.was_stale) == ("event", 1, False)
        assert both.succeed(claimed)
    assert order == [1, 2, 0]
    assert both.records.count_documents({}) == 0
    assert both.history.count_documents({"status": "success"}) == 3


async def test_what_node_retried_or_left_is_claimed_here(app: Gangline, both: NodeSide) -> None:
    tries: list[int] = []
    scheduled = await app.schedule_by_name("work")

    @app.event()
    async def work(ctx: Context) -> None:
        tries.append(ctx.tries)

    claimed = both.claim("work")
    assert claimed is not None
    assert both.run_again(claimed, PAST, fresh=False, error="no such image")
    async with running(app):
        await eventually(lambda: both.records.find_one({}) is None)
    assert tries == [2]
    told = [(entry["jobId"], entry["status"], entry["tries"]) for entry in both.history.find().sort("tries", 1)]
    assert told == [(scheduled.id, "error", 1), (scheduled.id, "success", 2)]


async def test_a_job_of_ours_that_dies_there_is_dead_here_and_its_identifier_is_free_again(
    app: Gangline, both: NodeSide
) -> None:
    ran = asyncio.Event()

    @app.event()
    async def work() -> None:
        ran.set()

    first = await work.options(unique="image:1").schedule()
    claimed = both.claim("work")
    assert claimed is not None
    assert both.bury(claimed)
    dead = both.record
    assert both.claim("work") is None
    second = await work.options(unique="image:1").schedule()
    assert (second.status, second.id != first.id) == (ScheduleStatus.CREATED, True)
    async with running(app):
        await soon(ran.wait())
        await eventually(lambda: both.records.count_documents({}) == 1)
    del dead["uniqueIdentifier"]
    assert both.record == {**dead, "freedUniqueIdentifier": "image:1"}
    assert dead["expiresAt"] - dead["maxTriesReachedAt"] == WEEK


async def test_an_identifier_is_one_for_both_sides(app: Gangline, both: NodeSide) -> None:
    ours = await app.schedule_by_name("work", unique="a")
    theirs = both.schedule("work", None, uniqueIdentifier="b")
    assert both.schedule_many([("work", None, {"uniqueIdentifier": "a"}), ("work", None, {})]) == 1
    with pytest.raises(Exception, match="E11000"):
        both.schedule("work", None, uniqueIdentifier="a")
    again = [await app.schedule_by_name("work", unique=unique) for unique in "ab"]
    assert [(outcome.status, outcome.id) for outcome in again] == [
        (ScheduleStatus.EXISTING, ours.id),
        (ScheduleStatus.EXISTING, theirs),
    ]


async def test_a_recurrent_job_is_one_record_for_both_sides(app: Gangline, both: NodeSide) -> None:
    ran = asyncio.Event()

    @app.recurrent(every="1h", run_at_start=True, priority=7)
    async def tick() -> None:
        ran.set()

    async with running(app):
        await soon(ran.wait())
        await eventually(lambda: both.records.find_one({"tries": 0, "lastExecutionId": {"$ne": None}}))
    ours = both.record
    both.start(["tick"])
    assert both.record == {**ours, "priority": 100}, "a Node worker gives it the priority of its own definition"
    with pytest.raises(Exception, match="E11000"):
        both.records.insert_one({**ours, "_id": "another"})
    assert both.claim("tick") is None
    both.records.update_one({}, {"$set": {"nextRunAt": PAST}})
    claimed = both.claim("tick")
    assert claimed is not None
    assert both.run_again(claimed, ours["nextRunAt"], fresh=True)
    left = both.record
    assert LOCK.isdisjoint(left)
    assert (left["schedule"], left["tries"], left["nextRunAt"]) == (ours["schedule"], 0, ours["nextRunAt"])


# Leases that change sides


async def test_node_takes_over_a_lease_that_ended_and_the_late_finisher_changes_nothing(
    app: Gangline, both: NodeSide
) -> None:
    started, end, stale = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def told(params: Any, ctx: Context) -> None:
        stale.set()

    @app.event(lease="1s", renew=False, on_stale=told, retry=RetryPolicy.fixed("1h"))
    async def work() -> None:
        started.set()
        await end.wait()

    async with running(app, poll_interval="1h") as worker:
        job = await work.schedule()
        await soon(started.wait())
        lost = worker.running_executions[0].lease
        # Before the worker notices: else it might take its own record over.
        both.records.update_one({"lockId": lost.lock_id}, {"$set": {"lockedUntil": PAST}})
        claimed = both.claim("work")
        assert claimed is not None
        assert (claimed.id, claimed.tries, claimed.was_stale) == (job.id, 2, True)
        theirs = both.record
        end.set()
        await soon(stale.wait())
        await eventually(lambda: both.history.find_one({"executionId": lost.lock_id, "status": "stale"}))
        assert both.record == theirs
        assert both.succeed(claimed)
    statuses = {entry["executionId"]: entry["status"] for entry in both.history.find()}
    assert statuses == {lost.lock_id: "stale", claimed.lock_id: "success"}


async def test_gangline_takes_over_a_lease_that_ended_and_node_s_late_finisher_changes_nothing(
    app: Gangline, both: NodeSide
) -> None:
    started, end = asyncio.Event(), asyncio.Event()
    stale: list[bool] = []

    @app.event()
    async def work(ctx: Context) -> None:
        stale.append(ctx.was_stale)
        started.set()
        await end.wait()

    job = both.schedule("work", None, priority=50)
    lost = both.claim("work")
    assert lost is not None
    both.let_expire(lost)
    async with running(app):
        await soon(started.wait())
        ours = both.record
        assert (ours["tries"], stale) == (2, [True])
        assert not both.succeed(lost)
        assert not both.run_again(lost, PAST, fresh=False)
        assert not both.bury(lost)
        assert not both.extend(lost, timedelta(hours=1))
        assert both.record == {**ours, "lockedUntil": both.record["lockedUntil"]}
        end.set()
        await eventually(lambda: both.records.find_one({}) is None)
    told = {entry["executionId"]: (entry["jobId"], entry["status"]) for entry in both.history.find()}
    assert told == {lost.lock_id: (job, "stale"), ours["lockId"]: (job, "success")}


async def test_one_that_went_stale_there_with_its_lock_is_taken_over_at_priority_0(
    app: Gangline, both: NodeSide
) -> None:
    priorities: list[float] = []

    @app.event()
    async def work(ctx: Context) -> None:
        priorities.append(ctx.priority)

    both.schedule("work")
    lost = both.claim("work")
    assert lost is not None
    both.let_expire(lost)
    assert both.go_stale(lost)
    async with running(app):
        await eventually(lambda: both.records.find_one({}) is None)
    assert priorities == [0]
    assert sorted(entry["status"] for entry in both.history.find()) == ["stale", "success"]


async def test_no_history_is_invented_for_a_node_execution_that_had_taken_over_one_of_ours(
    app: Gangline, both: NodeSide, connection: Connection
) -> None:
    """Node leaves Gangline's own fields as they were, `lockedBy` of the first owner among them."""

    @app.event()
    async def work() -> None: ...

    both.schedule("work", None, partition=0)
    ours = await claimed_here(connection)
    theirs = both.claim("work")
    assert theirs is not None
    assert (theirs.was_stale, both.record["lockedBy"]) == (True, ours["lockedBy"])
    both.let_expire(theirs)
    async with running(app):
        await eventually(lambda: both.records.find_one({}) is None)
    assert [(entry["tries"], entry["status"]) for entry in both.history.find()] == [(3, "success")]


async def test_the_history_of_an_execution_of_ours_that_died_is_written_by_whoever_of_us_takes_over(
    app: Gangline, both: NodeSide, connection: Connection
) -> None:
    @app.event()
    async def work() -> None: ...

    both.schedule("work", None, partition=0)
    lost = await claimed_here(connection)
    async with running(app):
        await eventually(lambda: both.records.find_one({}) is None)
    told = {entry["executionId"]: entry["status"] for entry in both.history.find({"tries": 1})}
    assert told == {lost["lockId"]: "stale"}


async def test_a_dead_record_of_ours_has_what_node_s_retention_needs(app: Gangline, both: NodeSide) -> None:
    @app.event(max_tries=1)
    async def work() -> None:
        raise ValueError("no such image")

    await work.schedule()
    async with running(app):
        dead = await eventually(lambda: both.records.find_one({"status": DEAD}))
    both.start(keep_dead=None)
    assert "expiresAt" not in both.record
    both.start(keep_dead=timedelta(days=1))
    assert both.record["maxTriesReachedAt"] == dead["maxTriesReachedAt"]
    assert both.record["expiresAt"] - dead["maxTriesReachedAt"] == timedelta(days=1)
    assert both.claim("work") is None


# The sorted updates of MongoDB 8


@pytest.mark.parametrize("shape", [0, 1])
async def test_by_sorted_updates_both_sides_pass_a_record_to_and_fro(sorted_uri: str, shape: int) -> None:
    tries: list[tuple[int, bool]] = []
    async with Gangline(named(sorted_uri), prefix=NODE_PREFIX, partitions=1) as app:

        @app.event()
        async def work(ctx: Context) -> None:
            tries.append((ctx.tries, ctx.was_stale))

        with NodeSide(sorted_uri, partitions=1) as node:
            node.make_indexes()
            await work.schedule()
            lost = node.claim_sorted(0, ["work"], node.hints[shape])
            assert lost is not None
            assert (lost.tries, lost.was_stale) == (1, False)
            node.let_expire(lost)
            again = node.claim_sorted(0, ["work"], node.hints[shape])
            assert again is not None
            assert (again.tries, again.was_stale) == (2, True)
            assert not node.succeed(lost)
            node.let_expire(again)
            async with running(app, claim="sorted-update"):
                await eventually(lambda: node.records.find_one({}) is None)
            assert tries == [(3, True)]
