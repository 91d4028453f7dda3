"""Recurrent jobs of running workers: one run per slot, a cadence that nothing moves."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from gangline import Context, Dismiss, Gangline, Retry
from support.apps import AT_ONCE, Document, Raw, eventually, named, running, soon

HOUR = timedelta(hours=1)


def on_cadence(record: Document, interval: timedelta) -> bool:
    """Whether the record's next instant is a whole number of intervals after its anchor."""
    return bool((record["nextRunAt"] - record["schedule"]["anchor"]) % interval == timedelta(0))


async def moved(raw: Raw, since: Document) -> Document:
    """The one record, once an execution moved it."""
    return await eventually(lambda: raw.records.find_one({"lastExecutionId": {"$ne": since.get("lastExecutionId")}}))


async def test_four_workers_run_each_slot_once(uri: str, raw: Raw) -> None:
    """Case 17."""
    slots: list[datetime] = []
    enough = asyncio.Event()

    async def tick(ctx: Context) -> None:
        slots.append(ctx.scheduled_for)
        if len(slots) >= 8:
            enough.set()

    async with AsyncExitStack() as stack:
        for _ in range(4):
            app = await stack.enter_async_context(Gangline(named(uri), partitions=4))
            app.recurrent(name="tick", every="100ms")(tick)
            await stack.enter_async_context(running(app, poll_interval="10ms"))
        await soon(enough.wait())
    assert len(slots) == len(set(slots))
    assert all((later - earlier) % timedelta(milliseconds=100) == timedelta(0) for earlier, later in pairwise(slots))
    raw.record(jobName="tick")


async def test_a_run_longer_than_its_interval_repeats_no_slot_and_skips_not_the_next(app: Gangline, raw: Raw) -> None:
    """Case 18."""
    runs: list[Context] = []
    enough = asyncio.Event()
    interval = timedelta(milliseconds=200)

    @app.recurrent(every=interval, run_at_start=True)
    async def tick(ctx: Context) -> None:
        runs.append(ctx)
        if len(runs) == 1:
            await asyncio.sleep(0.5)
        if len(runs) == 4:
            enough.set()

    async with running(app):
        await soon(enough.wait())
    for earlier, later in pairwise(runs):
        passed = (earlier.record.claimed_at - earlier.scheduled_for) // interval
        assert later.scheduled_for == earlier.scheduled_for + (passed + 1) * interval


@pytest.mark.parametrize("rule", [{"every": "1h"}, {"cron": "0 3 * * *"}], ids=["every", "cron"])
async def test_the_first_registration_runs_nothing(app: Gangline, raw: Raw, rule: dict[str, str]) -> None:
    """Case 19."""

    async def tick() -> None: ...

    @app.event()
    async def witness() -> None: ...

    await asyncio.to_thread(lambda: app.recurrent(name="tick", **rule)(tick))  # type: ignore[arg-type]  # reads time zones
    async with running(app):
        await witness.schedule()
        await eventually(lambda: raw.statuses(jobName="witness"))
    record = raw.record(jobName="tick")
    assert raw.statuses(jobName="tick") == []
    assert record["nextRunAt"] > datetime.now(UTC)
    assert record["tries"] == 0


async def test_run_at_start_runs_at_the_first_registration_only(app: Gangline, raw: Raw) -> None:
    runs: list[int] = []

    @app.recurrent(every="1h", run_at_start=True)
    async def tick(ctx: Context) -> None:
        runs.append(ctx.tries)

    @app.event()
    async def witness() -> None: ...

    for starts in (1, 2):
        async with running(app):
            await witness.schedule()
            await eventually(lambda starts=starts: raw.history.count_documents({}) == starts + 1)  # type: ignore[misc]
    assert runs == [1]
    assert on_cadence(raw.record(), HOUR)


async def test_missed_ticks_cost_one_run_and_the_cadence_stays(app: Gangline, raw: Raw) -> None:
    """Case 20: all workers were down for ten ticks."""
    slots: list[datetime] = []

    @app.recurrent(every="1h")
    async def tick(ctx: Context) -> None:
        slots.append(ctx.scheduled_for)

    worker = app.worker()
    await worker.start()
    await worker.stop()
    registered = raw.record()
    long_ago = registered["nextRunAt"] - 10.5 * HOUR
    raw.records.update_one({}, {"$set": {"nextRunAt": long_ago, "schedule.anchor": long_ago}})
    async with running(app):
        record = await moved(raw, registered)
        await eventually(lambda: raw.statuses() == ["success"])
    assert slots == [long_ago]
    assert on_cadence(record, HOUR)
    assert datetime.now(UTC) < record["nextRunAt"] <= datetime.now(UTC) + HOUR
    assert raw.statuses() == ["success"]


async def test_a_changed_rule_is_followed_at_the_next_start(uri: str, raw: Raw) -> None:
    async def tick() -> None: ...

    async def after_a_start_with(every: str) -> Document:
        async with Gangline(named(uri)) as app:
            app.recurrent(name="tick", every=every)(tick)
            worker = app.worker()
            await worker.start()
            await worker.stop()
        return raw.record()

    first = await after_a_start_with("1h")
    assert first["nextRunAt"] - first["schedule"]["anchor"] == HOUR
    changed = await after_a_start_with("2h")
    assert changed["_id"] == first["_id"]
    assert changed["nextRunAt"] - changed["schedule"]["anchor"] == 2 * HOUR
    assert await after_a_start_with("2h") == changed


async def test_a_failure_keeps_the_cadence_and_a_success_clears_it(app: Gangline, raw: Raw) -> None:
    fail = True

    @app.recurrent(every="1h", run_at_start=True, retry=AT_ONCE)
    async def tick() -> None:
        if fail:
            raise ValueError("not today")

    async with running(app):
        failed = await moved(raw, {})
        assert on_cadence(failed, HOUR)
        assert failed["nextRunAt"] > datetime.now(UTC)
        assert (failed["tries"], failed["lastError"]["message"]) == (1, "not today")
        fail = False
        raw.records.update_one({}, {"$set": {"nextRunAt": failed["schedule"]["anchor"]}})
        succeeded = await moved(raw, failed)
    assert succeeded["tries"] == 0
    assert "lastError" not in succeeded
    assert on_cadence(succeeded, HOUR)
    assert raw.statuses() == ["error", "success"]


async def test_a_recurrent_job_never_dies(app: Gangline, raw: Raw) -> None:
    enough = asyncio.Event()

    @app.recurrent(every="1h", run_at_start=True)
    async def tick(ctx: Context) -> None:
        assert ctx.max_tries is None
        assert not ctx.is_last_try
        if ctx.tries == 13:
            enough.set()
        raise Retry(in_=0)

    async with running(app):
        await soon(enough.wait())
        await eventually(lambda: raw.records.find_one({"lockId": None}))
    assert "maxTriesReachedAt" not in raw.record()


async def test_a_dismissed_run_waits_for_the_next_tick(app: Gangline, raw: Raw) -> None:
    @app.recurrent(every="1h", run_at_start=True)
    async def tick() -> None:
        raise Dismiss("nothing to do")

    async with running(app):
        record = await moved(raw, {})
    assert on_cadence(record, HOUR)
    assert [entry["dismissed"] for entry in raw.entries()] == ["nothing to do"]


@pytest.mark.parametrize("error", [RuntimeError("no calendar"), SystemExit("no calendar")], ids=["error", "exit"])
@pytest.mark.parametrize("fails", [False, True], ids=["after a success", "after a failure"])
async def test_a_next_run_that_raises_is_told_and_tried_again(
    app: Gangline, raw: Raw, fails: bool, error: BaseException
) -> None:
    """Case 69."""
    runs: list[int] = []
    broken = False

    def rule(after: datetime) -> datetime:
        if broken:
            raise error
        return after + HOUR

    @app.recurrent(next_run=rule, run_at_start=True, retry=AT_ONCE)
    async def tick(ctx: Context) -> None:
        nonlocal broken
        runs.append(ctx.tries)
        broken = len(runs) < 3
        if fails and broken:
            raise ValueError("the run itself")

    async with running(app):
        await eventually(lambda: raw.statuses() == ["error", "error", "success"])
        record = await eventually(lambda: raw.records.find_one({"lockId": None, "tries": 0}))
    assert runs == [1, 2, 3]
    assert record["nextRunAt"] > datetime.now(UTC) + 0.9 * HOUR
    assert "lastError" not in record
    assert "no calendar" in raw.entries()[0]["errorMessage"]


async def test_a_recurrent_job_that_was_an_event_job_for_a_while_runs_again(uri: str, raw: Raw) -> None:
    """Case 72, the other way round and back: a roll-out that was undone must not have ended the job for ever."""

    async def tick() -> None: ...

    async with Gangline(named(uri)) as app:
        app.recurrent(name="tick", every="1h", run_at_start=True)(tick)
        async with running(app):
            await moved(raw, {})
    raw.records.update_one({}, {"$set": {"nextRunAt": datetime(2020, 1, 1, tzinfo=UTC)}})
    async with Gangline(named(uri)) as app:
        app.event(name="tick")(tick)
        async with running(app):
            await eventually(lambda: raw.records.find_one({"maxTriesReachedAt": {"$ne": None}}))
    async with Gangline(named(uri)) as app:
        app.recurrent(name="tick", every="1h")(tick)
        worker = app.worker()
        await worker.start()
        await worker.stop()
    record = raw.record()
    assert record["nextRunAt"] > datetime.now(UTC)
    assert {"maxTriesReachedAt", "status", "lastError", "lockId"}.isdisjoint(record)
