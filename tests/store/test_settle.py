"""Settling: every fate, held and lost, alone and in groups; a lost execution changes nothing and is told so."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, BulkWriteError

from gangline.jobs.definition import define_event, define_recurrent
from gangline.jobs.outcome import Bury, Failure, Fate, HandBack, Remove, RunAgain
from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.expired import ExpiredLeases
from gangline.store.connection import Document
from gangline.store.history import History
from gangline.store.settle import Settlement, Settler, Verdict
from gangline.worker.recovery import Recovery
from support.records import JOB, LEASES, Queue, execution, losing_the_answer, never_sent, open_queue, preceded, wrapped
from support.servers import fresh_database

Write = Callable[..., Awaitable[Any]]
WEEK = timedelta(weeks=1)
LATER = datetime(2100, 1, 1, tzinfo=UTC)
FAILURE = Failure("ValueError", "no such image", "Traceback …")
HELD, LOST = Verdict.HELD, Verdict.LOST
LOCK = {"lockId", "lockedUntil", "lockedBy", "claimWasStale"}
FATES: dict[str, Fate] = {
    "remove": Remove(),
    "run again": RunAgain(LATER, fresh=False),
    "run again fresh": RunAgain(LATER, fresh=True),
    "bury": Bury(keep=WEEK),
    "hand back": HandBack(),
}
every_fate = pytest.mark.parametrize("fate", FATES.values(), ids=FATES.keys())


def nothing() -> None:
    """The handler of jobs that are not run here."""


JOBS = {
    JOB: define_event(nothing, {"name": JOB}),
    "tick": define_recurrent(nothing, {"name": "tick", "every": "1h"}),
}


@pytest.fixture(scope="module")
def module_uri(mongo_uri: str) -> Iterator[str]:
    with fresh_database(mongo_uri) as uri:
        yield uri


@pytest.fixture
async def queue(module_uri: str) -> AsyncIterator[Queue]:
    async with open_queue(module_uri, emptied=True) as empty:
        yield empty


def settler(queue: Queue, **replacements: Any) -> Settler:
    records = wrapped(queue.records, replacements)
    return Settler(records, History(queue.connection.history, WEEK))


def each_write(queue: Queue, wrap: Callable[[Write], Write]) -> dict[str, Write]:
    """The methods by which fates take effect, wrapped."""
    return {name: wrap(getattr(queue.records, name)) for name in ("bulk_write", "delete_many")}


def settlement(record: ClaimedRecord, fate: Fate, *, doubtful: bool = False, repeated: bool = False) -> Settlement:
    failed = FAILURE if isinstance(fate, Bury) or (isinstance(fate, RunAgain) and not fate.fresh) else None
    return Settlement(execution(record, failure=failed), fate, doubtful=doubtful, repeated=repeated)


async def statuses(queue: Queue) -> dict[str, str]:
    """The history: by lock id the status."""
    entries = await queue.connection.history.find().to_list()
    return {entry["_id"]: entry["status"] for entry in entries}


# What a fate does to a record that is held


async def test_a_removed_record_is_gone(queue: Queue) -> None:
    """Case 8."""
    record = await queue.claim()
    assert await settler(queue).settle([settlement(record, Remove())]) == [HELD]
    assert not await queue.exists(record.id)


async def test_a_record_that_runs_again_waits_with_its_error_and_its_tries(queue: Queue) -> None:
    record = await queue.claim(tries=2, params={"a": 1})
    assert await settler(queue).settle([settlement(record, RunAgain(LATER, fresh=False))]) == [HELD]
    document = await queue.stored(record.id)
    assert (document["nextRunAt"], document["tries"], document["params"]) == (LATER, 3, {"a": 1})
    error = document["lastError"]
    assert (error["type"], error["message"], error["trace"]) == (FAILURE.type, FAILURE.message, FAILURE.trace)
    assert document["lastExecutionId"] == record.lease.lock_id


async def test_a_fresh_start_forgets_tries_and_error(queue: Queue) -> None:
    record = await queue.claim(type="recurrent", tries=2, lastError={"type": "Old"})
    assert await settler(queue).settle([settlement(record, RunAgain(LATER, fresh=True))]) == [HELD]
    document = await queue.stored(record.id)
    assert (document["nextRunAt"], document["tries"]) == (LATER, 0)
    assert "lastError" not in document


async def test_a_handed_back_record_is_free_at_once_and_the_try_is_not_charged(queue: Queue) -> None:
    """Case 51."""
    record = await queue.claim(tries=2)
    assert await settler(queue).settle([settlement(record, HandBack())]) == [HELD]
    assert (await queue.stored(record.id))["tries"] == 2
    assert (await queue.take_over()).records == ()
    assert await queue.claim_next() == record.id


@pytest.mark.parametrize("keep", [WEEK, None])
async def test_a_dead_record_is_visible_and_is_never_claimed(queue: Queue, keep: timedelta | None) -> None:
    record = await queue.claim(tries=9)
    settled = settlement(record, Bury(keep))
    assert await settler(queue).settle([settled]) == [HELD]
    ended = settled.execution.ended_at
    document = await queue.stored(record.id)
    assert (document["status"], document["maxTriesReachedAt"]) == ("maxTriesReached", ended)
    assert document.get("expiresAt") == (None if keep is None else ended + keep)
    assert ("expiresAt" in document) == (keep is not None)
    assert (document["tries"], document["lastError"]["message"]) == (10, FAILURE.message)
    assert await queue.claim_next() is None
    assert (await queue.take_over()).records == ()


async def test_a_dead_records_identifier_is_free_again(queue: Queue) -> None:
    """Case 27."""
    record = await queue.claim(uniqueIdentifier="welcome:42")
    await settler(queue).settle([settlement(record, Bury(None))])
    document = await queue.stored(record.id)
    assert "uniqueIdentifier" not in document
    assert document["freedUniqueIdentifier"] == "welcome:42"
    await queue.insert(uniqueIdentifier="welcome:42")


@every_fate
async def test_a_release_of_any_kind_unsets_the_lock_together(queue: Queue, fate: Fate) -> None:
    await queue.insert_expired(lockedBy="w")
    [record] = (await queue.take_over()).records
    assert (await queue.stored(record.id)).keys() >= LOCK, "it was taken over, so that all of them are set"
    assert await settler(queue).settle([settlement(record, fate)]) == [HELD]
    if not isinstance(fate, Remove):
        assert not (await queue.stored(record.id)).keys() & LOCK


# Fencing: both orders of each race


@every_fate
async def test_after_a_take_over_the_late_finisher_changes_nothing(queue: Queue, fate: Fate) -> None:
    """Case 1."""
    record = await queue.claim()
    taken = await queue.steal(record)
    before = await queue.stored(record.id)
    for repeated in (False, True):
        assert await settler(queue).settle([settlement(record, fate, repeated=repeated)]) == [LOST]
        assert await settler(queue).settle([settlement(record, fate, doubtful=True, repeated=repeated)]) == [LOST]
    assert await queue.stored(record.id) == before
    assert (await statuses(queue))[record.lease.lock_id] == "stale"
    assert await settler(queue).settle([settlement(taken, Remove())]) == [HELD]


@every_fate
async def test_a_take_over_in_the_midst_of_settling_wins(queue: Queue, fate: Fate) -> None:
    record = await queue.claim()

    async def rival() -> None:
        await queue.steal(record)

    late = settler(queue, **each_write(queue, lambda write: preceded(write, rival)))
    assert await late.settle([settlement(record, fate)]) == [LOST]
    document = await queue.stored(record.id)
    assert document["lockId"] != record.lease.lock_id
    assert document["tries"] == 2
    assert await statuses(queue) == {record.lease.lock_id: "stale"}


@every_fate
async def test_after_a_settling_write_there_is_nothing_to_take_over(queue: Queue, fate: Fate) -> None:
    record = await queue.claim()
    await queue.let_expire(record)

    async def finish() -> None:
        verdicts.extend(await settler(queue).settle([settlement(record, fate)]))

    verdicts: list[Verdict] = []
    records = wrapped(queue.records, {"update_many": preceded(queue.records.update_many, finish)})
    assert (await queue.take_over(records=records)).records == ()
    assert verdicts == [HELD]
    assert "stale" not in (await statuses(queue)).values()


@every_fate
@pytest.mark.parametrize("ended", FATES.values(), ids=FATES.keys())
async def test_after_the_next_owner_settled_the_late_finisher_changes_nothing(
    queue: Queue, fate: Fate, ended: Fate
) -> None:
    record = await queue.claim()
    taken = await queue.steal(record)
    await settler(queue).settle([settlement(taken, ended)])
    before = await queue.records.find_one({"_id": record.id})
    assert await settler(queue).settle([settlement(record, fate, doubtful=True)]) == [LOST]
    assert await queue.records.find_one({"_id": record.id}) == before
    assert (await statuses(queue))[record.lease.lock_id] == "stale"


@every_fate
async def test_after_someone_released_the_record_the_late_finisher_changes_nothing(queue: Queue, fate: Fate) -> None:
    record = await queue.claim()
    await queue.records.update_one({"_id": record.id}, {"$unset": dict.fromkeys(LOCK, "")})
    before = await queue.stored(record.id)
    assert await settler(queue).settle([settlement(record, fate)]) == [LOST]
    assert await queue.stored(record.id) == before


# Groups


async def test_each_of_a_group_gets_its_own_verdict(queue: Queue) -> None:
    records = [await queue.claim() for _ in range(2 * len(FATES))]
    lost = records[1::2]
    for record in lost:
        await queue.steal(record)
    before = [await queue.stored(record.id) for record in lost]
    fates = [fate for fate in FATES.values() for _ in range(2)]
    group = [settlement(record, fate) for record, fate in zip(records, fates, strict=True)]
    assert await settler(queue).settle(group) == [HELD, LOST] * len(FATES)
    assert [await queue.stored(record.id) for record in lost] == before
    stale = {lock_id for lock_id, status in (await statuses(queue)).items() if status == "stale"}
    assert stale == {record.lease.lock_id for record in lost}


async def test_the_doubtful_of_a_group_are_told_for_certain(queue: Queue) -> None:
    """A record that is gone may be gone by its next owner: only an answer of its own tells."""
    records = [await queue.claim() for _ in range(4)]
    for record in records[2:]:
        await settler(queue).settle([settlement(await queue.steal(record), Remove())])
    group = [settlement(record, Remove(), doubtful=number % 2 == 1) for number, record in enumerate(records[:2])]
    group += [settlement(record, Remove(), doubtful=True) for record in records[2:]]
    assert await settler(queue).settle(group) == [HELD, HELD, LOST, LOST]


async def test_a_group_may_hold_two_executions_of_one_record(queue: Queue) -> None:
    """A worker may take over what it lost itself: the earlier execution never settles for the later one."""
    lost = await queue.claim()
    held = await queue.steal(lost)
    group = [settlement(lost, Remove(), doubtful=True), settlement(held, RunAgain(LATER, fresh=False))]
    assert await settler(queue).settle(group) == [LOST, HELD]
    assert (await queue.stored(held.id))["lastExecutionId"] == held.lease.lock_id


async def test_a_removal_that_was_not_ones_own_is_never_called_held(queue: Queue) -> None:
    record = await queue.claim()
    await queue.records.delete_one({"_id": record.id})
    assert await settler(queue).settle([settlement(record, Remove())]) == [LOST]


async def test_a_record_that_was_deleted_by_hand_takes_no_other_ones_success(queue: Queue) -> None:
    ours, theirs = await queue.claim(), await queue.claim()
    await queue.records.delete_one({"_id": theirs.id})
    verdict, _ = await settler(queue).settle([settlement(ours, Remove()), settlement(theirs, Remove())])
    assert verdict is HELD


async def test_a_repeated_removal_of_a_record_that_the_next_owner_removed_is_lost(queue: Queue) -> None:
    record = await queue.claim()
    left = [await queue.stored(record.id)]
    await History(queue.connection.history, WEEK).write_lost(left, by="the next owner", now=LATER)
    await queue.records.delete_one({"_id": record.id})
    again = settlement(record, Remove(), doubtful=True, repeated=True)
    assert await settler(queue).settle([again]) == [LOST]


async def test_a_write_that_the_server_refuses_does_not_hold_up_the_others(queue: Queue) -> None:
    """A record of another program's may be so large that its error does not fit beside it."""
    huge = await queue.claim(params={"blob": b"x" * (16 * 1024 * 1024 - 2_000)})
    other = await queue.claim()
    failed = execution(huge, failure=Failure("ValueError", "no such image", "x" * 20_000))
    group = [Settlement(failed, RunAgain(LATER, fresh=False)), settlement(other, Remove())]
    with pytest.raises(BulkWriteError):
        await settler(queue).settle(group)
    assert not await queue.exists(other.id)


async def test_an_empty_group_is_nothing_to_do(queue: Queue) -> None:
    assert await settler(queue).settle([]) == []


# Lost answers


@every_fate
async def test_a_repeated_write_that_had_taken_effect_is_held_and_has_no_second_effect(
    queue: Queue, fate: Fate
) -> None:
    record = await queue.claim(tries=4)
    losing = settler(queue, **each_write(queue, losing_the_answer))
    with pytest.raises(AutoReconnect):
        await losing.settle([settlement(record, fate)])
    after = await queue.records.find_one({"_id": record.id})
    assert await settler(queue).settle([settlement(record, fate, repeated=True)]) == [HELD]
    assert await queue.records.find_one({"_id": record.id}) == after
    assert len(await statuses(queue)) == 1
    assert "stale" not in (await statuses(queue)).values()


@every_fate
async def test_a_repeated_write_that_had_no_effect_takes_effect(queue: Queue, fate: Fate) -> None:
    record = await queue.claim()
    await History(queue.connection.history, WEEK).write([settlement(record, fate).execution])
    assert await settler(queue).settle([settlement(record, fate, repeated=True)]) == [HELD]
    document = await queue.records.find_one({"_id": record.id})
    assert document is None or not document.keys() & LOCK
    assert len(await statuses(queue)) == 1


async def test_a_group_that_is_repeated_one_by_one_is_held_throughout(queue: Queue) -> None:
    group = [settlement(await queue.claim(), fate) for fate in FATES.values()]
    losing = settler(queue, **each_write(queue, losing_the_answer))
    with pytest.raises(AutoReconnect):
        await losing.settle(group)
    for item in group:
        assert await settler(queue).settle([settlement(item.execution.record, item.fate, repeated=True)]) == [HELD]


# The process dies between the history's write and the record's


def recovery(queue: Queue, *, history: History | None = None, writes: dict[str, Write] | None = None) -> Recovery:
    history = history or History(queue.connection.history, WEEK)
    return Recovery(
        ExpiredLeases(queue.records),
        history,
        Settler(wrapped(queue.records, writes or {}), history),
        queue.connection.clock,
        JOBS,
        LEASES,
        "host:2:recovering",
    )


async def die_between_the_writes(queue: Queue, failure: Failure | None = None, **fields: Any) -> ClaimedRecord:
    record = await queue.claim(**fields)
    await History(queue.connection.history, WEEK).write([execution(record, failure=failure)])
    await queue.let_expire(record)
    return record


async def entry(queue: Queue, record: ClaimedRecord) -> Document:
    document = await queue.connection.history.find_one({"_id": record.lease.lock_id})
    assert document is not None
    return document


async def test_a_job_that_had_told_its_success_is_finished_without_a_second_run(queue: Queue) -> None:
    record = await die_between_the_writes(queue)
    assert await recovery(queue).take_over([JOB], 5) == []
    assert not await queue.exists(record.id)
    assert await statuses(queue) == {record.lease.lock_id: "success"}


async def test_a_recurrent_job_that_had_told_its_success_waits_for_its_next_tick(queue: Queue) -> None:
    record = await die_between_the_writes(queue, jobName="tick", type="recurrent", tries=3)
    assert await recovery(queue).take_over(["tick"], 5) == []
    document = await queue.stored(record.id)
    assert document["nextRunAt"] > queue.now
    assert document["tries"] == 0
    assert not document.keys() & LOCK
    assert await statuses(queue) == {record.lease.lock_id: "success"}


async def test_a_job_that_had_told_an_error_runs_again(queue: Queue) -> None:
    """Case 55."""
    record = await die_between_the_writes(queue, FAILURE)
    [again] = await recovery(queue).take_over([JOB], 5)
    assert (again.id, again.tries) == (record.id, 2)
    assert (await entry(queue, record))["status"] == "error"


async def test_an_execution_that_died_without_a_word_is_told_as_stale(queue: Queue) -> None:
    """Case 3."""
    record = await queue.claim()
    await queue.let_expire(record)
    [again] = await recovery(queue).take_over([JOB], 5)
    assert (again.id, again.was_stale) == (record.id, True)
    told = await entry(queue, record)
    assert (told["status"], told["jobId"], told["tries"], told["worker"]) == ("stale", record.id, 1, "host:1:test")


async def test_a_late_finisher_does_not_take_back_a_success_that_was_accepted(queue: Queue) -> None:
    record = await die_between_the_writes(queue)
    await recovery(queue).take_over([JOB], 5)
    assert await settler(queue).settle([settlement(record, Remove(), doubtful=True)]) == [LOST]
    assert (await entry(queue, record))["status"] == "success"


async def test_a_success_that_its_execution_took_back_is_not_accepted(queue: Queue) -> None:
    """The other order: the execution learns of the take-over before recovery asks for its success."""
    record = await die_between_the_writes(queue)
    taken = await queue.take_over()
    assert await settler(queue).settle([settlement(record, Remove(), doubtful=True)]) == [LOST]
    assert not await History(queue.connection.history, WEEK).accept_success(
        record.lease.lock_id, by=taken.records[0].lease
    )
    assert (await entry(queue, record))["status"] == "stale"


async def test_without_a_history_a_lost_execution_runs_again(queue: Queue) -> None:
    record = await die_between_the_writes(queue)
    none = History(queue.connection.history, timedelta(0))
    [again] = await recovery(queue, history=none).take_over([JOB], 5)
    assert again.id == record.id


async def test_one_finished_job_that_cannot_be_settled_makes_no_other_run_again(queue: Queue) -> None:
    """The server goes away after the first: that one is done, the second waits for its lease, the third runs."""
    first = await die_between_the_writes(queue)
    second = await die_between_the_writes(queue)
    third = await queue.claim()
    await queue.let_expire(third)
    settled = 0

    def only_once(write: Write) -> Write:
        async def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal settled
            settled += 1
            return await (write if settled == 1 else never_sent)(*args, **kwargs)

        return call

    again = await recovery(queue, writes=each_write(queue, only_once)).take_over([JOB], 5)
    assert [record.id for record in again] == [third.id]
    assert sorted([await queue.exists(first.id), await queue.exists(second.id)]) == [False, True]


async def test_jobs_run_although_the_history_of_their_lost_executions_cannot_be_written(queue: Queue) -> None:
    record = await queue.claim()
    await queue.let_expire(record)
    unwritable = History(wrapped(queue.connection.history, {"insert_many": never_sent}), WEEK)
    [again] = await recovery(queue, history=unwritable).take_over([JOB], 5)
    assert again.id == record.id
