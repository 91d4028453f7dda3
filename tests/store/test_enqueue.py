"""Scheduling against what others do to the same identifier at the same moment: each order of each race."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from gangline.jobs.outcome import Outcome, Remove, Status
from gangline.jobs.record import ClaimedRecord
from gangline.jobs.scheduling import JobCall, OnConflict, Scheduled, ScheduleStatus
from gangline.store.claims.batch import Batch
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.enqueue import Enqueuer
from gangline.store.history import Execution, History
from gangline.store.settle import Settlement, Settler, Verdict
from support.records import JOB, WORKER, Queue, open_queue, preceded, wrapped

CREATED, EXISTING, REPLACED = ScheduleStatus.CREATED, ScheduleStatus.EXISTING, ScheduleStatus.REPLACED


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


def call(number: int, on_conflict: OnConflict = "replace", **changes: Any) -> JobCall:
    return JobCall(name=JOB, params=lambda: {"n": number}, unique="x", on_conflict=on_conflict, **changes)


async def schedule(queue: Queue, *calls: JobCall, **replacements: Callable[..., Any]) -> list[Scheduled]:
    """Schedule into partition 0, with some of the collection's methods replaced for this alone."""
    connection, records = queue.connection, queue.connection.records
    connection.records = wrapped(records, replacements)
    enqueuer = Enqueuer(connection, 1)
    connection.records = records
    return await enqueuer.schedule(calls)


def followed(method: Callable[..., Awaitable[Any]], by: Callable[[], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`method`, but `by` happens between its effect and the caller's next step."""

    async def then(*args: Any, **kwargs: Any) -> Any:
        result = await method(*args, **kwargs)
        await by()
        return result

    return then


async def claim(queue: Queue) -> ClaimedRecord | None:
    claims = await FindAndModify(queue.records).claim(queue.request())
    return claims.records[0] if claims.records else None


async def succeed(queue: Queue, record: ClaimedRecord) -> None:
    """Settle `record` as done: it is deleted."""
    execution = Execution(
        record=record,
        outcome=Outcome(status=Status.SUCCESS),
        started_at=queue.now,
        ended_at=queue.now,
        worker=WORKER,
    )
    settler = Settler(queue.records, History(queue.connection.history, timedelta(0)))
    assert await settler.settle([Settlement(execution, Remove())]) == [Verdict.HELD]


async def run_now(queue: Queue) -> ClaimedRecord:
    """Claim the one record and settle it."""
    record = await claim(queue)
    assert record is not None
    await succeed(queue, record)
    return record


async def test_a_claim_just_before_the_replacement_keeps_its_record_and_its_params(queue: Queue) -> None:
    [first] = await schedule(queue, call(1))
    claimed: list[ClaimedRecord | None] = []

    async def rival() -> None:
        claimed.append(await claim(queue))

    [outcome] = await schedule(queue, call(2), bulk_write=preceded(queue.records.bulk_write, rival))
    assert (outcome.status, outcome.id) == (EXISTING, first.id)
    [record] = claimed
    assert record is not None
    assert record.params == {"n": 1}
    stored = await queue.stored(record.id)
    assert (stored["params"], stored["lockId"], stored["tries"]) == ({"n": 1}, record.lease.lock_id, 1)
    await succeed(queue, record)


async def test_a_claim_just_after_the_replacement_runs_the_new_params_and_the_outcome_says_replaced(
    queue: Queue,
) -> None:
    """Even though the record is gone before anything else could be read of it."""
    [first] = await schedule(queue, call(1))
    ran: list[Any] = []

    async def rival() -> None:
        ran.append((await run_now(queue)).params)

    [outcome] = await schedule(queue, call(2), bulk_write=followed(queue.records.bulk_write, rival))
    assert (outcome.status, outcome.id) == (REPLACED, first.id)
    assert ran == [{"n": 2}]
    assert not await queue.exists(first.id)


async def test_a_replacement_between_the_candidates_of_a_claim_and_its_write_is_what_runs(queue: Queue) -> None:
    await schedule(queue, call(1))

    async def rival() -> None:
        due = queue.now - timedelta(minutes=1)  # so that the claim still finds it eligible
        assert [outcome.status for outcome in await schedule(queue, call(2, run_at=due))] == [REPLACED]

    records = wrapped(queue.records, {"update_many": preceded(queue.records.update_many, rival)})
    [record] = (await Batch(records).claim(queue.request(limit=5))).records
    assert record.params == {"n": 2}


async def test_a_replacement_with_a_later_due_time_is_not_claimed_by_who_saw_the_earlier_one(queue: Queue) -> None:
    await schedule(queue, call(1))

    async def rival() -> None:
        await schedule(queue, call(2, run_in=timedelta(hours=1)))

    records = wrapped(queue.records, {"update_many": preceded(queue.records.update_many, rival)})
    claims = await Batch(records).claim(queue.request(limit=5))
    assert claims.records == ()


async def test_a_holder_that_ends_before_the_replacement_makes_it_a_new_job(queue: Queue) -> None:
    [first] = await schedule(queue, call(1))

    async def rival() -> None:
        await run_now(queue)

    [outcome] = await schedule(queue, call(2), bulk_write=preceded(queue.records.bulk_write, rival))
    assert outcome.status is CREATED
    assert outcome.id != first.id
    stored = await queue.stored(outcome.id)
    assert (stored["params"], stored["uniqueIdentifier"], stored["tries"]) == ({"n": 2}, "x", 0)
    assert "lockedUntil" not in stored
    assert (await run_now(queue)).params == {"n": 2}


@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
async def test_a_holder_that_ends_before_it_is_looked_at_makes_room(queue: Queue, on_conflict: OnConflict) -> None:
    [first] = await schedule(queue, call(1))
    ends = [run_now]

    async def rival() -> None:
        while ends:
            await ends.pop()(queue)

    [outcome] = await schedule(queue, call(2, on_conflict), update_many=preceded(queue.records.update_many, rival))
    assert outcome.status is CREATED
    assert outcome.id != first.id
    assert (await run_now(queue)).params == {"n": 2}


async def test_a_holder_that_a_node_worker_buries_before_the_replacement_is_not_revived(queue: Queue) -> None:
    """It keeps its identifier in death; a replacement written into it would never run."""
    [first] = await schedule(queue, call(1))

    async def rival() -> None:
        dead = {"status": "maxTriesReached", "maxTriesReachedAt": queue.now}
        await queue.records.update_one({"_id": first.id}, {"$set": dead})

    [outcome] = await schedule(queue, call(2), bulk_write=preceded(queue.records.bulk_write, rival))
    assert (outcome.status, outcome.id) == (EXISTING, first.id)
    assert (await queue.stored(first.id))["params"] == {"n": 1}
    [again] = await schedule(queue, call(2))
    assert again.status is CREATED


async def test_an_identifier_that_keeps_changing_hands_is_given_up_with_a_reason(queue: Queue) -> None:
    await queue.insert(uniqueIdentifier="x")
    rounds = 0

    async def free_it() -> None:
        nonlocal rounds
        rounds += 1
        await queue.records.delete_many({})

    async def take_it() -> None:
        await queue.records.delete_many({})
        await queue.insert(uniqueIdentifier="x")

    [outcome] = await schedule(
        queue,
        call(1, "skip"),
        insert_many=preceded(queue.records.insert_many, take_it),
        update_many=preceded(queue.records.update_many, free_it),
    )
    assert outcome.status is ScheduleStatus.REFUSED
    assert "'x' kept changing hands; try again" in str(outcome.error)
    assert rounds == 10


async def test_an_accepted_replacement_is_never_lost_nor_overtaken_by_old_params(queue: Queue) -> None:
    """A scheduler and a worker at full speed on one identifier."""
    ran: list[int] = []
    accepted: list[int] = []
    statuses: set[ScheduleStatus] = set()
    over = asyncio.Event()

    async def work() -> None:
        while not over.is_set() or await queue.records.find_one() is not None:
            record = await claim(queue)
            if record is not None:
                ran.append(record.params["n"])
                # A newer value that was accepted before this claim would have been in the record.
                await succeed(queue, record)

    worker = asyncio.create_task(work())
    for number in range(60):
        [outcome] = await schedule(queue, call(number))
        statuses.add(outcome.status)
        if outcome.status is not EXISTING:
            accepted.append(number)
    over.set()
    await asyncio.wait_for(worker, 8)
    assert ran == sorted(set(ran)), "a job ran twice, or an older one after a newer"
    assert set(ran) <= set(accepted), "a job ran that was said to be refused"
    assert ran[-1] == accepted[-1], "the last accepted one was lost"
    assert CREATED in statuses


async def test_an_insert_that_the_driver_repeats_is_one_job(queue: Queue) -> None:
    async def repeated(*args: Any, **kwargs: Any) -> Any:
        await insert_many(*args, **kwargs)
        return await insert_many(*args, **kwargs)

    insert_many = queue.records.insert_many
    outcomes = await schedule(queue, call(1, "raise"), JobCall(name=JOB, params=dict), insert_many=repeated)
    assert [outcome.status for outcome in outcomes] == [CREATED, CREATED]
    assert await queue.records.count_documents({}) == 2


async def test_many_schedule_one_identifier_at_once_and_the_last_accepted_stands(queue: Queue) -> None:
    outcomes = await asyncio.gather(*(schedule(queue, call(number)) for number in range(20)))
    statuses = sorted(outcome.status.value for [outcome] in outcomes)
    assert statuses == ["created"] + ["replaced"] * 19
    assert await queue.records.count_documents({}) == 1
    assert {outcome.id for [outcome] in outcomes} == {(await run_now(queue)).id}


async def test_who_may_not_make_the_index_of_identifiers_is_told(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.records.drop_index("uniqueIdentifier_1")

    async def refuse(*_: Any, **__: Any) -> None:
        raise OperationFailure("not authorized", 13)

    queue.connection.records = wrapped(queue.records, {"create_indexes": refuse})
    for _ in range(2):
        [outcome] = await Enqueuer(queue.connection, 1).schedule([call(1, "skip")])
        assert outcome.status is CREATED
    [record] = [record for record in caplog.records if record.name == "gangline.indexes"]
    assert "uniqueIdentifier_1" in record.getMessage()


async def test_a_large_bulk_that_is_cancelled_stops_the_insert_under_way(queue: Queue) -> None:
    """While one portion is stored the next is encoded; neither goes on alone."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def never_answered(*_: Any, **__: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    calls = [JobCall(name=JOB, params=dict) for _ in range(6_000)]
    bulk = asyncio.ensure_future(schedule(queue, *calls, insert_many=never_answered))
    await asyncio.wait_for(started.wait(), 8)
    bulk.cancel()
    await asyncio.wait({bulk}, timeout=8)
    assert bulk.cancelled()
    await asyncio.wait_for(ended.wait(), 8)
