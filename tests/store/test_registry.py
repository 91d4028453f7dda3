"""The registry of running workers."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gangline.store.registry import PUBLISH_EVERY, Registry, WorkerEntry
from support.records import Queue, open_queue

ENTRY = WorkerEntry(
    name="host:1:abc",
    host="host",
    pid=1,
    version="1.2.3",
    partitions=16,
    concurrency=32,
    jobs={"resizeImage": "event", "cleanUp": "recurrent"},
    claim_protocol="batch",
    shape="by-name",
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


async def only(registry: Registry) -> WorkerEntry:
    [entry] = await registry.workers()
    return entry


async def test_an_entry_is_listed_as_it_was_published_and_seen_now(queue: Queue) -> None:
    registry = Registry(queue.connection)
    before = queue.now
    await registry.publish(ENTRY)
    seen = await only(registry)
    assert replace(seen, seen_at=None) == ENTRY
    assert seen.seen_at is not None
    assert before - timedelta(milliseconds=1) <= seen.seen_at <= queue.now + timedelta(seconds=1)


async def test_publishing_again_replaces_the_entry_and_is_seen_later(queue: Queue) -> None:
    registry = Registry(queue.connection)
    await registry.publish(ENTRY)
    first = await only(registry)
    await queue.connection.workers.update_one({}, {"$set": {"seenAt": ENTRY.started_at}})
    changed = replace(ENTRY, shape="by-priority", jobs={"other": "event"})
    await registry.publish(changed)
    second = await only(registry)
    assert replace(second, seen_at=None) == changed
    assert first.seen_at is not None
    assert second.seen_at is not None
    assert second.seen_at >= first.seen_at


async def test_names_that_look_like_expressions_are_kept_as_they_are(queue: Queue) -> None:
    registry = Registry(queue.connection)
    odd = replace(ENTRY, host="$$NOW", shape="$_id", jobs={"$jobName": "event", "a.b": "event"})
    await registry.publish(odd)
    assert replace(await only(registry), seen_at=None) == odd


async def test_workers_are_listed_by_name_and_a_withdrawn_one_is_gone(queue: Queue) -> None:
    registry = Registry(queue.connection)
    for name in ("b", "c", "a"):
        await registry.publish(replace(ENTRY, name=name))
    await registry.withdraw("b")
    await registry.withdraw("never published")
    assert [entry.name for entry in await registry.workers()] == ["a", "c"]


async def test_an_entry_that_is_not_renewed_is_deleted_by_the_server(queue: Queue) -> None:
    [ttl] = [
        index
        for index in (await queue.connection.workers.index_information()).values()
        if index["key"] == [("seenAt", 1)]
    ]
    assert ttl["expireAfterSeconds"] == 180
    assert timedelta(seconds=180) > PUBLISH_EVERY * 2, "one that is late is still there"


async def test_a_server_that_sorts_updates_keeps_entries_too(sorted_uri: str) -> None:
    async with open_queue(sorted_uri) as queue:
        registry = Registry(queue.connection)
        await registry.publish(ENTRY)
        assert replace(await only(registry), seen_at=None) == ENTRY
