"""The one record of each recurrent job: who makes it, and when it moves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import TypeAdapter
from typing_extensions import Unpack

from gangline.jobs.definition import JobDefinition, RecurrentOptions, define_event, define_recurrent
from gangline.store.connection import Document
from gangline.store.recurrent import RecurrentRecords
from support.records import Queue, locked_until, open_queue, preceded, wrapped

# Pydantic looks for its plugins on the disk once per process, and a zone is read once; here no event loop runs.
TypeAdapter(int)
ZONES = [ZoneInfo(key) for key in ("UTC", "America/Santiago", "Asia/Tokyo")]

HOUR = timedelta(hours=1)
NEAR = timedelta(seconds=5)


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


def tick() -> None: ...


def recurrent(**options: Unpack[RecurrentOptions]) -> JobDefinition:
    return define_recurrent(tick, options)


def hourly(**options: Any) -> JobDefinition:
    return recurrent(every="1h", **options)


async def register(queue: Queue, *jobs: JobDefinition) -> Document:
    """Register `jobs` and return the one record."""
    await RecurrentRecords(queue.connection, 4).register(jobs)
    [record] = await queue.records.find().to_list()
    return record


async def a_node_record(queue: Queue, **fields: Any) -> datetime:
    """Insert the record of a Node worker for the job and return when it is due."""
    due: datetime = fields.pop("nextRunAt", (queue.now + timedelta(minutes=7)).replace(microsecond=0))
    await queue.insert(jobName="tick", type="recurrent", nextRunAt=due, priority=100, **fields)
    return due


async def test_the_first_registration_writes_the_whole_record(queue: Queue) -> None:
    record = await register(queue, hourly(priority=0))
    assert record.keys() == {
        *("_id", "jobName", "type", "priority", "nextRunAt", "partition", "params", "tries", "createdAt", "schedule"),
    }
    assert (record["jobName"], record["type"], record["priority"]) == ("tick", "recurrent", 0)
    assert (record["params"], record["tries"]) == ({}, 0)
    assert isinstance(record["_id"], str)
    assert isinstance(record["partition"], int)
    assert 0 <= record["partition"] < 4
    assert record["schedule"] == {"rule": "every 1h", "anchor": record["createdAt"]}


async def test_an_interval_counts_from_the_registration_and_does_not_run_at_once(queue: Queue) -> None:
    record = await register(queue, hourly())
    assert abs(record["createdAt"] - queue.now) < NEAR
    assert record["nextRunAt"] == record["createdAt"] + HOUR


async def test_a_cron_job_does_not_run_at_its_first_registration(queue: Queue) -> None:
    """Case 19."""
    in_an_hour = queue.now + HOUR
    record = await register(queue, recurrent(cron=f"{in_an_hour.minute} {in_an_hour.hour} * * *"))
    assert queue.now < record["nextRunAt"] <= in_an_hour
    assert record["nextRunAt"] == in_an_hour.replace(second=0, microsecond=0)


async def test_a_function_gives_the_first_instant(queue: Queue) -> None:
    asked: list[datetime] = []

    def next_run(after: datetime) -> datetime:
        asked.append(after)
        return datetime(2100, 1, 1, tzinfo=UTC)

    record = await register(queue, recurrent(next_run=next_run))
    assert record["nextRunAt"] == datetime(2100, 1, 1, tzinfo=UTC)
    assert len(asked) == 1
    assert abs(asked[0] - queue.now) < NEAR


async def test_run_at_start_makes_the_first_registration_due_and_no_later_one(queue: Queue) -> None:
    job = hourly(run_at_start=True)
    record = await register(queue, job)
    assert record["nextRunAt"] == record["createdAt"] <= queue.now
    await queue.records.update_one({}, {"$set": {"nextRunAt": record["createdAt"] + HOUR}})
    assert (await register(queue, job))["nextRunAt"] == record["createdAt"] + HOUR
    changed = await register(queue, recurrent(every="2h", run_at_start=True))
    assert changed["nextRunAt"] > queue.now + HOUR


async def test_registering_again_changes_nothing(queue: Queue) -> None:
    first = await register(queue, hourly())
    assert await register(queue, hourly()) == first
    await queue.records.update_one({}, {"$set": locked_until(queue.now + HOUR)})
    running = await queue.stored(first["_id"])
    assert await register(queue, hourly()) == running


async def test_many_processes_register_at_once_and_there_is_one_record(uri: str, queue: Queue) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(open_queue(uri)) for _ in range(8)]
        await asyncio.gather(*(RecurrentRecords(other.connection, 4).register([hourly()]) for other in others))
    assert await queue.records.count_documents({"jobName": "tick"}) == 1


async def test_who_loses_the_race_for_the_first_registration_leaves_the_winner_alone(queue: Queue) -> None:
    async def rival() -> None:
        await register(queue, hourly())

    original = queue.connection.records
    queue.connection.records = wrapped(original, {"insert_one": preceded(original.insert_one, rival)})
    late = RecurrentRecords(queue.connection, 4)
    queue.connection.records = original
    await late.register([recurrent(every="2h")])
    [record] = await queue.records.find().to_list()
    assert record["schedule"]["rule"] == "every 1h"


async def test_event_jobs_have_no_record(queue: Queue) -> None:
    await RecurrentRecords(queue.connection, 4).register([define_event(tick, {})])
    assert await queue.records.find_one() is None


async def test_an_event_record_of_the_same_name_is_no_registration(queue: Queue) -> None:
    """Case 72."""
    await queue.insert(jobName="tick")
    await RecurrentRecords(queue.connection, 4).register([hourly()])
    assert sorted([record["type"] async for record in queue.records.find()]) == ["event", "recurrent"]


# A rule that changed

CHANGES: dict[str, Callable[[], JobDefinition]] = {
    "another interval": lambda: recurrent(every="2h"),
    "a cron expression": lambda: recurrent(cron="0 3 * * *"),
    "a function": lambda: recurrent(next_run=lambda after: after + HOUR),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_rule_moves_the_record_once(queue: Queue, change: str) -> None:
    job = CHANGES[change]()
    rule = job.recurrence
    assert rule is not None
    before = await register(queue, hourly())
    after = await register(queue, job)
    assert after["schedule"]["rule"] == rule.text
    anchor = after["schedule"]["anchor"]
    assert abs(anchor - queue.now) < NEAR
    assert abs(after["nextRunAt"] - rule.next_after(anchor, anchor=anchor)) < timedelta(milliseconds=2)
    same = {"_id", "jobName", "type", "partition", "priority", "tries", "createdAt", "params"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert await register(queue, job) == after


async def test_the_time_zone_belongs_to_the_rule(queue: Queue) -> None:
    before = await register(queue, recurrent(cron="0 3 * * *", timezone=ZONES[1].key))
    after = await register(queue, recurrent(cron="0 3 * * *", timezone=ZONES[2].key))
    assert before["nextRunAt"] != after["nextRunAt"]


async def test_a_changed_rule_leaves_the_lease_of_a_run_under_way_alone(queue: Queue) -> None:
    record = await register(queue, hourly())
    lease = locked_until(queue.now + HOUR)
    await queue.records.update_one({}, {"$set": lease})
    after = await register(queue, recurrent(every="2h"))
    assert (after["lockId"], after["tries"]) == (lease["lockId"], 1)
    assert after["schedule"]["rule"] == "every 2h"
    assert after["_id"] == record["_id"]


async def test_who_sees_a_change_that_another_made_already_does_not_move_the_record_again(queue: Queue) -> None:
    await register(queue, hourly())
    moved: list[Document] = []

    async def rival() -> None:
        moved.append(await register(queue, recurrent(every="2h")))

    original = queue.connection.records
    queue.connection.records = wrapped(original, {"update_one": preceded(original.update_one, rival)})
    late = RecurrentRecords(queue.connection, 4)
    queue.connection.records = original
    await late.register([recurrent(every="2h")])
    assert await queue.records.find().to_list() == moved


# A record that a Node worker made


@pytest.mark.parametrize("schedule", [{}, {"schedule": None}], ids=["missing", "null"])
async def test_a_node_record_is_adopted_and_stays_due_when_it_was(queue: Queue, schedule: Document) -> None:
    due = await a_node_record(queue, lastRunAt=queue.now, **schedule)
    before = (await queue.records.find().to_list())[0]
    record = await register(queue, hourly(priority=5))
    assert record == {**before, "schedule": {"rule": "every 1h", "anchor": due}}
    assert await register(queue, hourly()) == record


async def test_an_adopted_record_follows_the_next_change(queue: Queue) -> None:
    await a_node_record(queue)
    await register(queue, hourly())
    record = await register(queue, recurrent(every="2h"))
    assert record["schedule"]["rule"] == "every 2h"
    assert record["nextRunAt"] > queue.now + HOUR


async def test_a_running_node_record_is_adopted_with_its_lock(queue: Queue) -> None:
    lease = {"lockId": "theirs", "lockedUntil": (queue.now + HOUR).replace(microsecond=0)}
    await a_node_record(queue, **lease)
    record = await register(queue, hourly())
    assert {name: record[name] for name in lease} == lease
