"""What idle workers cost: commands are counted exactly, and told apart. Never how fast."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database

from gangline.bench import idle
from gangline.bench.idle import OTHER, SCHEDULER, STREAM, Rest
from gangline.bench.queue import due_records, fill, opened
from support.progress import Recorded

REST = Rest(partitions=16, schedulers=3, poll_interval=0.3, polls=4)

Document = dict[str, Any]


@pytest.mark.parametrize("partitions", [1, 128])
def test_a_scheduler_costs_at_most_one_command_a_poll(uri: str, partitions: int) -> None:
    progress = Recorded()
    row = idle.measure(uri, replace(REST, partitions=partitions), progress)
    assert row.verified, row.problems
    assert (row.partitions, row.schedulers, row.polls) == (partitions, 3, 4)
    # A window of four polls meets four or five of them.
    assert 0 < row.commands_per_scheduler_and_poll <= 1.25
    assert row.client_cpu_percent > 0
    assert progress.stages == [(f"3 schedulers, {partitions} partitions", 12)]
    assert progress.reached[-1] == 12


def test_the_profiler_is_off_afterwards(uri: str) -> None:
    idle.measure(uri, REST, Recorded())
    client: MongoClient[Document]
    with MongoClient(uri) as client:
        database: Database[Document] = client.get_default_database()
        assert database.command("profile", -1)["was"] == 0
        assert "system.profile" not in database.list_collection_names()


async def test_only_what_is_counted_is_written_down(uri: str) -> None:
    async with opened(idle._named(uri, 7)) as ours, opened(uri) as others:
        database: AsyncDatabase[Document] = others.records.database
        await others.records.insert_one({"_id": "any"})
        async with idle._profiled(database, 1024 * 1024):
            await others.records.find_one({})
            await ours.records.find_one({})
            await ours.history.find_one({})
            await ours.records.database.command("explain", {"find": ours.records.name})
        await ours.records.find_one({})
        entries = await database["system.profile"].find({"appName": {"$regex": f"^{idle._NAME}"}}).to_list()
    found = idle._counted(entries, f"{database.name}.{ours.records.name}", 1.0)
    assert found.kinds == {SCHEDULER: 1, OTHER: 2}
    assert found.lookers == 1


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"ns": "db.records", "command": {"aggregate": "records", "pipeline": [{"$match": {}}]}}, SCHEDULER),
        ({"ns": "db.records", "command": {"findAndModify": "records"}}, SCHEDULER),
        ({"ns": "db.records", "command": {"explain": {"find": "records"}}}, OTHER),
        ({"ns": "db.workers", "command": {"update": "workers"}}, OTHER),
        ({"ns": "db.records", "command": {"aggregate": "records", "pipeline": [{"$changeStream": {}}]}}, STREAM),
        ({"ns": "db.records", "command": {"killCursors": "records"}}, STREAM),
        (
            {
                "ns": "db.records",
                "command": {"getMore": 1},
                "originatingCommand": {"aggregate": "records", "pipeline": [{"$changeStream": {}}]},
            },
            STREAM,
        ),
    ],
)
def test_commands_are_told_apart(entry: Document, kind: str) -> None:
    assert idle._kind(entry, "db.records") == kind


async def test_the_commands_of_a_change_stream_are_known(uri: str) -> None:
    async with opened(idle._named(uri, 0)) as connection:
        database = connection.records.database
        await connection.records.insert_one({"_id": "any"})
        async with await connection.records.watch(max_await_time_ms=20) as stream:
            async with idle._profiled(database, 1024 * 1024):
                await stream.try_next()
            entries = await database["system.profile"].find({"op": "getmore"}).to_list()
    assert {idle._kind(entry, f"{database.name}.{connection.records.name}") for entry in entries} == {STREAM}


NOTHING = idle._Cpu(server=0.0, client=0.0)
COMMANDS = idle._Commands(seconds=1.2, kinds={SCHEDULER: 12}, lookers=3)
SEEN = idle._Seen(before=NOTHING, working=NOTHING, commands=COMMANDS, records=0)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (SEEN, []),
        (replace(SEEN, records=1), ["the queue was not empty: it has 1 records"]),
        (
            replace(SEEN, commands=replace(COMMANDS, lookers=2)),
            ["3 schedulers rested, 2 of them looked at the queue"],
        ),
        (
            replace(SEEN, commands=replace(COMMANDS, refused="not here", lookers=0)),
            ["commands could not be counted: the server refused its profiler (not here)"],
        ),
    ],
    ids=["right", "not empty", "asleep", "refused"],
)
def test_what_is_wrong_is_told(seen: idle._Seen, expected: list[str]) -> None:
    row = idle._row(REST, seen)
    assert row.problems == expected
    assert row.commands_per_scheduler_and_poll == pytest.approx(1.0)


def test_the_load_before_is_subtracted() -> None:
    seen = replace(SEEN, before=idle._Cpu(server=3.0, client=0.0), working=idle._Cpu(server=5.0, client=7.0))
    row = idle._row(REST, seen)
    assert (row.server_cpu_percent, row.server_cpu_percent_before, row.client_cpu_percent) == (2.0, 3.0, 7.0)


def test_what_was_in_the_queue_is_gone(uri: str) -> None:
    async def litter() -> None:
        async with opened(uri) as connection:
            await fill(connection, due_records(3, 1))

    asyncio.run(litter())
    assert idle.measure(uri, replace(REST, schedulers=1, polls=2), Recorded()).verified
