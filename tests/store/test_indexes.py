"""Making the indexes: by many at once, without the right to, and beside those of the Node side."""

import asyncio
import logging
from collections.abc import AsyncIterator
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from gangline.store.connection import Connection, Document
from gangline.store.indexes import ensure_indexes, has_lock_id_index
from gangline.store.schema import HISTORY_INDEXES, RECORD_INDEXES
from support.records import open_connection, wrapped

PROCESSES = 10
Keys = tuple[tuple[str, int], ...]
# The Node side hints by key pattern, and the server refuses a pattern that two indexes have.
NODE_PATTERNS: dict[str, Keys] = {
    "jobs_dogs_records_partition_job_name_priority_next_run": (
        ("partition", 1),
        ("jobName", 1),
        ("priority", -1),
        ("nextRunAt", 1),
    ),
    "jobs_dogs_records_partition_priority_next_run": (("partition", 1), ("priority", -1), ("nextRunAt", 1)),
    "jobName_1_priority_-1_nextRunAt_1": (("jobName", 1), ("priority", -1), ("nextRunAt", 1)),
    "priority_-1_nextRunAt_1": (("priority", -1), ("nextRunAt", 1)),
}
# The ones that both sides need, as the Node side makes them.
NODE_SHARED: list[tuple[Keys, dict[str, Any]]] = [
    ((("lockId", 1),), {"name": "jobs_dogs_records_lock_id", "sparse": True}),
    ((("jobName", 1),), {"name": "jobName_1", "unique": True, "partialFilterExpression": {"type": "recurrent"}}),
    ((("uniqueIdentifier", 1),), {"name": "uniqueIdentifier_1", "unique": True, "sparse": True}),
    ((("expiresAt", 1),), {"name": "jobs_dogs_records_expires_at_ttl", "expireAfterSeconds": 0}),
]
RECORD_NAMES = {index.name for index in RECORD_INDEXES} | {"_id_"}
HISTORY_NAMES = {index.name for index in HISTORY_INDEXES} | {"_id_"}


@pytest.fixture
async def connection(uri: str) -> AsyncIterator[Connection]:
    async with open_connection(uri) as opened:
        yield opened


async def present(connection: Connection) -> tuple[set[str], set[str]]:
    """The names of the indexes of both collections."""
    records = await connection.records.index_information()
    return set(records), set(await connection.history.index_information())


def make_indexes(uri: str, together: Barrier) -> None:
    """What a process does at its start, all at the same moment."""

    async def make() -> None:
        async with open_connection(uri) as connection:
            together.wait(60)
            await ensure_indexes(connection)

    asyncio.run(make())


async def test_ten_processes_make_them_at_once_on_an_empty_database(connection: Connection) -> None:
    """Case 48."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["pytest", "gangline"])  # imported once, not ten times
    together = context.Barrier(PROCESSES)
    uri = connection.address.uri
    processes = [context.Process(target=make_indexes, args=(uri, together)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert await present(connection) == (RECORD_NAMES, HISTORY_NAMES)


async def test_their_options_are_as_declared(connection: Connection) -> None:
    await ensure_indexes(connection)
    information = await connection.records.index_information()
    for index in RECORD_INDEXES:
        made = information[index.name]
        assert tuple(made["key"]) == index.keys
        options = {name: value for name, value in made.items() if name not in ("key", "v", "ns")}
        assert {"name": index.name, **options} == index.options


async def test_only_the_missing_ones_are_made(connection: Connection) -> None:
    """Case 67, at the next start; and a start on a queue that is in order makes nothing."""
    made: list[str] = []
    records = connection.records

    async def create_indexes(models: Any, **options: Any) -> Any:
        made.extend(model.document["name"] for model in models)
        return await records.create_indexes(models, **options)

    await ensure_indexes(connection)
    connection.records = wrapped(records, {"create_indexes": create_indexes})
    await ensure_indexes(connection)
    assert made == []
    await records.drop_index("gangline_due")
    await ensure_indexes(connection)
    assert made == ["gangline_due"]


async def test_it_is_known_whether_lock_ids_have_their_index(connection: Connection) -> None:
    assert not await has_lock_id_index(connection)
    await ensure_indexes(connection)
    assert await has_lock_id_index(connection)


# Without the right to


async def refused(*_args: Any, **_kwargs: Any) -> Any:
    raise OperationFailure("not authorized on shop to execute command", 13)


async def test_a_user_without_the_right_is_told_what_is_missing_and_goes_on(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 48."""
    connection.records = wrapped(connection.records, {"create_indexes": refused})
    with caplog.at_level(logging.WARNING, "gangline.indexes"):
        await ensure_indexes(connection)
    [record] = caplog.records
    assert record.__dict__["event"] == "indexes_unauthorized"
    message = record.getMessage()
    assert all(index.name in message for index in RECORD_INDEXES)
    assert "gangline.records" in message
    assert (await present(connection))[1] == HISTORY_NAMES, "what is allowed is done"


async def test_a_user_who_may_not_even_look_goes_on_too(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 48."""
    connection.records = wrapped(connection.records, {"create_indexes": refused, "index_information": refused})
    with caplog.at_level(logging.WARNING, "gangline.indexes"):
        await ensure_indexes(connection)
        assert not await has_lock_id_index(connection)
    assert [record.__dict__["event"] for record in caplog.records] == ["indexes_unauthorized"]


@pytest.mark.parametrize("method", ["create_indexes", "index_information"])
async def test_any_other_refusal_is_an_error(connection: Connection, method: str) -> None:
    async def conflict(*_args: Any, **_kwargs: Any) -> Any:
        raise OperationFailure("an index with these keys exists under another name", 85)

    connection.records = wrapped(connection.records, {method: conflict})
    with pytest.raises(OperationFailure, match="another name"):
        await ensure_indexes(connection)


# Beside the Node side


def test_no_index_has_a_key_pattern_that_the_node_side_hints() -> None:
    assert not {index.keys for index in RECORD_INDEXES} & set(NODE_PATTERNS.values())


@pytest.mark.parametrize("node_first", [True, False])
async def test_both_sides_find_their_indexes_whoever_is_first(connection: Connection, node_first: bool) -> None:
    records = connection.records

    async def node_starts() -> None:
        for keys, options in NODE_SHARED:
            await records.create_index(list(keys), **options)
        for name, keys in NODE_PATTERNS.items():
            await records.create_index(list(keys), name=name)

    first, second = (node_starts(), ensure_indexes(connection))[:: 1 if node_first else -1]
    await first
    await second
    assert (await present(connection))[0] == RECORD_NAMES | NODE_PATTERNS.keys()
    for keys in NODE_PATTERNS.values():
        hinted = {"partition": 0, "jobName": {"$in": ["a"]}, "priority": 1}
        assert await records.find(hinted).hint(list(keys)).to_list() == []


async def test_the_names_that_both_sides_share_mean_the_same(uri: str) -> None:
    """Made by Gangline, the Node side's own creation of them finds nothing to do."""
    async with open_connection(uri) as connection:
        await ensure_indexes(connection)
    client: AsyncMongoClient[Document]
    async with AsyncMongoClient(uri) as client:
        records: AsyncCollection[Document] = client.get_default_database()["gangline.records"]
        for keys, options in NODE_SHARED:
            assert await records.create_index(list(keys), **options) == options["name"]
        assert set(await records.index_information()) == RECORD_NAMES
