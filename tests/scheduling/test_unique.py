"""Unique identifiers: at most one waiting or running record has one, and it is free again afterwards."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from gangline import AlreadyScheduled, ConfigurationError, Dismiss, Gangline, RetryPolicy, ScheduleStatus
from gangline.jobs.scheduling import ScheduleOptions
from support.apps import AT_ONCE, Raw, eventually, running, soon
from support.queues import dead_node_record, node_record
from support.servers import fresh_database

CREATED, EXISTING, REPLACED = ScheduleStatus.CREATED, ScheduleStatus.EXISTING, ScheduleStatus.REPLACED


@pytest.fixture(scope="session", params=["mongo_uri", "sorted_server"])
def each_server(request: pytest.FixtureRequest) -> str:
    """Each kind of server. Session-wide, so that it does not count as left behind by a test."""
    uri: str = request.getfixturevalue(request.param)
    return uri


@pytest.fixture
def server(each_server: str) -> Iterator[str]:
    """A fresh database on each kind of server."""
    with fresh_database(each_server) as uri:
        yield uri


@pytest.fixture
async def on_each(server: str) -> AsyncIterator[Gangline]:
    """An app on each kind of server."""
    async with Gangline(server) as app:
        yield app


async def test_twenty_connections_schedule_one_identifier_on_a_new_database(uri: str, raw: Raw) -> None:
    """Case 25: no worker has made an index yet."""
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(Gangline(uri)) for _ in range(20)]
        outcomes = await asyncio.gather(*(app.schedule_by_name("other", unique="once") for app in apps))
    record = raw.record()
    assert Counter(outcome.status for outcome in outcomes) == {CREATED: 1, EXISTING: 19}
    assert {outcome.id for outcome in outcomes} == {record["_id"]}


async def test_an_identifier_holds_over_all_job_names(app: Gangline, raw: Raw) -> None:
    first = await app.schedule_by_name("one", unique="x")
    second = await app.schedule_by_name("two", unique="x")
    assert (second.status, second.id, second.created) == (EXISTING, first.id, False)
    assert raw.record()["jobName"] == "one"


async def test_by_default_the_first_is_left_alone(app: Gangline, raw: Raw) -> None:
    """Case 26."""
    await app.schedule_by_name("one", {"n": 1}, unique="x", priority=1)
    before = raw.record()
    outcome = await app.schedule_by_name("one", {"n": 2}, unique="x", priority=2, run_in="1h")
    assert (outcome.status, outcome.id) == (EXISTING, before["_id"])
    assert raw.record() == before


async def test_raise_names_the_identifier_and_the_first(app: Gangline, raw: Raw) -> None:
    first = await app.schedule_by_name("one", unique="x")
    with pytest.raises(AlreadyScheduled, match=r"'x'.*" + str(first.id)) as caught:
        await app.schedule_by_name("one", unique="x", on_conflict="raise")
    assert (caught.value.unique, caught.value.job_id) == ("x", first.id)
    assert raw.record()["_id"] == first.id
    fresh = await app.schedule_by_name("one", unique="y", on_conflict="raise")
    assert fresh.status is CREATED


async def test_a_running_job_holds_its_identifier(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def hold() -> None:
        started.set()
        await release.wait()

    async with running(app):
        first = await hold.options(unique="x").schedule()
        await soon(started.wait())
        second = await hold.options(unique="x").schedule()
        release.set()
    assert (second.status, second.id) == (EXISTING, first.id)


@pytest.mark.parametrize(
    "ending", [None, Dismiss("enough"), ValueError("no more")], ids=["success", "dismiss", "death"]
)
async def test_an_identifier_is_free_again_when_its_job_has_ended(
    app: Gangline, raw: Raw, ending: Exception | None
) -> None:
    """Case 27: although history is kept, and the dead record too."""

    @app.event(max_tries=1)
    async def end() -> None:
        if ending is not None:
            raise ending

    async with running(app):
        first = await end.options(unique="x").schedule()
        await eventually(lambda: raw.records.find_one({"uniqueIdentifier": "x"}) is None)
    second = await end.options(unique="x", run_in="1h").schedule()
    assert second.status is CREATED
    assert second.id != first.id
    assert raw.entries(jobId=first.id)
    if isinstance(ending, ValueError):
        dead = raw.record(_id=first.id)
        assert (dead["status"], dead["freedUniqueIdentifier"]) == ("maxTriesReached", "x")


async def test_a_job_that_waits_for_its_next_try_holds_its_identifier(app: Gangline, raw: Raw) -> None:
    @app.event(retry=RetryPolicy.fixed("1h"))
    async def fail() -> None:
        raise ValueError

    async with running(app):
        first = await fail.options(unique="x").schedule()
        await eventually(lambda: "lastError" in raw.record())
    second = await fail.options(unique="x").schedule()
    assert (second.status, second.id) == (EXISTING, first.id)


@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
async def test_a_dead_record_of_a_node_worker_gives_its_identifier_back(
    app: Gangline, raw: Raw, on_conflict: Any
) -> None:
    """Case 27: such a record keeps its identifier, and stays visible without it."""
    dead, other = dead_node_record("old", uniqueIdentifier="x"), dead_node_record("old", uniqueIdentifier="y")
    raw.records.insert_many([dead, other])
    outcome = await app.schedule_by_name("new", unique="x", on_conflict=on_conflict)
    assert outcome.status is CREATED
    assert outcome.id != dead["_id"]
    left = raw.record(_id=dead["_id"])
    assert (left["status"], left["freedUniqueIdentifier"]) == ("maxTriesReached", "x")
    assert "uniqueIdentifier" not in left
    assert raw.record(_id=other["_id"])["uniqueIdentifier"] == "y"


async def test_a_record_of_a_node_program_holds_its_identifier(app: Gangline, raw: Raw) -> None:
    record = node_record("old", uniqueIdentifier="x")
    raw.records.insert_one(record)
    outcome = await app.schedule_by_name("new", unique="x")
    assert (outcome.status, outcome.id) == (EXISTING, record["_id"])


# Replacing


async def test_a_waiting_job_is_replaced(on_each: Gangline, server: str) -> None:
    """Case 26."""
    first = await on_each.schedule_by_name("one", {"n": 1, "only": "here"}, unique="x", priority=1, run_in="1h")
    with Raw(server) as raw:
        raw.records.update_one({}, {"$set": {"tries": 3, "lastError": {"message": "oh"}}})
        before = raw.record()
        params = {"n": 2, "$ref": "a.b"}
        second = await on_each.schedule_by_name("two", params, unique="x", priority=2.5, on_conflict="replace")
        after = raw.record()
    assert (second.status, second.id, second.created) == (REPLACED, first.id, False)
    assert (after["jobName"], after["priority"], after["tries"]) == ("two", 2.5, 0)
    assert after["nextRunAt"] < before["nextRunAt"] - timedelta(minutes=50)
    assert "lastError" not in after
    assert after["params"] == params or after["params"].as_doc() == {"$ref": "a.b", "$id": None, "n": 2}
    assert {key: after[key] for key in ("_id", "uniqueIdentifier", "partition", "type")} == {
        key: before[key] for key in ("_id", "uniqueIdentifier", "partition", "type")
    }
    assert after.keys() == before.keys() - {"lastError"}


async def test_replace_creates_what_is_not_there(on_each: Gangline) -> None:
    outcome = await on_each.schedule_by_name("one", unique="x", on_conflict="replace")
    assert outcome.status is CREATED


async def test_a_running_job_is_not_replaced(on_each: Gangline, server: str) -> None:
    first = await on_each.schedule_by_name("one", {"n": 1}, unique="x")
    with Raw(server) as raw:
        raw.records.update_one({}, [{"$set": {"lockId": "theirs", "lockedUntil": {"$add": ["$$NOW", 60_000]}}}])
        before = raw.record()
        second = await on_each.schedule_by_name("two", {"n": 2}, unique="x", on_conflict="replace")
        assert (second.status, second.id) == (EXISTING, first.id)
        assert raw.record() == before


async def test_a_job_whose_lease_ended_counts_as_running(app: Gangline, raw: Raw) -> None:
    """Its execution may still live, and what takes it over must know what it takes over."""
    await app.schedule_by_name("one", {"n": 1}, unique="x")
    raw.records.update_one({}, [{"$set": {"lockId": "theirs", "lockedUntil": {"$add": ["$$NOW", -60_000]}}}])
    before = raw.record()
    outcome = await app.schedule_by_name("two", {"n": 2}, unique="x", on_conflict="replace")
    assert outcome.status is EXISTING
    assert raw.record() == before


async def test_a_recurrent_job_is_not_replaced(app: Gangline, raw: Raw) -> None:
    raw.records.insert_one(node_record("tick", type="recurrent", uniqueIdentifier="x"))
    before = raw.record()
    outcome = await app.schedule_by_name("two", unique="x", on_conflict="replace")
    assert outcome.status is EXISTING
    assert raw.record() == before


async def test_a_replaced_job_runs_once_with_the_new_params(app: Gangline, raw: Raw) -> None:
    seen: list[int] = []

    @app.event()
    async def note(number: int) -> None:
        seen.append(number)

    for number in range(3):
        await note.options(unique="x", on_conflict="replace").schedule(number)
    async with running(app):
        await eventually(raw.empty)
    assert seen == [2]


async def test_a_job_that_failed_and_is_replaced_has_all_its_tries_again(app: Gangline, raw: Raw) -> None:
    @app.event(max_tries=2, retry=AT_ONCE)
    async def fail(number: int) -> None:
        raise ValueError(number)

    await fail.options(unique="x").schedule(1)
    raw.records.update_one({}, {"$set": {"tries": 1}})
    await fail.options(unique="x", on_conflict="replace").schedule(2)
    async with running(app):
        await eventually(lambda: raw.records.find_one({"status": "maxTriesReached"}) is not None)
    assert [entry["tries"] for entry in raw.entries()] == [1, 2]


@pytest.mark.parametrize("first", ["skip", "replace", "raise"])
async def test_two_in_one_bulk_the_later_replaces_the_earlier(on_each: Gangline, server: str, first: Any) -> None:
    @on_each.event()
    async def note(number: int) -> None: ...

    one = note.options(unique="x", on_conflict=first).call(1)
    two = note.options(unique="x", on_conflict="replace").call(2)
    outcomes = await on_each.schedule_many([one, two])
    assert [outcome.status for outcome in outcomes] == [CREATED, REPLACED]
    assert outcomes[0].id == outcomes[1].id
    with Raw(server) as raw:
        assert raw.record()["params"] == {"number": 2}
        outcomes = await on_each.schedule_many([two, note.options(unique="x", on_conflict="replace").call(3)])
        assert [outcome.status for outcome in outcomes] == [REPLACED, REPLACED]
        assert raw.record()["params"] == {"number": 3}


async def test_two_in_one_bulk_the_later_learns_of_the_earlier(on_each: Gangline) -> None:
    @on_each.event()
    async def note(number: int) -> None: ...

    skip = note.options(unique="x")
    strict = note.options(unique="x", on_conflict="raise")
    outcomes = await on_each.schedule_many([skip.call(1), skip.call(2), strict.call(3)])
    assert [outcome.status for outcome in outcomes] == [CREATED, EXISTING, ScheduleStatus.REFUSED]
    assert isinstance(outcomes[2].error, AlreadyScheduled)
    assert outcomes[0].id == outcomes[1].id == outcomes[2].error.job_id


# Options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"unique": ""}, "unique: '' is no identifier"),
        ({"unique": 5}, "unique: 5 is no identifier"),
        ({"on_conflict": "ignore"}, "on_conflict: 'ignore' is unknown. Use one of"),
        ({"uniqe": "x"}, "uniqe: unknown option of scheduling. Did you mean 'unique'?"),
        ({"priority": "high"}, "priority: 'high' is not a finite number"),
        ({"priority": True}, "priority: True is not"),
        ({"priority": float("inf")}, "priority: inf is not"),
        ({"priority": 2**63}, "priority: 9223372036854775808 is not"),
        ({"priority": 10**400}, "priority: 1000"),
    ],
    ids=str,
)
async def test_a_wrong_option_is_refused_by_name(app: Gangline, raw: Raw, options: Any, told: str) -> None:
    @app.event()
    async def note() -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        note.options(**options)
    assert str(caught.value).startswith(told)
    wrong: ScheduleOptions = options
    with pytest.raises(ConfigurationError):
        await app.schedule_by_name("note", **wrong)
    assert raw.empty()
