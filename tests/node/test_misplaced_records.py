"""Records that no claim asks for, because their program knows no partitions or counts them otherwise."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from gangline import Context, Gangline
from gangline.store.connection import Address, Connection
from gangline.store.reconcile import find_misplaced, repair
from support.apps import DEADLINE, Document, eventually, running
from support.commands import Commands, recorded
from support.node_side import NodeSide
from support.queues import NODE_PREFIX, node_record

NEVER = 2 * DEADLINE
"""A poll interval that no test survives."""

PLACES: dict[str, Any] = {
    "missing": ...,
    "null": None,
    "negative": -1,
    "too large": 999,
    "a fraction": 2.5,
    "a text": "x",
    "true": True,
    "an empty array": [],
    "an array": [1, 2],
    "an array of what is no partition": [999, "x"],
    "a document": {"$gte": 0},
    "not a number": float("nan"),
    "infinite": float("inf"),
}


def misplaced(place: str, **fields: Any) -> Document:
    """A record of the Node side at `place`."""
    record = node_record("work", {"n": place}, **{"partition": PLACES[place], **fields})
    if record["partition"] is ...:
        del record["partition"]
    return record


@pytest.fixture
def commands(uri: str) -> Iterator[Commands]:
    """What Gangline sends for the database of the test."""
    with recorded(urlsplit(uri).path.strip("/")) as commands:
        yield commands


def looks_and_writes(commands: Commands, node: NodeSide) -> list[str]:
    """What was sent for the records, in its order, but for what the test itself sends."""
    kinds = ("aggregate", "update")
    return [name for name, command in commands.sent if name in kinds and command[name] == node.records.name]


async def quiet(commands: Commands, *expected: str) -> None:
    """Wait until a worker has started, its services have had their first turn, and it sleeps."""
    await eventually(lambda: {"aggregate", *expected} <= {name for name, _ in commands.sent})
    seen = -1
    while seen != len(commands.sent):
        seen = len(commands.sent)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("place", PLACES)
async def test_an_idle_worker_finds_repairs_and_runs_it_at_its_next_look(
    app: Gangline, node: NodeSide, commands: Commands, place: str
) -> None:
    """Case 71: the one look that follows each poll interval is enough, and the next is not waited for."""
    runs: list[str] = []

    @app.event()
    async def work(ctx: Context, n: str) -> None:
        runs.append(n)

    async with running(app, poll_interval=NEVER) as worker:
        await quiet(commands, "explain")
        commands.clear()
        node.records.insert_one(misplaced(place))
        worker.wake("work")  # in place of the end of the poll interval
        await eventually(lambda: node.records.find_one({}) is None)
    assert runs == [place]
    assert looks_and_writes(commands, node)[:2] == ["aggregate", "update"], "one look, then the repair"
    [entry] = node.history.find()
    assert entry["status"] == "success"


async def test_a_worker_that_is_never_idle_runs_it_all_the_same(app: Gangline, node: NodeSide) -> None:
    """Case 71, in a queue that is never empty."""
    seen: set[str] = set()
    over = asyncio.Event()

    @app.event()
    async def busy() -> None:
        if not over.is_set():
            await busy.schedule()

    @app.event()
    async def work(n: str) -> None:
        seen.add(n)

    async with running(app, concurrency=4, poll_interval="50ms"):
        for _ in range(8):
            await busy.schedule()
        await eventually(lambda: node.history.count_documents({"jobName": "busy"}) > 8)
        node.records.insert_many([misplaced(place) for place in PLACES])
        await eventually(lambda: seen == set(PLACES))
        over.set()
        await eventually(lambda: node.records.find_one({}) is None)


async def test_it_does_not_wait_behind_older_records_of_lower_priority(app: Gangline, node: NodeSide) -> None:
    """Case 71, with a backlog: found in its own right, not only once it is among those that have waited longest."""
    order: list[str] = []

    @app.event()
    async def work(n: str) -> None:
        order.append(n)
        await asyncio.sleep(0.005)

    async with running(app, concurrency=1, poll_interval="20ms", max_batch=1):
        node.records.insert_many(
            [node_record("work", {"n": "old"}, priority=0, partition=number % 4) for number in range(150)]
        )
        await eventually(lambda: order)
        node.schedule("work", {"n": "urgent"}, partition=None)
        await eventually(lambda: "urgent" in order)
        assert order.count("old") < 100
        node.records.delete_many({"lockId": None})
        await eventually(lambda: node.records.find_one({}) is None)


async def test_a_claim_that_comes_first_keeps_its_record(app: Gangline, node: NodeSide, uri: str) -> None:
    """The other order: an old Node worker claims by its own index what a repair has seen."""
    node.start()
    with NodeSide(uri, partitions=None) as old:
        old.start()
        old.schedule("work")
        connection = Connection(Address.parse(uri, prefix=NODE_PREFIX))
        found = await find_misplaced(connection.records, 4, lambda index: None)
        claimed = old.claim("work")
        assert claimed is not None
        assert await repair(connection.records, found, 4) == 0
        assert "partition" not in old.record
        assert old.succeed(claimed)
        await connection.close()
