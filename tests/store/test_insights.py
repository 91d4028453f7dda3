"""The read model: every record is in exactly one state, and all ways to ask agree on which."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection

from gangline.store.connection import CODEC, Document
from gangline.store.eligibility import expired, free
from gangline.store.insights import Insights, JobCounts, State, in_state, state_of
from support.queues import dead_node_record
from support.records import JOB, Queue, locked_until, open_queue

NOW = datetime(2026, 5, 17, 12, 0, 0, 1_999, tzinfo=UTC)  # between two of the server's milliseconds
MILLISECOND, MINUTE = timedelta(milliseconds=1), timedelta(minutes=1)
MISSING = object()

PAST, FUTURE = NOW - MINUTE, NOW + MINUTE
DATES: list[Any] = [
    MISSING,
    None,
    PAST,
    NOW,
    NOW + MILLISECOND,
    FUTURE,
    "soon",
    5,
    True,
    {},
    [],
    [None],
    [PAST],
    [FUTURE],
]
STATUSES: list[Any] = [MISSING, None, "pending", "maxTriesReached", 5, ["maxTriesReached"]]
TYPES: list[Any] = [MISSING, "event", "recurrent", "Event", ["event"]]


def document(**fields: Any) -> Document:
    return {name: value for name, value in fields.items() if value is not MISSING}


@pytest.fixture
def records(uri: str) -> Iterator[Collection[Document]]:
    client: MongoClient[Document] = MongoClient(uri)
    with client:
        yield client.get_default_database().get_collection("gangline.records", codec_options=CODEC)


@pytest.fixture
async def queue(uri: str) -> AsyncIterator[Queue]:
    async with open_queue(uri) as queue:
        yield queue


def found_in(records: Collection[Document]) -> dict[Any, list[State]]:
    """By record the states in which the filters find it."""
    found: dict[Any, list[State]] = {record["_id"]: [] for record in records.find({}, {"_id": 1})}
    for state in State:
        for record in records.find(in_state(state, NOW), {"_id": 1}):
            found[record["_id"]].append(state)
    return found


# What a state means


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, State.SCHEDULED),
        ({"nextRunAt": FUTURE}, State.SCHEDULED),
        ({"nextRunAt": "soon"}, State.SCHEDULED),
        ({"nextRunAt": PAST}, State.READY),
        ({"nextRunAt": NOW}, State.READY),
        ({"nextRunAt": PAST, "lockedUntil": None, "maxTriesReachedAt": None, "status": None}, State.READY),
        ({"nextRunAt": PAST, "lockedUntil": FUTURE}, State.RUNNING),
        ({"nextRunAt": PAST, "lockedUntil": "soon"}, State.RUNNING),
        ({"nextRunAt": FUTURE, "lockedUntil": PAST}, State.STALE),
        ({"nextRunAt": PAST, "lockedUntil": NOW}, State.STALE),
        ({"nextRunAt": PAST, "maxTriesReachedAt": PAST}, State.DEAD),
        ({"nextRunAt": PAST, "lockedUntil": FUTURE, "maxTriesReachedAt": PAST}, State.DEAD),
        ({"nextRunAt": PAST, "type": "event", "status": "maxTriesReached"}, State.DEAD),
        ({"nextRunAt": PAST, "type": "recurrent", "status": "maxTriesReached"}, State.READY),
        ({"nextRunAt": PAST, "type": "event", "status": "pending"}, State.READY),
    ],
    ids=str,
)
def test_the_state_follows_from_the_fields(records: Collection[Document], fields: Document, state: State) -> None:
    records.insert_one({"_id": 1, **fields})
    assert state_of(fields, NOW) is state
    assert found_in(records) == {1: [state]}


def test_every_combination_of_fields_is_in_the_one_state_that_the_filters_find_it_in(
    records: Collection[Document],
) -> None:
    combinations = list(itertools.product(DATES, DATES, DATES, STATUSES, TYPES))[::7]
    names = ("lockedUntil", "maxTriesReachedAt", "nextRunAt", "status", "type")
    documents = [
        document(_id=place, **dict(zip(names, values, strict=True))) for place, values in enumerate(combinations)
    ]
    records.insert_many(documents)
    expected = {record["_id"]: [state_of(record, NOW)] for record in records.find()}
    assert found_in(records) == expected
    assert {state for [state] in expected.values()} == set(State)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "lockedUntil": st.none() | st.timedeltas(-MINUTE, MINUTE).map(NOW.__add__) | st.text(max_size=2),
        "nextRunAt": st.none() | st.timedeltas(-MILLISECOND, MILLISECOND).map(NOW.__add__) | st.floats(),
        "maxTriesReachedAt": st.none() | st.timedeltas(-MINUTE, MINUTE).map(NOW.__add__) | st.booleans(),
        "status": st.none() | st.sampled_from(["pending", "maxTriesReached"]),
        "type": st.none() | st.sampled_from(["event", "recurrent"]),
        "jobName": st.none() | st.sampled_from(["a", "b"]),
        "tries": st.none() | st.integers(0, 3),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FIELDS, min_size=1, max_size=20))
def test_the_filters_agree_with_the_state_of_what_is_read(
    records: Collection[Document], documents: list[Document]
) -> None:
    records.delete_many({})
    records.insert_many([{"_id": place, **fields} for place, fields in enumerate(documents)])
    assert found_in(records) == {record["_id"]: [state_of(record, NOW)] for record in records.find()}


def test_what_claims_and_recovery_may_take_is_ready_and_stale(records: Collection[Document]) -> None:
    combinations = itertools.product(DATES[:8], DATES[:6], DATES[:8], STATUSES[:4], TYPES[:3])
    names = ("lockedUntil", "maxTriesReachedAt", "nextRunAt", "status", "type")
    records.insert_many([document(jobName=JOB, **dict(zip(names, values, strict=True))) for values in combinations])
    claimable = {record["_id"] for record in records.find(free([JOB], NOW))}
    assert claimable == {record["_id"] for record in records.find(in_state(State.READY, NOW))}
    recoverable = {record["_id"] for record in records.find(expired([JOB], NOW))}
    assert recoverable >= {record["_id"] for record in records.find(in_state(State.STALE, NOW))}


@pytest.mark.parametrize("milliseconds", [-(2**62), 2**62])
async def test_a_date_beyond_python_s_years_has_a_state(queue: Queue, milliseconds: int) -> None:
    await queue.insert(_id="due", nextRunAt=DatetimeMS(milliseconds))
    await queue.insert(_id="locked", lockId="theirs", lockedUntil=DatetimeMS(milliseconds))
    insights = Insights(queue.connection)
    past = milliseconds < 0
    states = {record["_id"]: record["state"] for record in await insights.jobs()}
    assert states == {"due": "ready" if past else "scheduled", "locked": "stale" if past else "running"}
    for record_id, state in states.items():
        assert record_id in {record["_id"] for record in await insights.jobs(state=State(state))}
    assert len(await insights.counts()) == 1


# Counts


async def one_of_each(queue: Queue, **fields: Any) -> None:
    """One record in each state."""
    await queue.insert(**fields)
    await queue.insert(nextRunAt=queue.now + MINUTE, **fields)
    await queue.insert(**locked_until(queue.now + MINUTE), **fields)
    await queue.insert_expired(**fields)
    await queue.records.insert_one(dead_node_record(fields.get("jobName", JOB)))


async def test_an_empty_queue_has_no_counts(queue: Queue) -> None:
    assert await Insights(queue.connection).counts() == []


async def test_counts_are_per_name_and_type_in_their_order(queue: Queue) -> None:
    await one_of_each(queue, jobName="b")
    due = (queue.now - 3 * MINUTE).replace(microsecond=0)
    await queue.insert(jobName="a", nextRunAt=due)
    await queue.insert(jobName="a", nextRunAt=due + MINUTE)
    await queue.insert(jobName="a", type="recurrent", nextRunAt=queue.now + MINUTE)
    first, second, third = await Insights(queue.connection).counts()
    assert first == JobCounts(name="a", type="event", ready=2, oldest_due=due)
    assert second == JobCounts(name="a", type="recurrent", scheduled=1)
    assert (third.name, third.type) == ("b", "event")
    assert (third.scheduled, third.ready, third.running, third.stale, third.dead) == (1, 1, 1, 1, 1)
    assert third.oldest_due is not None


async def test_counts_survive_what_a_foreign_program_wrote(queue: Queue) -> None:
    await queue.records.insert_many(
        [
            {"_id": 1},
            {"_id": 2, "jobName": None, "type": None, "nextRunAt": "soon", "lockedUntil": "soon"},
            {"_id": 3, "jobName": {"a": 1}, "type": {"b": 1}, "nextRunAt": [NOW - timedelta(days=400)]},
        ]
    )
    counts = await Insights(queue.connection).counts()
    assert {(count.name, count.type) for count in counts} == {("None", "None"), ("{'a': 1}", "{'b': 1}")}
    totals = Counter({state: sum(getattr(count, state) for count in counts) for state in State})
    assert totals == {State.SCHEDULED: 1, State.RUNNING: 1, State.READY: 1, State.STALE: 0, State.DEAD: 0}
    assert all(count.oldest_due is None for count in counts)


async def test_counts_agree_with_what_is_listed(queue: Queue) -> None:
    names = ("lockedUntil", "maxTriesReachedAt", "nextRunAt", "status")
    values = [MISSING, None, queue.now - MINUTE, queue.now + MINUTE, "soon"]
    combinations = itertools.product(values, values, values, STATUSES[:4])
    await queue.records.insert_many(
        [document(jobName="a", type="event", **dict(zip(names, chosen, strict=True))) for chosen in combinations]
    )
    insights = Insights(queue.connection)
    [counts] = await insights.counts()
    for state in State:
        listed = await insights.jobs(state=state, limit=1_000)
        assert {record["state"] for record in listed} == {state.value}
        assert len(listed) == getattr(counts, state)


# Lists


async def test_jobs_come_in_the_order_in_which_they_are_due_without_their_params(queue: Queue) -> None:
    for minutes in (3, -2, 1):
        await queue.insert(_id=str(minutes), nextRunAt=queue.now + minutes * MINUTE, params={"secret": 1})
    jobs = await Insights(queue.connection).jobs()
    assert [job["_id"] for job in jobs] == ["-2", "1", "3"]
    assert [job["state"] for job in jobs] == ["ready", "scheduled", "scheduled"]
    assert not any("params" in job for job in jobs)


async def test_jobs_are_limited_and_chosen_by_name_and_state(queue: Queue) -> None:
    await one_of_each(queue, jobName="a")
    await one_of_each(queue, jobName="b")
    insights = Insights(queue.connection)
    assert len(await insights.jobs()) == 10
    assert len(await insights.jobs(limit=3)) == 3
    assert {job["jobName"] for job in await insights.jobs(name="a")} == {"a"}
    [job] = await insights.jobs(name="b", state=State.STALE)
    assert (job["jobName"], job["state"]) == ("b", "stale")
    assert await insights.jobs(name="c") == []


async def test_the_default_limit_bounds_a_list(queue: Queue) -> None:
    await queue.insert_all([{}] * 60)
    assert len(await Insights(queue.connection).jobs()) == 50


# One job


async def test_one_job_is_shown_with_its_params_and_state(queue: Queue) -> None:
    job_id = await queue.insert(params={"to": "a"})
    job = await Insights(queue.connection).job(job_id)
    assert job is not None
    assert (job["params"], job["state"]) == ({"to": "a"}, "ready")


def execution(job_id: str, lock_id: str, started: datetime) -> Document:
    return {"_id": lock_id, "jobId": job_id, "jobName": JOB, "startedAt": started, "status": "success"}


async def test_a_job_that_only_history_knows_has_executions_and_no_record(queue: Queue) -> None:
    await queue.connection.history.insert_one(execution("gone", "lock-1", NOW))
    insights = Insights(queue.connection)
    assert await insights.job("gone") is None
    [entry] = await insights.executions("gone")
    assert entry["_id"] == "lock-1"
    assert await insights.job("never") is None
    assert await insights.executions("never") == []


async def test_executions_come_newest_first_and_limited(queue: Queue) -> None:
    entries = [execution("job", f"lock-{n}", NOW + n * MINUTE) for n in range(5)]
    await queue.connection.history.insert_many([*entries, execution("other", "lock-9", NOW)])
    insights = Insights(queue.connection)
    assert [entry["_id"] for entry in await insights.executions("job")] == [f"lock-{n}" for n in (4, 3, 2, 1, 0)]
    assert [entry["_id"] for entry in await insights.executions("job", limit=2)] == ["lock-4", "lock-3"]


async def test_the_executions_of_a_name_are_counted_and_given_oldest_first(queue: Queue) -> None:
    entries = [execution("job", f"lock-{n}", NOW - n * MINUTE) for n in range(3)]
    await queue.connection.history.insert_many([*entries, {**execution("x", "lock-9", NOW), "jobName": "other"}])
    insights = Insights(queue.connection)
    assert await insights.count_executions(JOB) == 3
    assert [entry["_id"] async for entry in insights.executions_of(JOB)] == ["lock-2", "lock-1", "lock-0"]


async def test_the_server_s_write_conflicts_are_a_number(queue: Queue) -> None:
    conflicts = await Insights(queue.connection).write_conflicts()
    assert conflicts is not None
    assert conflicts >= 0
