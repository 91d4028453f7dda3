"""What a survey sees of records that no claim asks for, and how it stays bounded."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS

from gangline.store.reconcile import Misplaced, repair
from gangline.store.survey import Survey, survey
from support.commands import recorded
from support.queues import node_record
from support.records import JOB, Queue, locked_until, open_queue

PARTITIONS = 4
MINUTE = timedelta(minutes=1)
NOTHING = Survey(due={}, expired=False, next_due_at=None)
ODD: list[Any] = [None, -1, 4, 1_000, "0", 1.5, [0], {}, True, float("nan"), {"$gt": 0}]


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


async def look(queue: Queue, *names: str) -> Survey:
    return await survey(queue.records, names or (JOB,), PARTITIONS, now=queue.now)


@pytest.mark.parametrize("partition", ODD, ids=repr)
async def test_a_due_record_with_an_odd_partition_is_told_and_then_repaired(queue: Queue, partition: Any) -> None:
    odd = await queue.insert(partition=partition)
    view = await look(queue)
    assert view.due == {}
    assert [item.id for item in view.misplaced] == [odd]
    assert await repair(queue.records, view.misplaced, PARTITIONS) == 1
    repaired = await queue.stored(odd)
    assert await look(queue) == Survey(due={odd: repaired["partition"]}, expired=False, next_due_at=None)


async def test_a_record_without_a_partition_is_told(queue: Queue) -> None:
    """Case 71: its program knows no partitions."""
    record = node_record(JOB, nextRunAt=(queue.now - MINUTE).replace(microsecond=0))
    del record["partition"]
    await queue.records.insert_one(record)
    assert (await look(queue)).misplaced == (Misplaced(record["_id"], None, record["nextRunAt"]),)


async def test_one_that_is_due_later_is_told_but_does_not_tell_when_to_look(queue: Queue) -> None:
    """No claim could take it then; once it is repaired it tells."""
    later = (queue.now + MINUTE).replace(microsecond=0)
    odd = await queue.insert(partition=-1, nextRunAt=later)
    view = await look(queue)
    assert view.next_due_at is None
    assert [item.id for item in view.misplaced] == [odd]
    await repair(queue.records, view.misplaced, PARTITIONS)
    assert (await look(queue)).next_due_at == later


async def test_it_is_told_beside_what_is_due(queue: Queue) -> None:
    odd = await queue.insert(partition=99)
    due = await queue.insert(partition=3)
    view = await look(queue)
    assert view.due == {due: 3}
    assert [item.id for item in view.misplaced] == [odd]


async def test_locked_dead_and_foreign_ones_are_not_told(queue: Queue) -> None:
    await queue.insert(partition=99, **locked_until(queue.now + MINUTE))
    await queue.insert(partition=99, status="maxTriesReached")
    await queue.insert(partition=99, jobName="other")
    assert await look(queue) == NOTHING


@pytest.mark.parametrize("next_run_at", [None, "soon", 5, {}, [datetime(2020, 1, 1, tzinfo=UTC)]], ids=repr)
async def test_one_without_a_date_is_not_told(queue: Queue, next_run_at: Any) -> None:
    await queue.insert(partition=99, nextRunAt=next_run_at)
    assert await look(queue) == NOTHING


async def test_as_many_are_told_as_are_looked_at_those_that_waited_longest_first(queue: Queue) -> None:
    ids = [str(number) for number in range(40)]
    await queue.insert_all(
        [{"_id": record, "partition": 99, "nextRunAt": queue.now - int(record) * MINUTE} for record in ids]
    )
    assert {item.id for item in (await look(queue)).misplaced} == set(ids[-16:])


async def test_those_in_front_hide_what_is_due_only_until_they_are_repaired(queue: Queue) -> None:
    await queue.insert_all([{"partition": 99, "nextRunAt": queue.now - 2 * MINUTE}] * 20)
    due = await queue.insert(partition=1)
    seen = 0
    while due not in (view := await look(queue)).due:
        assert view.misplaced or view.due, "the due record is out of sight"
        seen += await repair(queue.records, view.misplaced, PARTITIONS)
        await queue.records.delete_many({"_id": {"$in": list(view.due)}})
    assert seen == 16, "the others were told beside it"


async def test_a_date_before_python_s_years_is_due(queue: Queue) -> None:
    """Case 22."""
    due = await queue.insert(nextRunAt=DatetimeMS(-(2**62)), partition=2)
    assert (await look(queue)).due == {due: 2}


@pytest.mark.parametrize("place", [0, 200, 449])
async def test_450_names_are_looked_at_in_parts_of_one_command(queue: Queue, place: int) -> None:
    names = [f"job{number}" for number in range(450)]
    odd = await queue.insert(jobName=names[place], partition=99)
    due = await queue.insert(jobName=names[-1 - place], partition=2)
    with recorded(queue.connection.address.database) as commands:
        view = await look(queue, *names)
    assert view.due == {due: 2}
    assert [item.id for item in view.misplaced] == [odd]
    [(name, command)] = commands.sent
    assert name == "aggregate"
    assert sum("$unionWith" in stage for stage in command["pipeline"]) == 3, "two more parts, and the expired"
