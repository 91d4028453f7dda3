"""Finding and repairing records that no claim asks for, and both orders of each race."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from bson.regex import Regex

from gangline.jobs.lease import Lease
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import Claims
from gangline.store.connection import Document
from gangline.store.reconcile import BATCH, Misplaced, find_misplaced, in_range, repair
from gangline.store.schema import READY_BY_PRIORITY
from support.commands import recorded
from support.explaining import explained
from support.queues import dead_node_record, node_record
from support.records import JOB, Queue, locked_until, open_queue, preceded, wrapped

PARTITIONS = 4
MINUTE = timedelta(minutes=1)

OUTSIDE: list[Any] = [None, -1, 4, 1_000, -0.5, float("inf"), float("-inf"), Int64(2**40)]
NO_PARTITION: list[Any] = [
    "0",
    "",
    1.5,
    float("nan"),
    True,
    [],
    [7],
    {},
    {"$gt": 1},
    {"$in": []},
    {"$odd": 1},
    Regex("0"),
]


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


async def found(queue: Queue, partitions: int = PARTITIONS) -> list[Any]:
    """The ids of what is found outside the range."""
    return [item.id for item in await find_misplaced(queue.records, partitions)]


async def reconcile(queue: Queue, partitions: int = PARTITIONS) -> int:
    return await repair(queue.records, await find_misplaced(queue.records, partitions), partitions)


async def claim_in(queue: Queue, *partitions: int) -> Claims:
    """Claim the first record that one of `partitions` has."""
    for partition in partitions:
        if (claims := await FindAndModify(queue.records).claim(queue.request(partition=partition))).records:
            return claims
    return Claims()


# What is in range


@pytest.mark.parametrize("partition", [0, 3, 2.0, Int64(1), -0.0], ids=repr)
def test_whole_numbers_below_the_count_are_in_range(partition: Any) -> None:
    assert in_range(partition, PARTITIONS)


@pytest.mark.parametrize("partition", [*OUTSIDE, *NO_PARTITION], ids=repr)
def test_everything_else_is_outside(partition: Any) -> None:
    assert not in_range(partition, PARTITIONS)


# Finding


@pytest.mark.parametrize("partition", [*OUTSIDE, *NO_PARTITION], ids=repr)
async def test_a_partition_that_is_none_is_found_and_repaired(queue: Queue, partition: Any) -> None:
    odd = await queue.insert(partition=partition)
    assert await reconcile(queue) == 1
    assert in_range((await queue.stored(odd))["partition"], PARTITIONS)
    assert await found(queue) == []


async def test_a_missing_partition_is_found_and_repaired(queue: Queue) -> None:
    record = node_record(JOB)
    del record["partition"]
    await queue.records.insert_one(record)
    assert await reconcile(queue) == 1
    assert in_range((await queue.stored(record["_id"]))["partition"], PARTITIONS)


@pytest.mark.parametrize("partition", [0, 3, 2.0, Int64(1), Decimal128("2"), [1]], ids=repr)
async def test_a_partition_that_a_claim_finds_is_left_alone(queue: Queue, partition: Any) -> None:
    """An array too: it matches like its elements."""
    placed = await queue.insert(partition=partition)
    assert await found(queue) == []
    assert [record.id for record in (await claim_in(queue, 0, 1, 2, 3)).records] == [placed]


async def test_a_record_that_is_not_due_or_of_a_foreign_name_is_repaired_too(queue: Queue) -> None:
    later = await queue.insert(partition=99, nextRunAt=queue.now + MINUTE)
    foreign = await queue.insert(partition=99, jobName="other")
    assert set(await found(queue)) == {later, foreign}


async def test_locked_and_dead_records_are_skipped(queue: Queue) -> None:
    await queue.insert(partition=99, **locked_until(queue.now + MINUTE))
    await queue.insert_expired(partition=99)
    await queue.insert(partition=99, status="maxTriesReached")
    await queue.records.insert_one(dead_node_record(JOB, _id="node", partition=99))
    assert await found(queue) == []


async def test_a_record_whose_name_is_an_array_or_whose_id_is_a_document_is_left_alone(queue: Queue) -> None:
    await queue.insert(partition=99, jobName=[JOB])
    await queue.insert(partition=99, _id={"a": 1})
    assert await found(queue) == []


async def test_no_more_than_a_batch_is_found_at_once(queue: Queue) -> None:
    outside: list[Any] = [None, -1, 99, "text"]
    await queue.insert_all([{"partition": outside[number % 4]} for number in range(BATCH + 20)])
    assert [await reconcile(queue) for _ in range(3)] == [500, 20, 0]


async def test_what_is_repaired_is_spread_over_all_partitions(queue: Queue) -> None:
    await queue.insert_all([{"partition": None}] * 200)
    await reconcile(queue)
    counts = {p: await queue.records.count_documents({"partition": p}) for p in range(PARTITIONS)}
    assert sum(counts.values()) == 200
    assert min(counts.values()) > 10


async def test_nothing_but_the_partition_changes(queue: Queue) -> None:
    odd = await queue.insert(partition=-1, tries=3, uniqueIdentifier="u", priority=0)
    before = await queue.stored(odd)
    await reconcile(queue)
    after = await queue.stored(odd)
    assert {**after, "partition": -1} == before


async def test_repairing_nothing_sends_nothing(queue: Queue) -> None:
    with recorded(queue.connection.address.database) as commands:
        assert await repair(queue.records, [], PARTITIONS) == 0
    assert commands.sent == []


async def test_ids_of_any_type_are_repaired(queue: Queue) -> None:
    ids: list[Any] = [ObjectId(), 5, "$text", None, True]
    await queue.insert_all([{"_id": record_id, "partition": 99} for record_id in ids])
    assert await reconcile(queue) == len(ids)


async def test_a_server_that_sorts_updates_repairs_too(sorted_uri: str) -> None:
    async with open_queue(sorted_uri) as queue:
        await queue.insert_all([{"partition": partition} for partition in (None, -1, 99, "3", 0, 3)])
        assert await reconcile(queue) == 4
        assert await found(queue) == []


# What is told of them


async def test_what_gangline_wrote_tells_when(queue: Queue) -> None:
    created_at = (queue.now - MINUTE).replace(microsecond=0)
    odd = await queue.insert(partition=99, createdAt=created_at, lastRunAt=queue.now)
    assert await find_misplaced(queue.records, PARTITIONS) == [Misplaced(odd, 99, created_at)]


@pytest.mark.parametrize(
    ("claimed", "known"), [({}, True), ({"lastRunAt": None}, True), ({"lastRunAt": "set"}, False)], ids=repr
)
async def test_what_node_wrote_tells_it_until_its_first_claim(queue: Queue, claimed: Document, known: bool) -> None:
    at = (queue.now - MINUTE).replace(microsecond=0)
    await queue.records.insert_one(node_record(JOB, partition=99, nextRunAt=at, **claimed))
    [item] = await find_misplaced(queue.records, PARTITIONS)
    assert item.created_at == (at if known else None)


@pytest.mark.parametrize("value", [None, "yesterday", 5], ids=repr)
async def test_an_instant_that_is_none_is_not_known(queue: Queue, value: Any) -> None:
    await queue.insert(partition=99, createdAt=value, nextRunAt=value)
    [item] = await find_misplaced(queue.records, PARTITIONS)
    assert item.created_at is None


# Races: what happens between finding and repairing


async def test_a_claim_that_came_first_keeps_its_record_and_the_partition(queue: Queue) -> None:
    odd = await queue.insert(partition=99)
    misplaced = await find_misplaced(queue.records, PARTITIONS)
    [claimed] = (await claim_in(queue, 99)).records
    owned = await queue.stored(odd)
    assert await repair(queue.records, misplaced, PARTITIONS) == 0
    assert await queue.stored(odd) == owned
    assert claimed.lease == Lease(odd, owned["lockId"])
    assert owned["partition"] == 99


async def test_a_claim_that_comes_after_finds_the_record_in_its_new_partition_only(queue: Queue) -> None:
    odd = await queue.insert(partition=99)
    assert await reconcile(queue) == 1
    assert (await claim_in(queue, 99)).records == ()
    new = (await queue.stored(odd))["partition"]
    assert [record.id for record in (await claim_in(queue, new)).records] == [odd]


async def test_a_node_claim_that_came_first_keeps_its_record(queue: Queue) -> None:
    odd = await queue.insert(partition=5)
    misplaced = await find_misplaced(queue.records, PARTITIONS)
    lock = {"lockId": "node", "lockedUntil": queue.now + MINUTE}
    await queue.records.update_one({"_id": odd}, {"$set": lock})
    assert await repair(queue.records, misplaced, PARTITIONS) == 0
    assert (await queue.stored(odd))["partition"] == 5


async def test_the_claim_wins_between_the_decision_and_the_write(queue: Queue) -> None:
    """The same within one call of the repair."""
    odd = await queue.insert(partition=99)

    async def claim() -> None:
        assert (await claim_in(queue, 99)).records

    racing = wrapped(queue.records, {"bulk_write": preceded(queue.records.bulk_write, claim)})
    assert await repair(racing, await find_misplaced(racing, PARTITIONS), PARTITIONS) == 0
    assert (await queue.stored(odd))["partition"] == 99


async def test_of_two_reconcilers_only_one_repairs_each_record(queue: Queue) -> None:
    await queue.insert_all([{"partition": partition} for partition in (None, -1, 99, "a", [7], {"$gt": 1})] * 5)
    one, other = [await find_misplaced(queue.records, PARTITIONS) for _ in range(2)]
    assert len(one) == len(other) == 30
    assert await repair(queue.records, one, PARTITIONS) == 30
    placed = await queue.records.find({}, {"partition": 1}).to_list()
    assert await repair(queue.records, other, PARTITIONS) == 0
    assert await queue.records.find({}, {"partition": 1}).to_list() == placed


async def test_a_record_that_died_or_left_meanwhile_stays_as_it_is(queue: Queue) -> None:
    dead, gone = [await queue.insert(partition=99) for _ in range(2)]
    misplaced = await find_misplaced(queue.records, PARTITIONS)
    died = {"status": "maxTriesReached", "maxTriesReachedAt": queue.now}
    await queue.records.update_one({"_id": dead}, {"$set": died})
    await queue.records.delete_one({"_id": gone})
    assert await repair(queue.records, misplaced, PARTITIONS) == 0
    assert (await queue.stored(dead))["partition"] == 99
    assert not await queue.exists(gone)


async def test_an_item_that_was_read_wrongly_changes_nothing(queue: Queue) -> None:
    """Such as a text that is no UTF-8, which cannot be read as it stands."""
    await queue.insert(partition="text")
    [item] = await find_misplaced(queue.records, PARTITIONS)
    assert await repair(queue.records, [replace(item, partition="tex\ufffd")], PARTITIONS) == 0


# What it costs


@pytest.mark.parametrize("partitions", [1, 16])
async def test_a_look_at_a_queue_in_order_reads_a_key_for_each_partition(queue: Queue, partitions: int) -> None:
    await queue.insert_all([{"partition": number % partitions} for number in range(5_000)])
    with recorded(queue.connection.address.database) as commands:
        assert await find_misplaced(queue.records, partitions) == []
    [(name, command)] = commands.sent
    assert name == "find"
    plan = await explained(queue.records, command)
    assert plan.indexes == {READY_BY_PRIORITY.name}
    assert not plan.stages & {"COLLSCAN", "SORT"}
    assert plan.keys <= partitions + 1
    assert plan.documents == 0


async def test_a_look_reads_what_it_finds_and_no_more(queue: Queue) -> None:
    await queue.insert_all([{"partition": number % 16} for number in range(5_000)])
    await queue.insert_all([{"partition": partition} for partition in (None, -1, 16, "a", 2.5)])
    with recorded(queue.connection.address.database) as commands:
        assert len(await find_misplaced(queue.records, 16)) == 5
    plan = await explained(queue.records, commands.sent[0][1])
    assert plan.documents == 5
    assert plan.keys <= 2 * 16


async def test_a_batch_of_repairs_is_one_command_by_id(queue: Queue) -> None:
    await queue.insert_all([{"partition": None}] * 100)
    misplaced = await find_misplaced(queue.records, PARTITIONS)
    with recorded(queue.connection.address.database) as commands:
        await repair(queue.records, misplaced, PARTITIONS)
    [command] = commands.named("update")
    assert len(command["updates"]) == 100
    assert all("_id" in update["q"] and not update.get("multi") for update in command["updates"])
