"""The record that scheduling writes, field by field, and the outcome that it returns."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import BSON, Int64
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from gangline import Gangline, Scheduled, ScheduleStatus
from support.apps import Document, Raw, eventually, running

LOCK_FIELDS = {"lockId", "lockedUntil", "claimWasStale", "lockedBy", "status", "maxTriesReachedAt", "expiresAt"}

# The first byte of an element in BSON: https://bsonspec.org/spec.html
DOUBLE, TEXT, DOCUMENT, DATE, INT32, INT64 = 0x01, 0x02, 0x03, 0x09, 0x10, 0x12


def bson_type(records: Collection[Document], field: str) -> int:
    """The type of `field` in the one record, as the server keeps it."""
    raw_records = records.with_options(CodecOptions(document_class=RawBSONDocument))
    [document] = raw_records.find({}, {"_id": field == "_id", field: 1})
    return document.raw[4]


async def test_every_field_has_the_type_of_the_format(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def greet(name: str) -> None: ...

    before = datetime.now(UTC) - timedelta(seconds=1)
    scheduled = await greet.schedule("Ada")
    record = raw.record()
    types = {
        "_id": TEXT,
        "jobName": TEXT,
        "type": TEXT,
        "priority": INT32,
        "nextRunAt": DATE,
        "partition": INT32,
        "params": DOCUMENT,
        "tries": INT32,
        "createdAt": DATE,
    }
    assert {field: bson_type(raw.records, field) for field in record} == types
    assert str(uuid.UUID(record["_id"])) == record["_id"] == scheduled.id
    assert (record["jobName"], record["type"], record["priority"]) == ("greet", "event", 100)
    assert (record["params"], record["tries"]) == ({"name": "Ada"}, 0)
    assert before < record["nextRunAt"] == record["createdAt"] < datetime.now(UTC) + timedelta(seconds=1)
    assert 0 <= record["partition"] < 16


async def test_the_outcome_names_the_new_record(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def greet() -> None: ...

    scheduled = await greet.schedule()
    assert scheduled == Scheduled(id=raw.record()["_id"], status=ScheduleStatus.CREATED)
    assert scheduled.created


async def test_a_record_has_neither_lock_nor_end_nor_an_identifier_that_was_not_given(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def greet() -> None: ...

    await greet.schedule()
    assert not (LOCK_FIELDS | {"uniqueIdentifier", "lastRunAt"}) & raw.record().keys()
    await greet.options(unique="once").schedule()
    assert raw.record(uniqueIdentifier="once").keys() & LOCK_FIELDS == set()


@pytest.mark.parametrize(
    ("priority", "stored_type"),
    [(0, INT32), (-5, INT32), (2.5, DOUBLE), (0.0, DOUBLE), (2**40, INT64), (1e300, DOUBLE)],
)
async def test_a_priority_is_kept_as_given(app: Gangline, raw: Raw, priority: float, stored_type: int) -> None:
    """Case 60."""

    @app.event()
    async def greet() -> None: ...

    await greet.options(priority=priority).schedule()
    assert raw.record()["priority"] == priority
    assert bson_type(raw.records, "priority") == stored_type


async def test_the_priority_of_the_job_is_that_of_its_records_unless_another_is_given(app: Gangline, raw: Raw) -> None:
    @app.event(priority=0)
    async def greet() -> None: ...

    await greet.schedule()
    assert raw.record()["priority"] == 0
    for expected, scheduled in (
        (0, await app.schedule_by_name("greet")),
        (7, await app.schedule_by_name("greet", priority=7)),
        (100, await app.schedule_by_name("not_of_this_program")),
    ):
        assert raw.record(_id=scheduled.id)["priority"] == expected


@pytest.mark.parametrize("params", [0, "", [], None, False, 0.0, {}, [None], {"a": {}}, b""], ids=repr)
async def test_params_of_another_program_are_kept_as_given(app: Gangline, raw: Raw, params: Any) -> None:
    """Case 60."""
    await app.schedule_by_name("other", params)
    stored = raw.record()["params"]
    assert (stored, type(stored)) == (params, type(params))


async def test_keys_with_a_dot_or_a_dollar_come_back_unchanged(app: Gangline, raw: Raw) -> None:
    """Case 34."""
    params = {"a.b": {"$set": 1, "$ref": "x"}, "$inc": [{"c.d": None}], "": 1}
    await app.schedule_by_name("other", params)
    raw_records = raw.records.with_options(CodecOptions(document_class=RawBSONDocument))
    [record] = raw_records.find()
    assert BSON.encode({"params": record["params"]}) == BSON.encode({"params": params})


async def test_a_large_number_in_params_is_a_long(app: Gangline, raw: Raw) -> None:
    await app.schedule_by_name("other", {"small": 1, "large": 2**53})
    params = raw.record()["params"]
    assert isinstance(params["large"], Int64)
    assert not isinstance(params["small"], Int64)


async def test_ids_follow_the_order_of_scheduling(app: Gangline) -> None:
    """Case 30: records of one priority and instant run in the order of their ids."""

    @app.event()
    async def greet(number: int) -> None: ...

    outcomes = await app.schedule_many(greet.call(number) for number in range(500))
    ids = [outcome.id or "" for outcome in outcomes]
    assert ids == sorted(set(ids))


async def test_what_was_scheduled_runs_with_its_params(app: Gangline) -> None:
    seen: list[tuple[str, int]] = []

    @app.event()
    async def greet(name: str, times: int = 2) -> None:
        seen.append((name, times))

    async with running(app):
        await greet.schedule(name="Ada")
        await app.schedule_by_name("greet", {"name": "Bo", "times": 0})
        await eventually(lambda: len(seen) == 2)
    assert sorted(seen) == [("Ada", 2), ("Bo", 0)]


async def test_a_waiting_worker_of_the_same_process_is_woken(app: Gangline) -> None:
    """With a poll interval beyond the test's patience only the wake-up leads to the job."""
    seen: list[int] = []

    @app.event()
    async def note(number: int) -> None:
        seen.append(number)

    async def ran(number: int) -> None:
        await eventually(lambda: number in seen)

    async with running(app, poll_interval="10m"):
        for number in range(1, 6):
            await note.schedule(number)
            await ran(number)
            await app.schedule_many([note.call(-number)])
            await ran(-number)
