"""The reconciler: when it repairs, what it tells, and what running workers make of records outside their partitions."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from gangline import Gangline
from gangline.store.reconcile import BATCH, Misplaced
from gangline.worker.reconciler import INTERVAL_SECONDS, PAUSE_SECONDS, Reconciler
from support.apps import Document, Raw, eventually, named, running, soon
from support.queues import node_record
from support.records import until

PARTITIONS = 4
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
SECOND = timedelta(seconds=1)


@dataclass
class FakeRepairs:
    """A queue with some records outside the range."""

    outside: list[Misplaced] = field(default_factory=list)
    other_workers: Sequence[str] = ()
    failing: list[PyMongoError] = field(default_factory=list)
    names_error: PyMongoError | None = None
    instant: datetime = NOW
    looks: int = 0
    repaired: list[Misplaced] = field(default_factory=list)

    async def find_misplaced(self) -> Sequence[Misplaced]:
        self.looks += 1
        if self.failing:
            raise self.failing.pop()
        return self.outside[:BATCH]

    async def repair(self, misplaced: Sequence[Misplaced]) -> int:
        count = len([item for item in misplaced if item in self.outside])
        self.outside = [item for item in self.outside if item not in misplaced]
        self.repaired += misplaced
        return count

    async def others(self) -> Sequence[str]:
        if self.names_error is not None:
            raise self.names_error
        return self.other_workers

    def now(self) -> datetime:
        return self.instant


def misplaced(number: int = 0, partition: Any = 9, created_at: datetime | None = None) -> Misplaced:
    return Misplaced(f"job {number}", partition, created_at)


def reconciler_of(repairs: FakeRepairs) -> Reconciler:
    return Reconciler(repairs, PARTITIONS, Random(3))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gangline.reconciler")
    return caplog


def events(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["event"] for record in told.records if record.name == "gangline.reconciler"]


def warnings(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in told.records if record.levelno >= logging.WARNING]


# When


async def test_in_order_it_looks_again_in_five_minutes_give_or_take_a_tenth() -> None:
    reconciler = reconciler_of(FakeRepairs())
    pauses = [await reconciler.run_once() for _ in range(50)]
    assert INTERVAL_SECONDS == 300
    assert all(270 <= pause <= 330 for pause in pauses)
    assert len(set(pauses)) == 50, "workers that were started together drift apart"


async def test_after_a_full_batch_it_pauses_shortly_and_after_the_last_one_for_long() -> None:
    repairs = FakeRepairs([misplaced(number) for number in range(2 * BATCH + 1)])
    reconciler = reconciler_of(repairs)
    assert [await reconciler.run_once() for _ in range(2)] == [PAUSE_SECONDS] * 2
    assert await reconciler.run_once() >= 270
    assert repairs.outside == []


async def test_batches_follow_one_another_until_the_queue_is_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    over = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if seconds > PAUSE_SECONDS:
            over.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("gangline.worker.reconciler.asyncio.sleep", sleep)
    repairs = FakeRepairs([misplaced(number) for number in range(3 * BATCH)])
    task = asyncio.create_task(reconciler_of(repairs).run())
    await soon(over.wait())
    await ended(task)
    assert pauses[:-1] == [PAUSE_SECONDS] * 3
    assert repairs.looks == 4


async def test_a_failure_is_told_and_the_next_pass_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    twice = asyncio.Event()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            twice.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("gangline.worker.reconciler.asyncio.sleep", sleep)
    repairs = FakeRepairs([misplaced()], failing=[AutoReconnect("away")])
    task = asyncio.create_task(reconciler_of(repairs).run())
    await soon(twice.wait())
    await ended(task)
    assert events(told) == ["reconcile_failed", "reconciled"]
    assert repairs.outside == []


async def test_cancelling_ends_it_while_it_waits() -> None:
    repairs = FakeRepairs()
    task = asyncio.create_task(reconciler_of(repairs).run())
    await eventually(lambda: repairs.looks == 1)
    await ended(task)


async def ended(task: "asyncio.Task[None]") -> None:
    """Cancel `task` and see it end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)


# What it tells


async def test_it_tells_how_many_it_repaired(told: pytest.LogCaptureFixture) -> None:
    await reconciler_of(FakeRepairs([misplaced(1), misplaced(2)])).run_once()
    assert [record.getMessage() for record in told.records] == ["2 records got a partition below 4"]


async def test_what_a_rival_repaired_is_not_told(told: pytest.LogCaptureFixture) -> None:
    await reconciler_of(FakeRepairs()).repair([misplaced()])
    assert told.records == []


async def fresh_outside(repairs: FakeRepairs, *items: Misplaced) -> Reconciler:
    """A reconciler that found the queue in order, and then these."""
    reconciler = reconciler_of(repairs)
    await reconciler.run_once()
    await reconciler.repair(items)
    return reconciler


async def test_a_record_that_was_written_outside_after_the_queue_was_in_order_is_warned_of_once(
    told: pytest.LogCaptureFixture,
) -> None:
    repairs = FakeRepairs(other_workers=["web-1:7:abc with 16", "web-2:9:def with 32"])
    reconciler = await fresh_outside(repairs, misplaced(partition=11, created_at=LATER))
    await reconciler.repair([misplaced(partition=12, created_at=LATER)])
    [warning] = warnings(told)
    assert "4 partitions" in warning
    assert "partition 11" in warning
    assert "web-1:7:abc with 16, web-2:9:def with 32" in warning


async def test_when_no_worker_differs_the_warning_names_who_else_it_may_be(told: pytest.LogCaptureFixture) -> None:
    await fresh_outside(FakeRepairs(), misplaced(created_at=LATER))
    [warning] = warnings(told)
    assert "a producer or a Node worker" in warning


async def test_the_warning_does_not_need_the_names(told: pytest.LogCaptureFixture) -> None:
    """Nor is a right to read them needed to go on claiming: the scheduler repairs too."""
    await fresh_outside(FakeRepairs(names_error=OperationFailure("not allowed", 13)), misplaced(created_at=LATER))
    [warning] = warnings(told)
    assert "partition 9" in warning


@pytest.mark.parametrize(
    "item",
    [
        misplaced(created_at=NOW - SECOND),
        misplaced(created_at=None),
        misplaced(partition=None, created_at=LATER),
        misplaced(partition=-1, created_at=LATER),
        misplaced(partition=1.5, created_at=LATER),
        misplaced(partition="9", created_at=LATER),
    ],
    ids=repr,
)
async def test_what_tells_nothing_of_a_larger_queue_is_not_warned_of(
    told: pytest.LogCaptureFixture, item: Misplaced
) -> None:
    """Old ones, such as a retry that was locked during a roll-out, and those of programs that know no partitions."""
    await fresh_outside(FakeRepairs(), item)
    assert warnings(told) == []


async def test_what_was_found_before_the_queue_was_in_order_is_not_warned_of(told: pytest.LogCaptureFixture) -> None:
    full = [misplaced(number, created_at=LATER) for number in range(BATCH)]
    reconciler = reconciler_of(FakeRepairs(full))
    await reconciler.run_once()
    await reconciler.repair([misplaced(created_at=LATER)])
    assert warnings(told) == []


# Running workers


@pytest.mark.parametrize(
    "place", [{}, {"partition": None}, {"partition": -3}, {"partition": 99}, {"partition": "1"}, {"partition": 0.5}]
)
async def test_a_record_outside_runs_within_a_poll_interval_of_an_idle_worker(
    app: Gangline, raw: Raw, place: Document
) -> None:
    """Case 71. The five minutes of the background pass are longer than the test may take."""

    @app.event()
    async def work() -> None: ...

    async with running(app):
        await work.schedule()
        await eventually(lambda: raw.statuses() == ["success"])
        record = node_record("work")
        del record["partition"]
        raw.records.insert_one({**record, **place})
        await eventually(raw.finished)
    assert raw.statuses() == ["success"] * 2


async def test_records_of_names_that_the_worker_does_not_serve_are_repaired_too(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def work() -> None: ...

    foreign = [node_record("foreign", partition=partition) for partition in (None, -1, 99, "a", 2.5)]
    raw.records.insert_many(foreign)
    async with running(app):
        await eventually(lambda: raw.records.count_documents({"partition": {"$in": [0, 1, 2, 3]}}) == 5)


def warned(told: pytest.LogCaptureFixture) -> str:
    [warning] = [message for message in warnings(told) if "another program" in message]
    return warning


async def test_a_worker_with_more_partitions_is_named_in_a_warning(
    app: Gangline, raw: Raw, uri: str, told: pytest.LogCaptureFixture
) -> None:
    async def other() -> None: ...

    async def work() -> None: ...

    app.event()(work)
    async with Gangline(named(uri), partitions=16) as larger:
        larger.event()(other)
        async with running(app), running(larger) as culprit:
            workers = raw.records.database["gangline.workers"]
            await eventually(lambda: workers.count_documents({}) == 2)

            async def told_of() -> bool:
                await larger.schedule_by_name("work")
                return "partitions_differ" in events(told)

            await until(told_of)
            await eventually(raw.finished)
    warning = warned(told)
    assert f"{culprit.name} with 16" in warning
    assert "the 4 partitions" in warning


async def test_a_node_program_with_more_partitions_is_warned_of(
    app: Gangline, raw: Raw, told: pytest.LogCaptureFixture
) -> None:
    """Its records do not tell when they were made."""

    @app.event()
    async def work() -> None: ...

    async with running(app):

        async def told_of() -> bool:
            raw.records.insert_one(node_record("work", partition=9, nextRunAt=datetime.now(UTC)))
            return "partitions_differ" in events(told)

        await until(told_of)
        await eventually(raw.finished)
    assert "a Node worker" in warned(told)


async def test_a_roll_out_that_makes_the_queue_smaller_is_repaired_without_a_warning(
    app: Gangline, raw: Raw, uri: str, told: pytest.LogCaptureFixture
) -> None:
    async with Gangline(named(uri), partitions=64) as larger:
        for _ in range(20):
            await larger.schedule_by_name("work")

    @app.event()
    async def work() -> None: ...

    async with running(app):
        await eventually(raw.finished)
    assert raw.statuses() == ["success"] * 20
    assert "reconciled" in events(told)
    assert warnings(told) == []
