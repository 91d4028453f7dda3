"""The history: one entry for each execution, whatever it returned; the first status written stays."""

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, BulkWriteError

from gangline.jobs.outcome import Failure, Remove, Status
from gangline.jobs.record import ClaimedRecord
from gangline.store.connection import Document
from gangline.store.history import History
from gangline.store.schema import HISTORY_INDEXES
from gangline.store.settle import Settlement, Settler, Verdict
from support.records import JOB, WORKER, Queue, execution, fail_command, losing_the_answer, open_queue, wrapped
from support.servers import fresh_database

WEEK = timedelta(weeks=1)
MEGABYTE = 1024 * 1024
FAILURE = Failure("ValueError", "no such image", "Traceback …")


@pytest.fixture(scope="module")
def module_uri(mongo_uri: str) -> Iterator[str]:
    with fresh_database(mongo_uri) as uri:
        yield uri


@pytest.fixture
async def queue(module_uri: str) -> AsyncIterator[Queue]:
    async with open_queue(module_uri, emptied=True) as empty:
        yield empty


def history(queue: Queue, keep: timedelta = WEEK) -> History:
    return History(queue.connection.history, keep)


async def entries(queue: Queue) -> list[Document]:
    return await queue.connection.history.find().to_list()


async def only_entry(queue: Queue) -> Document:
    [entry] = await entries(queue)
    return entry


# What an entry tells


async def test_an_entry_tells_whose_execution_it_was_and_how_it_went(queue: Queue) -> None:
    record = await queue.claim(params={"a.b": {"$c": 0}}, priority=0, uniqueIdentifier="u", tries=1)
    run = execution(record, result={"size": 3})
    await history(queue).write([run])
    assert await only_entry(queue) == {
        "_id": record.lease.lock_id,
        "jobId": record.id,
        "executionId": record.lease.lock_id,
        "jobName": JOB,
        "type": "event",
        "priority": 0,
        "tries": 2,
        "uniqueIdentifier": "u",
        "startedAt": run.started_at,
        "endedAt": run.ended_at,
        "duration": 1500,
        "expiresAt": run.ended_at + WEEK,
        "status": "success",
        "params": {"a.b": {"$c": 0}},
        "result": {"size": 3},
        "worker": WORKER,
    }


async def test_what_there_is_not_is_not_stored(queue: Queue) -> None:
    await history(queue).write([execution(await queue.claim())])
    missing = {"uniqueIdentifier", "result", "dismissed", "errorMessage", "errorType", "errorTrace"}
    assert not missing & (await only_entry(queue)).keys()


async def test_an_error_is_told_with_its_text(queue: Queue) -> None:
    await history(queue).write([execution(await queue.claim(), failure=FAILURE)])
    entry = await only_entry(queue)
    assert entry["status"] == "error"
    told = (entry["errorType"], entry["errorMessage"], entry["errorTrace"])
    assert told == (FAILURE.type, FAILURE.message, FAILURE.trace)


@pytest.mark.parametrize(("reason", "kept"), [("", ""), ("cancelled", "cancelled"), ("\ud800", "?")])
async def test_a_dismissal_is_a_success_with_its_reason(queue: Queue, reason: str, kept: str) -> None:
    await history(queue).write([execution(await queue.claim(), dismissed=reason)])
    entry = await only_entry(queue)
    assert (entry["status"], entry["dismissed"]) == ("success", kept)


async def test_a_dismissal_of_any_length_is_told(queue: Queue) -> None:
    await history(queue).write([execution(await queue.claim(), dismissed="long " * 4 * MEGABYTE)])
    assert (await only_entry(queue))["dismissed"].startswith("long long")


async def test_a_clock_that_stepped_back_gives_no_negative_duration(queue: Queue) -> None:
    await history(queue).write([execution(await queue.claim(), seconds=-5)])
    assert (await only_entry(queue))["duration"] == 0


@pytest.mark.parametrize("params", [None, 0, "", [], "text"], ids=repr)
async def test_params_are_told_as_they_were_stored(queue: Queue, params: Any) -> None:
    """Case 60."""
    await history(queue).write([execution(await queue.claim(params=params))])
    assert (await only_entry(queue))["params"] == params


# Once for each execution


async def test_a_repeated_write_changes_nothing(queue: Queue) -> None:
    first, second = await queue.claim(), await queue.claim()
    await history(queue).write([execution(first, result=1)])
    await history(queue).write([execution(first, failure=FAILURE), execution(second, result=2)])
    results = {entry["_id"]: (entry["status"], entry["result"]) for entry in await entries(queue)}
    assert results == {first.lease.lock_id: ("success", 1), second.lease.lock_id: ("success", 2)}


async def test_a_write_whose_answer_was_lost_is_repeated_without_harm(queue: Queue) -> None:
    run = execution(await queue.claim(), result=1)
    inserts = losing_the_answer(queue.connection.history.insert_many)
    losing = History(wrapped(queue.connection.history, {"insert_many": inserts}), WEEK)
    with pytest.raises(AutoReconnect):
        await losing.write([run])
    await history(queue).write([run])
    assert (await only_entry(queue))["result"] == 1


async def test_each_execution_of_a_record_has_an_entry(queue: Queue) -> None:
    record = await queue.claim()
    await history(queue).write([execution(record, failure=FAILURE)])
    again = await queue.steal(record)
    await history(queue).write([execution(again)])
    assert [(entry["jobId"], entry["tries"]) for entry in await entries(queue)] == [(record.id, 1), (record.id, 2)]


async def test_what_the_server_could_not_confirm_is_an_error(queue: Queue) -> None:
    run = execution(await queue.claim())
    error = {"code": 64, "errmsg": "no majority in time"}
    with fail_command(queue.uri, failCommands=["insert"], writeConcernError=error), pytest.raises(BulkWriteError):
        await history(queue).write([run])


# What cannot be stored: the execution is told, and its record settles.


class Unknown:
    """A value that no codec knows."""


UNSTORABLE: dict[str, Any] = {
    "17 MB": "x" * (17 * MEGABYTE),
    "an unknown type": Unknown(),
    "a nested unknown type": {"a": [Unknown()]},
    "more than 64 bits": 2**64,
    "a lone surrogate": "\ud800",
    "a key that is no text": {1: 2},
    "a key with a NUL": {"a\0b": 1},
}


@pytest.mark.parametrize("result", UNSTORABLE.values(), ids=UNSTORABLE.keys())
async def test_a_result_that_cannot_be_stored_is_left_out_with_the_reason(queue: Queue, result: Any) -> None:
    """Case 35."""
    plain, odd = await queue.claim(), await queue.claim(params={"id": uuid.uuid4()})
    group = [Settlement(execution(plain, result=7), Remove()), Settlement(execution(odd, result=result), Remove())]
    assert await Settler(queue.records, history(queue)).settle(group) == [Verdict.HELD, Verdict.HELD]
    assert not await queue.exists(odd.id)
    told = {entry["_id"]: entry for entry in await entries(queue)}
    entry = told[odd.lease.lock_id]
    assert entry["status"] == "success"
    assert not {"result", "params"} & entry.keys()
    assert "cannot be stored" in entry["errorMessage"]
    assert len(entry["errorMessage"]) < 500
    assert told[plain.lease.lock_id]["result"] == 7
    assert "errorMessage" not in told[plain.lease.lock_id]


async def test_params_and_result_that_fit_alone_and_not_together_are_left_out(queue: Queue) -> None:
    record = await queue.claim(params={"blob": b"x" * 9 * MEGABYTE})
    await history(queue).write([execution(record, result=b"x" * 9 * MEGABYTE)])
    entry = await only_entry(queue)
    assert "cannot be stored" in entry["errorMessage"]


async def test_an_error_stays_readable_when_the_params_are_left_out(queue: Queue) -> None:
    record = await queue.claim(params={"blob": b"x" * (16 * MEGABYTE - 2_000)})
    await history(queue).write([execution(record, failure=Failure("ValueError", "no such image", "x" * 20_000))])
    entry = await only_entry(queue)
    assert entry["status"] == "error"
    assert entry["errorMessage"].startswith("no such image; params and result are not kept")
    assert entry["errorType"] == "ValueError"


# Stale


async def test_a_lost_execution_turns_its_own_entry_stale(queue: Queue) -> None:
    lost, other = await queue.claim(), await queue.claim()
    await history(queue).write([execution(lost, result=1), execution(other, result=2)])
    await history(queue).turn_stale([lost.lease])
    statuses = {entry["_id"]: entry["status"] for entry in await entries(queue)}
    assert statuses == {lost.lease.lock_id: "stale", other.lease.lock_id: "success"}


async def test_an_accepted_success_stays(queue: Queue) -> None:
    record = await queue.claim()
    await history(queue).write([execution(record)])
    next_owner = await queue.steal(record)
    assert await history(queue).accept_success(record.lease.lock_id, by=next_owner.lease)
    await history(queue).turn_stale([record.lease])
    entry = await only_entry(queue)
    assert (entry["status"], entry["acceptedBy"]) == ("success", next_owner.lease.lock_id)


async def test_what_turned_stale_is_accepted_no_more(queue: Queue) -> None:
    record = await queue.claim()
    await history(queue).write([execution(record)])
    next_owner = await queue.steal(record)
    await history(queue).turn_stale([record.lease])
    assert not await history(queue).accept_success(record.lease.lock_id, by=next_owner.lease)
    assert (await only_entry(queue))["status"] == "stale"


@pytest.mark.parametrize("status", [Status.ERROR, Status.STALE])
async def test_only_a_success_can_be_accepted(queue: Queue, status: Status) -> None:
    record = await queue.claim()
    await history(queue).write([execution(record, status=status)])
    next_owner = await queue.steal(record)
    assert not await history(queue).accept_success(record.lease.lock_id, by=next_owner.lease)
    assert not await history(queue).accept_success("nobody's", by=next_owner.lease)


async def left_behind(queue: Queue, **fields: Any) -> tuple[ClaimedRecord, Document]:
    """A record whose execution died, and the document that it left."""
    record = await queue.claim(**fields)
    await queue.let_expire(record)
    return record, await queue.stored(record.id)


async def test_the_next_owner_writes_the_entry_of_an_execution_that_died(queue: Queue) -> None:
    record, left = await left_behind(queue, tries=1, priority=7)
    now = queue.now
    assert await history(queue).write_lost([left], by="host:2", now=now) == set()
    entry = await only_entry(queue)
    assert (entry["_id"], entry["executionId"]) == (record.lease.lock_id, record.lease.lock_id)
    assert (entry["jobId"], entry["jobName"], entry["type"]) == (record.id, JOB, "event")
    assert (entry["status"], entry["tries"], entry["priority"]) == ("stale", 2, 7)
    assert (entry["worker"], entry["startedAt"]) == (WORKER, record.claimed_at)
    assert "host:2" in entry["errorMessage"]
    assert entry["expiresAt"] - entry["endedAt"] == WEEK


async def test_an_entry_that_the_lost_execution_wrote_stays(queue: Queue) -> None:
    (spoken, left), (_, silent) = await left_behind(queue), await left_behind(queue)
    await history(queue).write([execution(spoken, result=1)])
    assert await history(queue).write_lost([left, silent], by="w", now=queue.now) == {spoken.lease.lock_id}
    statuses = {entry["_id"]: entry["status"] for entry in await entries(queue)}
    assert statuses == {spoken.lease.lock_id: "success", silent["lockId"]: "stale"}


async def test_a_late_success_does_not_replace_the_entry_of_the_next_owner(queue: Queue) -> None:
    record, left = await left_behind(queue)
    await history(queue).write_lost([left], by="w", now=queue.now)
    await history(queue).write([execution(record)])
    assert (await only_entry(queue))["status"] == "stale"


async def test_what_a_node_worker_left_is_not_told_twice(queue: Queue) -> None:
    """It writes a history of its own, under ids of its own."""
    node = {"_id": "a", "jobName": JOB, "lockId": "theirs", "lastRunAt": queue.now, "lockedUntil": queue.now}
    assert await history(queue).write_lost([node], by="w", now=queue.now) == set()
    assert await entries(queue) == []


# None at all


async def test_without_a_history_nothing_is_written(queue: Queue) -> None:
    none = history(queue, timedelta(0))
    record, left = await left_behind(queue)
    await none.write([execution(record)])
    assert await none.write_lost([left], by="w", now=queue.now) == set()
    assert not await none.accept_success(record.lease.lock_id, by=record.lease)
    assert await entries(queue) == []
    await history(queue).write([execution(record)])
    await none.turn_stale([record.lease])
    assert (await only_entry(queue))["status"] == "success"
    assert not await none.accept_success(record.lease.lock_id, by=record.lease)


async def test_the_history_has_the_indexes_of_the_node_side(queue: Queue) -> None:
    present = await queue.connection.history.index_information()
    assert {index.name for index in HISTORY_INDEXES} < present.keys()
    assert present["expiresAt_1"]["expireAfterSeconds"] == 0
