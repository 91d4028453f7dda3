"""Many jobs in one go: an outcome for each in its order, and no round trip for each."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.errors import BulkWriteError, OperationFailure

from gangline import (
    AlreadyScheduled,
    ConfigurationError,
    Gangline,
    InvalidParams,
    RecordTooLarge,
    Scheduled,
    ScheduleStatus,
    SchedulingError,
)
from gangline.jobs.scheduling import JobCall
from support.apps import Raw, failing
from support.commands import Commands, recorded

CREATED, EXISTING = ScheduleStatus.CREATED, ScheduleStatus.EXISTING


@pytest.fixture
def sent(raw: Raw) -> Iterator[Commands]:
    """What is sent to the queue's database."""
    with recorded(raw.records.database.name) as commands:
        yield commands


async def test_a_bulk_with_three_bad_ones_stores_the_others(app: Gangline, raw: Raw, sent: Commands) -> None:
    """Case 28."""

    @app.event()
    async def store(number: int, payload: str = "") -> None: ...

    first = await store.options(unique="taken").schedule(-1)
    calls = [store.call(number) for number in range(1_000)]
    calls[300] = store.options(unique="taken").call(300)
    calls[500] = store.call("not a number")  # type: ignore[arg-type]
    calls[700] = store.call(700, payload="x" * 17_000_000)
    sent.clear()
    outcomes = await app.schedule_many(calls)
    assert Counter(name for name, _ in sent.sent) == {"insert": 1, "update": 1, "find": 1}
    assert len(outcomes) == 1_000
    assert (outcomes[300].status, outcomes[300].id) == (EXISTING, first.id)
    assert isinstance(outcomes[500].error, InvalidParams)
    assert isinstance(outcomes[700].error, RecordTooLarge)
    good = {place: outcome for place, outcome in enumerate(outcomes) if place not in (300, 500, 700)}
    assert {outcome.status for outcome in good.values()} == {CREATED}
    raw.records.delete_one({"_id": first.id})
    stored = {record["_id"]: record["params"]["number"] for record in raw.records.find()}
    assert stored == {outcome.id: place for place, outcome in good.items()}


async def test_twenty_thousand_jobs_go_in_a_few_commands_and_spread_over_the_partitions(
    app: Gangline, raw: Raw, sent: Commands
) -> None:
    @app.event()
    async def note(number: int) -> None: ...

    outcomes = await app.schedule_many(note.call(number) for number in range(20_000))
    assert [name for name, _ in sent.sent] == ["insert"] * 8
    found = raw.records.find({}, {"params": 1, "partition": 1})
    stored = {record["_id"]: (record["params"]["number"], record["partition"]) for record in found}
    assert [stored[outcome.id][0] for outcome in outcomes] == list(range(20_000))
    spread = Counter(partition for _, partition in stored.values())
    assert set(spread) == set(range(16))
    # 1,250 expected in each, with a standard deviation of 34: eight of them are never seen by chance.
    assert all(abs(count - 1_250) < 8 * 34 for count in spread.values())


async def test_a_large_bulk_lets_others_on_the_event_loop_have_their_turn(app: Gangline) -> None:
    turns, seen = 0, set()

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def params() -> None:
        seen.add(turns)

    task = asyncio.create_task(other())
    await app.schedule_many([JobCall(name="other", params=params) for _ in range(2_000)])
    task.cancel()
    assert len(seen) >= 20, "the jobs were encoded in one go"


async def test_a_program_with_one_partition_uses_that_one(uri: str, raw: Raw) -> None:
    async with Gangline(uri, partitions=1) as app:
        for _ in range(5):
            await app.schedule_by_name("other")
    assert {record["partition"] for record in raw.records.find()} == {0}


async def test_nothing_to_schedule_sends_nothing(app: Gangline, sent: Commands) -> None:
    assert await app.schedule_many([]) == []
    assert sent.sent == []


async def test_a_generator_that_fails_schedules_nothing(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def note(number: int) -> None: ...

    def calls() -> Iterator[JobCall]:
        yield note.call(1)
        raise LookupError("no more people")

    with pytest.raises(LookupError):
        await app.schedule_many(calls())
    assert raw.empty()


@pytest.mark.parametrize("wrong", [None, "note", {}, 5])
async def test_what_is_no_call_is_refused_before_anything_is_stored(app: Gangline, raw: Raw, wrong: Any) -> None:
    @app.event()
    async def note() -> None: ...

    with pytest.raises(ConfigurationError, match=r"calls: a \w+ is no call of a job. Give job.call"):
        await app.schedule_many([note.call(), wrong])
    assert raw.empty()


async def test_a_bulk_of_only_bad_ones_stores_nothing(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def note(number: int) -> None: ...

    outcomes = await app.schedule_many([note.call("a"), note.call()])  # type: ignore[arg-type, call-arg]
    assert [outcome.status for outcome in outcomes] == [ScheduleStatus.REFUSED] * 2
    assert all(outcome.id is None and isinstance(outcome.error, InvalidParams) for outcome in outcomes)
    assert raw.empty()


async def test_a_bulk_of_unique_jobs_costs_the_same_few_commands(app: Gangline, raw: Raw, sent: Commands) -> None:
    @app.event()
    async def note(number: int) -> None: ...

    calls = [note.options(unique=f"n{n}", on_conflict="replace").call(n) for n in range(200)]
    await app.schedule_many(calls[:100])
    sent.clear()
    outcomes = await app.schedule_many(calls)
    assert Counter(outcome.status for outcome in outcomes) == {CREATED: 100, ScheduleStatus.REPLACED: 100}
    assert Counter(name for name, _ in sent.sent) == {"insert": 1, "update": 2, "find": 1}
    assert {record["_id"]: record["uniqueIdentifier"] for record in raw.records.find()} == {
        outcome.id: f"n{place}" for place, outcome in enumerate(outcomes)
    }


# A server in trouble


async def test_a_broken_connection_stores_every_job_once(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def note(number: int) -> None: ...

    with failing(raw, "insert", mode={"times": 1}, closeConnection=True):
        outcomes = await app.schedule_many([note.call(number) for number in range(100)])
    assert all(outcome.created for outcome in outcomes)
    assert sorted(record["params"]["number"] for record in raw.records.find()) == list(range(100))


async def test_a_job_is_stored_once_when_the_answer_to_its_insert_is_lost(app: Gangline, raw: Raw) -> None:
    await app.schedule_by_name("first")
    admin = raw.client.admin
    admin.command(
        "configureFailPoint", "onPrimaryTransactionalWrite", mode={"times": 1}, data={"closeConnection": True}
    )
    try:
        outcomes = [await app.schedule_by_name("second", unique="x") for _ in range(2)]
    finally:
        admin.command("configureFailPoint", "onPrimaryTransactionalWrite", mode="off")
    assert [outcome.status for outcome in outcomes] == [CREATED, EXISTING]
    assert raw.record(jobName="second")["_id"] == outcomes[0].id == outcomes[1].id


async def test_an_error_of_the_server_is_raised_not_hidden_in_outcomes(app: Gangline, raw: Raw) -> None:
    await app.schedule_by_name("first")
    with failing(raw, "insert", errorCode=8000), pytest.raises(OperationFailure):
        await app.schedule_many([JobCall(name="second", params=dict)])
    assert raw.records.count_documents({}) == 1


@pytest.mark.parametrize(("good", "stored"), [(0, 0), (1, 2_500)])
async def test_an_error_ends_a_large_bulk_and_keeps_what_was_accepted(
    app: Gangline, raw: Raw, good: int, stored: int
) -> None:
    calls = [JobCall(name="other", params=dict) for _ in range(6_000)]
    with failing(raw, "insert", mode={"skip": good}, errorCode=8000), recorded(raw.records.database.name) as sent:
        with pytest.raises(OperationFailure):
            await app.schedule_many(calls)
        assert len(sent.named("insert")) == good + 1
    assert raw.records.count_documents({}) == stored


@pytest.mark.parametrize("command", ["insert", "update"])
async def test_without_the_write_concern_nothing_counts_as_accepted(app: Gangline, raw: Raw, command: str) -> None:
    await app.schedule_by_name("first", unique="x")
    lagging = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out"}
    call = JobCall(name="second", params=dict, unique="x", on_conflict="replace")
    with failing(raw, command, writeConcernError=lagging), pytest.raises((BulkWriteError, OperationFailure)):
        await app.schedule_many([call])


# Another program's unique index


async def test_a_foreign_unique_index_refuses_its_own_job_only_and_shows_no_values(app: Gangline, raw: Raw) -> None:
    raw.records.create_index("params.email", unique=True, sparse=True)
    raw.records.insert_many([{"_id": "dead", "type": "event", "status": "maxTriesReached"}, {"_id": "other"}])
    calls = [JobCall(name="mail", params=lambda email=email: {"email": email}) for email in ("a@x", "s3cret@x", "b@x")]  # type: ignore[misc]
    await app.schedule_by_name("mail", {"email": "s3cret@x"})
    outcomes = await app.schedule_many(calls)
    assert [outcome.status for outcome in outcomes] == [CREATED, ScheduleStatus.REFUSED, CREATED]
    error = outcomes[1].error
    assert type(error) is SchedulingError
    assert "'mail'" in str(error)
    assert "params.email" in str(error)
    assert "s3cret" not in str(error)
    assert raw.record(_id="dead") == {"_id": "dead", "type": "event", "status": "maxTriesReached"}


async def test_a_replacement_that_a_foreign_unique_index_refuses_changes_nothing(app: Gangline, raw: Raw) -> None:
    raw.records.create_index("params.email", unique=True, sparse=True)
    await app.schedule_by_name("mail", {"email": "a@x"})
    await app.schedule_by_name("mail", {"email": "b@x"}, unique="x")
    before = raw.record(uniqueIdentifier="x")
    # The insert meets the index of identifiers first: `uniqueIdentifier` is free of the other one's value.
    raw.records.drop_index("params.email_1")
    raw.records.create_index("params.email", unique=True, sparse=True)
    with pytest.raises(SchedulingError) as caught:
        await app.schedule_by_name("mail", {"email": "a@x"}, unique="x", on_conflict="replace")
    assert not isinstance(caught.value, AlreadyScheduled)
    assert raw.record(uniqueIdentifier="x") == before


def test_an_outcome_says_whether_it_is_new() -> None:
    assert Scheduled(id="a", status=CREATED).created
    assert not Scheduled(id="a", status=EXISTING).created
    assert not Scheduled(id="a", status=ScheduleStatus.REPLACED).created
