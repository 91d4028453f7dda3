"""The probe of an acquisition shape: what it measures, and what it may cost."""

from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest
from pymongo.errors import OperationFailure, PyMongoError

from gangline.jobs.hint import Shape
from gangline.store.eligibility import INDEX_OF
from gangline.store.probe import probe
from support.commands import recorded
from support.records import JOB, Queue, fail_command, open_queue

_MAX_TIME_MS_EXPIRED = 50


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


@pytest.mark.parametrize("shape", Shape)
async def test_an_empty_partition_costs_next_to_nothing(queue: Queue, shape: Shape) -> None:
    await queue.insert(partition=1)
    sample = await probe(queue.records, shape, 0, [JOB], queue.now)
    assert sample.examined <= 2


async def test_by_priority_the_records_of_other_names_are_walked_over_and_by_name_they_are_not(queue: Queue) -> None:
    await queue.insert_all([{"jobName": "other", "priority": 200}] * 100)
    await queue.insert()
    walked = await probe(queue.records, Shape.BY_PRIORITY, 0, [JOB], queue.now)
    direct = await probe(queue.records, Shape.BY_NAME, 0, [JOB], queue.now)
    assert 200 <= walked.examined <= 204, "a key and a document for each, and for the one that is found"
    assert direct.examined <= 4


async def test_by_name_each_name_costs_a_key_and_by_priority_it_does_not(queue: Queue) -> None:
    names = [f"job{number}" for number in range(50)]
    await queue.insert_all([{"jobName": name} for name in names])
    merged = await probe(queue.records, Shape.BY_NAME, 0, names, queue.now)
    first = await probe(queue.records, Shape.BY_PRIORITY, 0, names, queue.now)
    assert merged.examined >= 50
    assert first.examined <= 4


async def test_a_probe_finds_what_a_claim_would_and_takes_nothing(queue: Queue) -> None:
    due = await queue.insert()
    before = await queue.stored(due)
    await probe(queue.records, Shape.BY_NAME, 0, [JOB], queue.now)
    assert await queue.stored(due) == before
    assert await queue.claim_next() == due


@pytest.mark.parametrize("shape", Shape)
async def test_a_probe_is_one_command_that_the_server_ends_after_a_second(queue: Queue, shape: Shape) -> None:
    with recorded(queue.connection.address.database) as commands:
        await probe(queue.records, shape, 3, [JOB, "other"], queue.now)
    [(name, command)] = commands.sent
    assert name == "explain"
    assert command["verbosity"] == "executionStats"
    assert 0 < command["maxTimeMS"] <= 1_000
    find = command["explain"]
    assert find["find"] == queue.records.name
    assert find["hint"] == INDEX_OF[shape].name
    assert find["limit"] == 1
    assert find["filter"]["partition"] == 3
    assert list(find["sort"]) == ["priority", "nextRunAt", "_id"]


async def test_a_probe_that_takes_too_long_fails(queue: Queue) -> None:
    with (
        fail_command(queue.uri, failCommands=["explain"], errorCode=_MAX_TIME_MS_EXPIRED),
        pytest.raises(PyMongoError) as caught,
    ):
        await probe(queue.records, Shape.BY_NAME, 0, [JOB], queue.now)
    assert caught.value.timeout


async def test_without_the_index_a_probe_fails_instead_of_scanning(queue: Queue) -> None:
    await queue.records.drop_index(INDEX_OF[Shape.BY_PRIORITY].name)
    with pytest.raises(OperationFailure):
        await probe(queue.records, Shape.BY_PRIORITY, 0, [JOB], queue.now)


async def test_a_probe_asks_the_primary_whatever_the_uri_prefers(queue: Queue) -> None:
    """A single node has no secondary: asking one would fail."""
    preferring = queue.uri + ("&" if "?" in queue.uri else "?")
    preferring += urlencode({"readPreference": "secondary", "serverSelectionTimeoutMS": 2_000})
    async with open_queue(preferring) as other:
        await probe(other.records, Shape.BY_NAME, 0, [JOB], other.now)
