"""The indexes of both sides on one collection, and what a worker does when one that it needs goes missing."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from gangline import Gangline
from gangline.jobs.settings import ClaimMode
from gangline.store.claims.hints import ACQUISITION_INDEXES, AcquisitionIndexes
from gangline.store.errors import is_refused_hint
from gangline.store.schema import DUE, LOCK_ID, LOCKED, READY_BY_NAME, READY_BY_PRIORITY, Index
from support.apps import eventually, failing, named, running
from support.node_side import NodeSide
from support.queues import NODE_PREFIX, node_record
from support.records import Queue, open_queue, wrapped

PAST = datetime(2020, 1, 1, tzinfo=UTC)
PROTOCOLS: list[ClaimMode] = ["batch", "find-and-modify"]
DROPPED = {"ready": [READY_BY_NAME, READY_BY_PRIORITY], "due": [DUE], "locked": [LOCKED]}
"""The ready ones together: which of the two a worker uses is for its prober to choose."""

OWN = {index.name for index in ACQUISITION_INDEXES}
UNAUTHORIZED = 13


def names(node: NodeSide) -> set[str]:
    """The indexes of the records."""
    return set(node.records.index_information())


def doubled_patterns(node: NodeSide) -> list[Any]:
    """Key patterns that two indexes have: the server refuses them as hints."""
    patterns = Counter(tuple(index["key"]) for index in node.records.index_information().values())
    return [pattern for pattern, times in patterns.items() if times > 1]


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The messages with this event."""
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]


@pytest.mark.parametrize("first", ["gangline", "node", "old node"])
async def test_no_pattern_is_there_twice_and_nobody_replaces_an_index_of_the_other(
    app: Gangline, node: NodeSide, uri: str, first: str
) -> None:
    @app.event()
    async def work() -> None: ...

    with NodeSide(uri, partitions=None) as old:
        for program in (node, old) if first == "node" else (old, node) if first == "old node" else ():
            program.start()
        await run_one(app, node)
        made = node.records.index_information()
        node.start()
        old.start()
        await run_one(app, node)
        assert doubled_patterns(node) == []
        assert node.replaced + old.replaced == []
        assert {name: node.records.index_information()[name] for name in made} == made
        for program in (node, old):
            for hint in program.hints:
                assert program.claim("work", hint=hint) is None, "and the hint is not refused"


async def run_one(app: Gangline, node: NodeSide) -> None:
    """Run a worker until it ran a job."""
    await app.schedule_by_name("work")
    async with running(app):
        await eventually(lambda: node.records.find_one({}) is None)


# Case 67


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dropped", DROPPED.values(), ids=DROPPED)
async def test_an_index_that_is_dropped_while_a_worker_runs_is_made_again(
    app: Gangline, node: NodeSide, caplog: pytest.LogCaptureFixture, dropped: list[Index], protocol: ClaimMode
) -> None:
    """Case 67."""
    runs: list[int] = []

    @app.event()
    async def work(n: int) -> None:
        runs.append(n)

    async with running(app, claim=protocol):
        await work.schedule(0)
        await eventually(lambda: runs == [0])
        for index in dropped:
            node.records.drop_index(index.name)
        lost = {"lockId": "theirs", "lockedUntil": PAST}
        node.records.insert_many(
            [node_record("work", {"n": 1}, **lost), *(node_record("work", {"n": n}) for n in (2, 3, 4))]
        )
        await eventually(lambda: sorted(runs) == [0, 1, 2, 3, 4])
        await eventually(lambda: names(node) >= OWN)
        await eventually(lambda: node.records.find_one({}) is None)
    [message] = told(caplog, "indexes_restored")
    assert f"the indexes {', '.join(index.name for index in dropped)} of" in message
    assert told(caplog, "claim_failed") == []


async def test_all_of_them_are_made_again_after_node_s_framework_tidied_up(
    app: Gangline, node: NodeSide, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 67: `deleteUnusedIndexes` drops what the Node program does not define, under running workers."""
    runs: list[int] = []

    @app.event()
    async def work(n: int) -> None:
        runs.append(n)

    node.start()
    async with running(app):
        for n in range(3):
            assert set(node.delete_unused_indexes()) <= OWN - {LOCK_ID.name}
            await work.schedule(n)
            await eventually(partial(runs.count, n))
            await eventually(lambda: names(node) >= OWN)
            assert node.claim("work") is None
    assert told(caplog, "claim_failed") == []
    assert told(caplog, "indexes_restored")
    assert doubled_patterns(node) == []


async def test_without_the_right_to_make_it_again_jobs_run_all_the_same(
    app: Gangline, node: NodeSide, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 67, and it is said once."""
    runs: list[int] = []

    @app.event()
    async def work(n: int) -> None:
        runs.append(n)

    async with running(app):
        await eventually(lambda: names(node) >= OWN)
        with failing_index_creation(node):
            for index in (DUE, READY_BY_NAME, READY_BY_PRIORITY, LOCKED):
                node.records.drop_index(index.name)
            for n in range(3):
                await work.schedule(n)
                lost = {"lockId": f"theirs {n}", "lockedUntil": PAST}
                node.records.insert_one(node_record("work", {"n": n + 10}, **lost))
                await eventually(partial({n, n + 10}.issubset, runs))
    assert len(runs) == 6
    [message] = told(caplog, "indexes_missing")
    assert "gangline_ready_by_name, gangline_ready_by_priority, gangline_due, gangline_locked of" in message
    assert told(caplog, "claim_failed") == []


def failing_index_creation(node: NodeSide) -> Any:
    """Refuse the creation of indexes to Gangline, as to a user without the right."""

    class Server:
        client = node.client

    return failing(Server(), "createIndexes", errorCode=UNAUTHORIZED)  # type: ignore[arg-type]


async def test_where_updates_are_sorted_a_missing_index_is_made_again_too(sorted_uri: str) -> None:
    """Case 67."""
    runs: list[int] = []
    async with Gangline(named(sorted_uri), prefix=NODE_PREFIX, partitions=4) as app:

        @app.event()
        async def work(n: int) -> None:
            runs.append(n)

        with NodeSide(sorted_uri) as node:
            async with running(app, claim="sorted-update"):
                await eventually(lambda: names(node) >= OWN)
                for index in (READY_BY_NAME, READY_BY_PRIORITY):
                    node.records.drop_index(index.name)
                await work.schedule(1)
                await eventually(lambda: runs)
                await eventually(lambda: names(node) >= OWN)


# The keeper of the indexes alone


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


async def unauthorized(*_args: Any, **_kwargs: Any) -> Any:
    raise OperationFailure("not authorized", UNAUTHORIZED)


@pytest.mark.parametrize("index", ACQUISITION_INDEXES, ids=lambda index: index.name)
async def test_each_is_made_again_when_the_reconciler_comes_by(queue: Queue, index: Any) -> None:
    """Case 67: of the lock id's no refusal tells, as nothing is hinted to it."""
    await queue.records.drop_index(index.name)
    await AcquisitionIndexes(queue.records).keep()
    assert index.name in await queue.records.index_information()


async def test_hints_are_given_again_once_the_index_is_there(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    await queue.records.drop_index(DUE.name)
    replacements: dict[str, Any] = {"create_indexes": unauthorized}
    indexes = AcquisitionIndexes(wrapped(queue.records, replacements))
    assert indexes.hint(DUE) == DUE.name
    assert await indexes.refused()
    assert indexes.hint(DUE) is None
    assert not await indexes.refused(), "a refusal without a hint is another matter: it is no use to try again at once"
    await indexes.keep()
    assert indexes.hint(DUE) == DUE.name, "someone may have made it"
    assert await indexes.refused()
    assert len(told(caplog, "indexes_missing")) == 1
    replacements.clear()
    await indexes.keep()
    assert indexes.hint(DUE) == DUE.name
    assert DUE.name in await queue.records.index_information()


async def test_an_index_that_is_hidden_is_done_without(queue: Queue) -> None:
    """It is there and cannot be made, yet the server refuses the hint; the first time it may be a rival's doing."""
    command = {"collMod": queue.records.name, "index": {"name": DUE.name, "hidden": True}}
    await queue.records.database.command(command)
    with pytest.raises(OperationFailure) as refusal:
        await queue.records.find().hint(DUE.name).to_list()
    assert is_refused_hint(refusal.value)
    indexes = AcquisitionIndexes(queue.records)
    assert await indexes.refused()
    assert indexes.hint(DUE) == DUE.name
    assert await indexes.refused()
    assert indexes.hint(DUE) is None


async def test_a_user_who_may_not_look_goes_on_with_hints_until_one_is_refused(queue: Queue) -> None:
    blind = wrapped(queue.records, {"index_information": unauthorized, "create_indexes": unauthorized})
    indexes = AcquisitionIndexes(blind)
    await indexes.keep()
    assert indexes.hint(DUE) == DUE.name
    assert await indexes.refused()
    assert indexes.hint(DUE) is None


@pytest.mark.parametrize("method", ["index_information", "create_indexes"])
async def test_a_server_that_is_away_says_nothing_about_indexes(queue: Queue, method: str) -> None:
    async def away(*_args: Any, **_kwargs: Any) -> Any:
        raise AutoReconnect("away")

    await queue.records.drop_index(DUE.name)
    indexes = AcquisitionIndexes(wrapped(queue.records, {method: away}))
    with pytest.raises(AutoReconnect):
        await indexes.refused()
    assert indexes.hint(DUE) == DUE.name


async def test_workers_that_miss_it_together_make_it_together(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    await queue.records.drop_index(DUE.name)
    keepers = [AcquisitionIndexes(queue.records) for _ in range(8)]
    with caplog.at_level(logging.WARNING):
        assert await asyncio.gather(*(keeper.refused() for keeper in keepers)) == [True] * 8
    assert [keeper.hint(DUE) for keeper in keepers] == [DUE.name] * 8
    assert DUE.name in await queue.records.index_information()
