"""What every claim protocol promises to a single claimer."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from gangline.jobs.hint import Shape
from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.protocol import Claims, LeaseLengths
from gangline.store.clock import ServerClock
from store.claims.conftest import Subject
from support.records import JOB, LEASES, WORKER, locked_until, until

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


# Which records


async def test_nothing_is_claimed_from_an_empty_queue(subject: Subject) -> None:
    assert await subject.take(limit=10) == Claims((), contended=False)


@pytest.mark.parametrize("shape", Shape)
async def test_a_due_record_is_claimed_over_either_index(subject: Subject, shape: Shape) -> None:
    due = await subject.insert()
    claims = await subject.take(shape=shape)
    assert [record.id for record in claims.records] == [due]
    assert not claims.contended


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("names", [["a"], ["c", "a", "b"]], ids=len)
async def test_the_best_record_comes_first(subject: Subject, names: list[str], shape: Shape) -> None:
    """Case 30: priority, then the due instant, then the id, which is the order of scheduling; whatever the name."""
    early, late = subject.now - HOUR, subject.now - MINUTE
    by_order: list[tuple[str, int, datetime]] = [
        ("6", 0, early),
        ("2", 10, late),
        ("3", 5, early),
        ("1", 10, early),
        ("5", 5, late),
        ("4", 5, late),
    ]
    await subject.insert_all(
        [
            {"_id": order, "priority": priority, "nextRunAt": due_at, "jobName": names[place % len(names)]}
            for place, (order, priority, due_at) in enumerate(by_order)
        ]
    )
    assert await subject.take_all(10, names=names, shape=shape) == ["1", "2", "3", "4", "5", "6"]


async def test_no_more_than_the_limit_is_claimed(subject: Subject) -> None:
    await subject.insert_all([{}] * 5)
    claims = await subject.take(limit=3)
    assert len(claims.records) == (1 if subject.one_at_a_time else 3)
    assert not claims.contended
    assert await subject.records.count_documents({"lockId": None}) == 5 - len(claims.records)


async def test_a_limit_above_what_is_due_gives_what_is_due(subject: Subject) -> None:
    due = await subject.insert_all([{}] * 2)
    assert sorted(await subject.take_all(20)) == sorted(due)


async def test_a_record_is_never_claimed_before_it_is_due(subject: Subject) -> None:
    due_at = subject.now + timedelta(milliseconds=150)
    await subject.insert(nextRunAt=due_at)
    assert not (await subject.take()).records

    async def claimed() -> Sequence[ClaimedRecord]:
        return (await subject.take()).records

    [record] = await until(claimed)
    assert record.claimed_at >= due_at.replace(microsecond=due_at.microsecond // 1000 * 1000)


@pytest.mark.parametrize("ahead", [120, -120])
async def test_a_wrong_clock_of_the_host_claims_nothing_early_and_no_running_lease(
    subject: Subject, ahead: int
) -> None:
    """Case 23."""
    clock = ServerClock(wall=lambda: subject.now.timestamp() + ahead)
    clock.take(subject.now)
    await subject.insert(nextRunAt=subject.now + MINUTE)
    await subject.insert(**locked_until(subject.now + MINUTE))
    due = await subject.insert(nextRunAt=subject.now - MINUTE)
    claims = await subject.take(limit=5, now=clock.now())
    assert [record.id for record in claims.records] == [due]


NOT_READY: dict[str, dict[str, Any]] = {
    "locked": {"lockId": "theirs", "lockedUntil": timedelta(minutes=1)},
    "under an expired lease, which recovery takes over": {"lockId": "theirs", "lockedUntil": timedelta(minutes=-1)},
    "dead": {"status": "maxTriesReached", "maxTriesReachedAt": timedelta(minutes=-1)},
    "dead by its status alone": {"status": "maxTriesReached"},
    "in another partition": {"partition": 1},
    "without a partition": {"partition": None},
    "in a partition that is no number": {"partition": "0"},
    "of another name": {"jobName": "foreign"},
    "in the future": {"nextRunAt": timedelta(hours=1)},
    "without an instant": {"nextRunAt": None},
}


@pytest.mark.parametrize("fields", NOT_READY.values(), ids=NOT_READY.keys())
async def test_what_is_not_ready_is_not_claimed(subject: Subject, fields: dict[str, Any]) -> None:
    moments = {name: subject.now + value if isinstance(value, timedelta) else value for name, value in fields.items()}
    record_id = await subject.insert(priority=1_000, **moments)
    before = await subject.stored(record_id)
    other = await subject.insert()
    for shape in Shape:
        assert record_id not in await subject.take_all(5, shape=shape)
    assert await subject.stored(record_id) == before
    assert (await subject.stored(other))["tries"] == 1


async def test_a_record_that_lacks_the_field_partition_is_not_claimed(subject: Subject) -> None:
    record_id = await subject.insert()
    await subject.records.update_one({"_id": record_id}, {"$unset": {"partition": ""}})
    assert not (await subject.take(limit=5)).records


async def test_explicit_nulls_mean_the_same_as_missing_fields(subject: Subject) -> None:
    nulls = dict.fromkeys(["lockId", "lockedUntil", "status", "maxTriesReachedAt", "tries", "claimWasStale", "params"])
    record_id = await subject.insert(**nulls)
    [record] = (await subject.take()).records
    assert (record.id, record.tries, record.params) == (record_id, 1, None)


@pytest.mark.parametrize("record_id", [ObjectId(), 7, 7.5, "$jobName", "$$NOW", ""])
async def test_an_id_of_any_type_is_claimed_with_the_others(subject: Subject, record_id: Any) -> None:
    await subject.insert_all([{"_id": record_id}, {"_id": "plain"}, {"_id": "$also"}])
    won = {record.id: record.lease for _ in range(3) for record in (await subject.take(limit=3)).records}
    assert won.keys() == {record_id, "plain", "$also"}
    for claimed, lease in won.items():
        assert (await subject.stored(claimed))["lockId"] == lease.lock_id


# How many of a name


async def test_a_capped_name_never_exceeds_its_cap_and_others_fill_the_rest(subject: Subject) -> None:
    for position in range(12):
        await subject.insert(_id=f"{position:02}", jobName="capped" if position % 2 else "free")
    claims = await subject.take(names=["capped", "free"], limit=8, caps={"capped": 2})
    names = [record.name for record in claims.records]
    assert names.count("capped") <= 2
    assert not claims.contended, "what a cap leaves behind was not taken by a rival"
    if subject.name in ("batch", "by-limit"):
        assert names == ["free", "capped", "free", "capped", "free", "free"]


# What a claim writes


async def test_a_claim_writes_its_lease_and_nothing_else(subject: Subject) -> None:
    record_id = await subject.insert(tries=2, claimWasStale=True)
    before = await subject.stored(record_id)
    sent = subject.now
    [record] = (await subject.take()).records
    stored = await subject.stored(record_id)
    claim = {"lockId", "lockedUntil", "lockedBy", "claimWasStale", "lastRunAt", "tries"}
    assert {name: value for name, value in stored.items() if name not in claim} == {
        name: value for name, value in before.items() if name not in claim
    }
    assert (stored["lockId"], stored["lockedBy"]) == (record.lease.lock_id, WORKER)
    assert stored["claimWasStale"] is False
    assert stored["tries"] == record.tries == 3
    # The clock is a lower bound, and the server keeps milliseconds.
    assert sent - timedelta(milliseconds=1) <= stored["lastRunAt"] < sent + MINUTE
    assert stored["lockedUntil"] - stored["lastRunAt"] == LEASES.default


async def test_a_job_with_a_lease_of_its_own_gets_it(subject: Subject) -> None:
    odd = "$jobName"
    lengths = {JOB: LEASES.default, "long": HOUR, odd: MINUTE}
    leases = LeaseLengths(default=LEASES.default, by_name={"long": HOUR, odd: MINUTE})
    ids = {name: await subject.insert(jobName=name) for name in lengths}
    await subject.take_all(3, names=list(lengths), leases=leases)
    for name, length in lengths.items():
        stored = await subject.stored(ids[name])
        assert stored["lockedUntil"] - stored["lastRunAt"] == length


@pytest.mark.parametrize(
    ("left", "tries"),
    [(0, 1), (3, 4), (2.0, 3), ("garbage", 1), ("", 1), (None, 1), (True, 1), ([1], 1), ({"a": 1}, 1)],
    ids=repr,
)
async def test_tries_count_on_from_whatever_stood_there(subject: Subject, left: Any, tries: int) -> None:
    record_id = await subject.insert(tries=left)
    [record] = (await subject.take()).records
    assert record.tries == tries
    assert (await subject.stored(record_id))["tries"] == tries


@pytest.mark.parametrize("left", [float("nan"), float("inf"), float("-inf")])
async def test_tries_that_no_number_of_claims_could_be_count_from_zero(subject: Subject, left: float) -> None:
    await subject.insert(tries=left)
    other = await subject.insert()
    assert other in await subject.take_all(2)
    assert await subject.records.distinct("tries") == [1]


async def test_only_the_claimed_record_changes(subject: Subject) -> None:
    """Case 42."""
    best = await subject.insert(_id="a", tries=1)
    await subject.insert_all([{"_id": "b", "tries": 1}, {"_id": "c"}, {"_id": "d", "partition": 1}])
    others = {"_id": {"$ne": best}}
    before = await subject.records.find(others).to_list()
    assert [record.id for record in (await subject.take()).records] == [best]
    assert await subject.records.find(others).to_list() == before


async def test_the_claimed_record_is_given_as_it_is_stored(subject: Subject) -> None:
    """Case 34: keys with a dot or a dollar come back."""
    params = {"$set": {"a.b": 1, "$c": ["$d", {"e.$f": None}]}, "g": 0}
    due_at = (subject.now - HOUR).replace(microsecond=0)
    record_id = await subject.insert(params=params, priority=0, uniqueIdentifier="u", nextRunAt=due_at)
    [record] = (await subject.take()).records
    assert (record.id, record.name, record.type) == (record_id, JOB, "event")
    assert (record.params, record.priority, record.unique) == (params, 0, "u")
    assert (record.next_run_at, record.was_stale) == (due_at, False)
    assert record.lease.record_id == record_id


async def test_each_claimed_record_has_a_lock_id_of_its_own(subject: Subject) -> None:
    await subject.insert_all([{}] * 6)
    await subject.take_all(3)
    await subject.take_all(3)
    assert len(await subject.records.distinct("lockId")) == 6
