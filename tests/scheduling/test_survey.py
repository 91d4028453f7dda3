"""What an idle scheduler sees of the whole queue in one read."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from gangline.store.survey import Survey, survey
from support.commands import recorded
from support.queues import dead_node_record
from support.records import JOB, Queue, locked_until, open_queue

MINUTE = timedelta(minutes=1)
NOTHING = Survey(due={}, expired=False, next_due_at=None)


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


async def look(queue: Queue, *names: str, partitions: int = 4) -> Survey:
    return await survey(queue.records, names or (JOB,), partitions, now=queue.now)


async def test_an_empty_queue_shows_nothing(queue: Queue) -> None:
    assert await look(queue) == NOTHING


async def test_what_is_due_is_shown_with_its_partition(queue: Queue) -> None:
    for partition in range(4):
        await queue.insert(_id=f"due-{partition}", partition=partition)
    assert (await look(queue)).due == {f"due-{partition}": partition for partition in range(4)}


async def test_the_next_one_tells_when_to_look_again(queue: Queue) -> None:
    soon = (queue.now + MINUTE).replace(microsecond=0)
    for minutes in (2, 0, 5):
        await queue.insert(nextRunAt=soon + minutes * MINUTE, partition=minutes % 4)
    assert await look(queue) == Survey(due={}, expired=False, next_due_at=soon)


async def test_those_that_have_waited_longest_are_shown_and_they_are_bounded(queue: Queue) -> None:
    await queue.insert_all([{"_id": str(n), "nextRunAt": queue.now - n * MINUTE} for n in range(1, 40)])
    due = (await look(queue)).due
    assert set(due) == {str(n) for n in range(24, 40)}


async def test_a_lease_that_ended_is_shown_and_one_that_runs_is_not(queue: Queue) -> None:
    await queue.insert(**locked_until(queue.now + MINUTE))
    assert await look(queue) == NOTHING
    await queue.insert_expired(partition=99)
    assert await look(queue) == Survey(due={}, expired=True, next_due_at=None)
    assert await look(queue, "other") == NOTHING


async def test_due_and_expired_and_later_are_shown_together(queue: Queue) -> None:
    later = (queue.now + MINUTE).replace(microsecond=0)
    due = await queue.insert(partition=2)
    await queue.insert_expired()
    await queue.insert(nextRunAt=later)
    view = await look(queue)
    assert (view.due, view.expired) == ({due: 2}, True)


@pytest.mark.parametrize("partition", [-1, 4, 1_000, None, "0", 1.5, True, [0], {}], ids=repr)
async def test_a_partition_that_no_claim_asks_is_not_due_but_misplaced(queue: Queue, partition: Any) -> None:
    """Case 71: going there would be in vain, again and again; it must be mended."""
    misplaced = await queue.insert(partition=partition)
    view = await look(queue)
    assert (view.due, view.next_due_at) == ({}, None)
    assert [(item.id, item.partition) for item in view.misplaced] == [(misplaced, partition)]


async def test_a_record_without_a_partition_is_misplaced(queue: Queue) -> None:
    """Case 71."""
    misplaced = await queue.insert()
    await queue.records.update_one({}, {"$unset": {"partition": ""}})
    view = await look(queue)
    assert view.due == {}
    assert [item.id for item in view.misplaced] == [misplaced]


@pytest.mark.parametrize("partition", [2.0, Int64(2)], ids=repr)
async def test_a_partition_of_another_number_type_is_shown(queue: Queue, partition: Any) -> None:
    due = await queue.insert(partition=partition)
    assert (await look(queue)).due == {due: 2}


@pytest.mark.parametrize("next_run_at", [None, "soon", 5, True, {}, [], [datetime(2020, 1, 1, tzinfo=UTC)]], ids=repr)
async def test_what_is_no_date_is_not_due(queue: Queue, next_run_at: Any) -> None:
    await queue.insert(nextRunAt=next_run_at)
    assert await look(queue) == NOTHING
    later = (queue.now + MINUTE).replace(microsecond=0)
    await queue.insert(nextRunAt=later)
    assert (await look(queue)).next_due_at == later


async def test_a_date_beyond_python_s_years_is_far_away(queue: Queue) -> None:
    """Case 22."""
    await queue.insert(nextRunAt=DatetimeMS(2**62))
    view = await look(queue)
    assert view.due == {}
    assert view.next_due_at is not None
    assert view.next_due_at.year == 9999


async def test_dead_records_and_those_of_other_names_are_not_shown(queue: Queue) -> None:
    await queue.insert(jobName="other")
    await queue.insert_expired(jobName="other")
    await queue.records.insert_one(dead_node_record(JOB))
    await queue.insert(type="event", status="maxTriesReached")
    assert await look(queue) == NOTHING


@pytest.mark.parametrize("place", [0, 199, 200, 399, 400, 449])
async def test_450_names_are_looked_at_in_one_command(queue: Queue, place: int) -> None:
    names = [f"job{n}" for n in range(450)]
    due = await queue.insert(jobName=names[place], partition=3)
    later = await queue.insert(jobName=names[(place + 225) % 450], nextRunAt=queue.now + MINUTE)
    await queue.insert_expired(jobName=names[-place])
    await queue.insert(jobName="job450")
    with recorded(queue.connection.address.database) as sent:
        view = await look(queue, *names)
    assert (view.due, view.expired) == ({due: 3}, True)
    assert view.next_due_at == (await queue.stored(later))["nextRunAt"]
    assert [name for name, _ in sent.sent] == ["aggregate"]
