"""Taking over records whose lease ended before their execution settled."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gangline.jobs.lease import Lease
from gangline.store.claims.protocol import LeaseLengths
from gangline.store.leases import LeaseRenewals
from support.records import JOB, LEASES, Queue, locked_until, preceded, wrapped

MINUTE = timedelta(minutes=1)


async def test_only_expired_leases_are_taken_over_and_the_oldest_first(queue: Queue) -> None:
    await queue.insert()
    await queue.insert(**locked_until(queue.now + MINUTE))
    for name, seconds in {"middle": 20, "young": 10, "old": 30}.items():
        await queue.insert_expired(_id=name, ago=timedelta(seconds=seconds), partition=seconds)
    first = await queue.take_over(2)
    assert [record.id for record in first.records] == ["old", "middle"]
    assert [record.id for record in (await queue.take_over(2)).records] == ["young"]
    assert (await queue.take_over(2)).records == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"jobName": "foreign"},
        {"status": "maxTriesReached", "type": "event"},
        {"lockedUntil": None},
        {"lockedUntil": "text"},
    ],
    ids=str,
)
async def test_what_is_no_lost_execution_of_these_jobs_is_left_alone(queue: Queue, fields: dict[str, Any]) -> None:
    record_id = await queue.insert(**{**locked_until(queue.now - MINUTE), **fields})
    before = await queue.stored(record_id)
    assert (await queue.take_over()).records == ()
    assert await queue.stored(record_id) == before


async def test_a_take_over_is_a_claim_that_says_what_it_took_over(queue: Queue) -> None:
    record_id = await queue.insert_expired(tries=2)
    before = await queue.stored(record_id)
    taken = await queue.take_over()
    [record] = taken.records
    assert (record.id, record.was_stale, record.tries) == (record_id, True, 3)
    document = await queue.stored(record_id)
    assert document["claimWasStale"] is True
    assert document["lockId"] == record.lease.lock_id != before["lockId"]
    assert document["lockedUntil"] - document["lastRunAt"] == LEASES.default
    assert document["tries"] == 3
    left = taken.left[record_id]
    assert left == {name: before[name] for name in left}
    assert {"lockId", "lastRunAt", "lockedBy", "tries"} <= left.keys()


async def test_a_record_that_a_node_worker_left_is_taken_over(queue: Queue) -> None:
    """It writes neither who locked it nor whether the claim was stale."""
    record_id = await queue.insert(lockId="theirs", lockedUntil=queue.now - MINUTE)
    [record] = (await queue.take_over()).records
    assert (record.id, record.tries, record.was_stale) == (record_id, 1, True)


async def test_a_taken_over_job_gets_its_own_lease(queue: Queue) -> None:
    await queue.insert_expired(jobName="long")
    leases = LeaseLengths(default=MINUTE, by_name={"long": 60 * MINUTE})
    [record] = (await queue.take_over(names=("long", JOB), leases=leases)).records
    document = await queue.stored(record.id)
    assert document["lockedUntil"] - document["lastRunAt"] == 60 * MINUTE


async def test_ids_of_any_type_are_taken_over(queue: Queue) -> None:
    ids = [7, "$jobName", "plain"]
    for record_id in ids:
        await queue.insert_expired(_id=record_id)
    assert {record.id for record in (await queue.take_over()).records} == set(ids)


async def test_of_two_recoverers_each_record_gets_one_owner(queue: Queue) -> None:
    for _ in range(20):
        await queue.insert_expired()
    taken = await asyncio.gather(*(queue.take_over(8, worker=f"w{number}") for number in range(8)))
    records = [record for part in taken for record in part.records]
    assert len({record.id for record in records}) == len(records)
    for record in records:
        document = await queue.stored(record.id)
        assert (document["lockId"], document["tries"]) == (record.lease.lock_id, 2)
    assert all(set(part.left) == {record.id for record in part.records} for part in taken)


async def test_a_rival_that_is_first_keeps_what_it_took(queue: Queue) -> None:
    for name in "abc":
        await queue.insert_expired(_id=name, ago=timedelta(seconds=100 - ord(name)))

    async def rival() -> None:
        theirs.extend((await queue.take_over(2)).records)

    theirs: list[Any] = []
    records = wrapped(queue.records, {"update_many": preceded(queue.records.update_many, rival)})
    ours = await queue.take_over(records=records)
    together = sorted(record.id for record in [*theirs, *ours.records])
    assert together == ["a", "b", "c"]
    assert len(ours.records) == 1


# A renewal that comes in between, in both orders.


async def renew(queue: Queue, lease: Lease) -> list[Lease]:
    """Renew as the lease keeper does, from a thread; returns `[lease]` if it is lost."""
    renewals = LeaseRenewals(queue.connection.address)
    try:
        return await asyncio.to_thread(renewals.renew, [lease], MINUTE)
    finally:
        await asyncio.to_thread(renewals.close)


async def test_a_renewal_before_the_take_over_keeps_the_record(queue: Queue) -> None:
    record = await queue.claim()
    await queue.let_expire(record)
    lost: list[Lease] = []

    async def renewal() -> None:
        lost.extend(await renew(queue, record.lease))

    records = wrapped(queue.records, {"update_many": preceded(queue.records.update_many, renewal)})
    assert (await queue.take_over(records=records)).records == ()
    assert lost == []
    document = await queue.stored(record.id)
    assert (document["lockId"], document["tries"]) == (record.lease.lock_id, 1)
    assert document["lockedUntil"] > queue.now + MINUTE / 2


async def test_a_renewal_after_the_take_over_is_told_that_the_lease_is_lost(queue: Queue) -> None:
    """Case 6: never a half-locked record."""
    record = await queue.claim()
    taken = await queue.steal(record)
    before = await queue.stored(record.id)
    assert await renew(queue, record.lease) == [record.lease]
    assert await queue.stored(record.id) == before
    assert before["lockId"] == taken.lease.lock_id


async def test_a_renewal_after_the_release_locks_nothing(queue: Queue) -> None:
    """Case 6: never a half-locked record."""
    record = await queue.claim()
    await queue.records.update_one({"_id": record.id}, {"$unset": {"lockId": "", "lockedUntil": ""}})
    assert await renew(queue, record.lease) == [record.lease]
    assert not {"lockId", "lockedUntil"} & (await queue.stored(record.id)).keys()


async def test_a_renewal_tells_the_lost_from_the_held(queue: Queue) -> None:
    held, lost = await queue.claim(), await queue.claim()
    await queue.steal(lost)
    assert await renew(queue, lost.lease) == [lost.lease]
    renewals = LeaseRenewals(queue.connection.address)
    try:
        assert await asyncio.to_thread(renewals.renew, [held.lease, lost.lease], MINUTE) == [lost.lease]
    finally:
        await asyncio.to_thread(renewals.close)


async def test_a_renewal_never_shortens_a_lease(queue: Queue) -> None:
    record = await queue.claim()
    end = (queue.now + 60 * MINUTE).replace(microsecond=0)
    await queue.records.update_one({"_id": record.id}, {"$set": {"lockedUntil": end}})
    assert await renew(queue, record.lease) == []
    assert (await queue.stored(record.id))["lockedUntil"] == end
