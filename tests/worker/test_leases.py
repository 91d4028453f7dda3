"""Leases of a running worker: renewed, extended, ended, taken over."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline import Context, Gangline, LeaseLost
from support.apps import Document, Raw, eventually, failing, running, soon, take_over

LEASE = "1500ms"  # long enough for a machine that other work keeps busy


async def test_a_renewed_lease_lasts_as_long_as_its_job(app: Gangline, raw: Raw) -> None:
    """Case 1: two workers, a job of several lease lengths, one run."""
    started, release = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @app.event(lease=LEASE)
    async def long(ctx: Context) -> None:
        runs.append(ctx.tries)
        started.set()
        await release.wait()

    async with running(app), running(app):
        await long.schedule()
        await soon(started.wait())
        first = raw.record()["lockedUntil"]
        await eventually(lambda: raw.record()["lockedUntil"] - first > 2 * timedelta(milliseconds=400))
        release.set()
        await eventually(raw.finished)
    assert runs == [1]
    assert raw.statuses() == ["success"]


async def test_a_late_finisher_changes_nothing(app: Gangline, raw: Raw) -> None:
    """Case 1: without renewal a second run starts, in the slot that the first one's lease no longer holds."""
    releases = [asyncio.Event(), asyncio.Event()]
    started = [asyncio.Event(), asyncio.Event()]
    ended, stale = asyncio.Event(), []

    async def tell(params: Any, ctx: Context) -> None:
        stale.append(ctx.tries)

    @app.event(lease=LEASE, renew=False, on_stale=tell)
    async def overlong(ctx: Context) -> str:
        if ctx.tries == 2:
            await ctx.extend_lease("1h")
        started[ctx.tries - 1].set()
        await releases[ctx.tries - 1].wait()
        if ctx.tries == 1:
            assert ctx.lease_lost
            assert ctx.should_end
            ended.set()
        return f"run {ctx.tries}"

    async with running(app, concurrency=1):
        await overlong.schedule()
        await soon(started[1].wait())
        before = raw.record()
        releases[0].set()
        await soon(ended.wait())
        await eventually(lambda: stale)
        assert raw.record() == before
        releases[1].set()
        await eventually(raw.finished)
    assert stale == [1]
    entries = raw.entries()
    assert [(entry["status"], entry["tries"]) for entry in entries] == [("stale", 1), ("success", 2)]
    assert entries[1]["result"] == "run 2"
    assert "result" not in entries[0]


async def test_a_job_that_always_outlives_its_lease_dies(app: Gangline, raw: Raw) -> None:
    """Case 2."""
    runs: list[int] = []
    told: list[BaseException | None] = []

    @app.event(lease="1s", renew=False, max_tries=3, on_max_tries=lambda error, params, ctx: told.append(error))
    async def overlong(ctx: Context) -> None:
        runs.append(ctx.tries)
        await asyncio.Event().wait()

    async with running(app, grace=0):
        await overlong.schedule()
        dead = await eventually(lambda: raw.records.find_one({"status": "maxTriesReached"}))
        await eventually(lambda: told)
    assert runs == [1, 2, 3][: len(runs)]  # on a busy machine a claim may be too old to run at all
    assert dead["tries"] == 4
    assert told == [None]
    assert dead["lastError"]["type"] == "OutOfTries"
    assert raw.statuses() == ["stale"] * 3 + ["error"]


async def test_a_renewal_and_a_release_by_someone_else_leave_no_half_locked_record(app: Gangline, raw: Raw) -> None:
    """Case 6."""
    held: asyncio.Future[Context] = asyncio.get_running_loop().create_future()
    release = asyncio.Event()

    @app.event(lease=LEASE)
    async def hold(ctx: Context) -> None:
        held.set_result(ctx)
        await release.wait()

    async with running(app):
        await hold.schedule()
        ctx = await soon(held)
        away = {"$set": {"nextRunAt": datetime(2100, 1, 1, tzinfo=UTC)}, "$unset": {"lockId": "", "lockedUntil": ""}}
        raw.records.update_one({"lockId": ctx.lease.lock_id}, away)
        await eventually(lambda: ctx.lease_lost)
        assert {"lockId", "lockedUntil"}.isdisjoint(raw.record())
        release.set()
    assert {"lockId", "lockedUntil"}.isdisjoint(raw.record())
    assert raw.statuses() == ["stale"]


async def test_a_renewal_that_finds_its_lock_gone_tells_the_handler(app: Gangline, raw: Raw) -> None:
    held: asyncio.Future[Context] = asyncio.get_running_loop().create_future()
    release, stale = asyncio.Event(), asyncio.Event()

    async def tell(params: Any, ctx: Context) -> None:
        stale.set()

    @app.event(lease=LEASE, on_stale=tell)
    async def hold(ctx: Context) -> None:
        held.set_result(ctx)
        await release.wait()

    async with running(app):
        scheduled = await hold.schedule()
        ctx = await soon(held)
        assert not ctx.lease_lost
        assert scheduled.id is not None
        theirs = take_over(raw, scheduled.id)
        await soon(stale.wait())
        assert ctx.lease_lost
        assert ctx.should_end
        with pytest.raises(LeaseLost):
            await ctx.extend_lease("1m")
        release.set()
    assert raw.record() == theirs


def raise_at_once(params: Any, ctx: Context) -> None:
    raise RuntimeError("the hook itself")


async def test_a_stale_hook_that_raises_costs_no_slot(
    app: Gangline, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 68."""
    ran = asyncio.Event()

    @app.event(lease="200ms", renew=False, max_tries=1, on_stale=raise_at_once)
    async def overlong() -> None:
        await asyncio.Event().wait()

    @app.event()
    async def other() -> None:
        ran.set()

    async with running(app, concurrency=1, grace=0):
        await overlong.schedule()
        await eventually(lambda: raw.records.find_one({"status": "maxTriesReached"}))
        await other.schedule()
        await soon(ran.wait())
        await eventually(lambda: raw.statuses(jobName="other"))
    assert "on_stale of job overlong raised" in caplog.text


# Claims that are old when they arrive


async def test_no_job_runs_on_a_claim_that_ended_on_its_way(app: Gangline, raw: Raw) -> None:
    """Case 9: the answer that tells what was won takes longer than the lease."""
    runs: list[int] = []

    @app.event(lease=LEASE)
    async def work(ctx: Context) -> None:
        runs.append(ctx.tries)

    for _ in range(2):  # one alone would be claimed by a single command
        await work.schedule()
    raw.records.update_many({}, {"$set": {"partition": 0}})
    with failing(raw, "find", mode={"skip": 1}, blockConnection=True, blockTimeMS=2200) as reading_back:
        async with running(app, concurrency=2, claim="batch"):
            await reading_back.met()
            reading_back.off()
            await eventually(raw.finished)
    assert runs == [2, 2]
    assert sorted(raw.statuses()) == ["stale", "stale", "success", "success"]


async def test_no_job_runs_twice_with_short_leases_and_one_slot(app: Gangline, raw: Raw) -> None:
    """Case 9."""
    runs: list[int] = []

    @app.event(lease="3s")
    async def work(number: int) -> None:
        runs.append(number)
        await asyncio.sleep(0.1)

    async with running(app, concurrency=1), running(app, concurrency=1):
        await app.schedule_many([work.call(number) for number in range(12)])
        await eventually(raw.finished)
    assert sorted(runs) == list(range(12))
    assert raw.statuses() == ["success"] * 12


async def test_a_rescued_job_does_not_wait_behind_a_backlog(app: Gangline, raw: Raw) -> None:
    """Case 11: one slot, a backlog that never ends, and the rescued job has the lowest priority of all."""
    order: list[str] = []
    over = asyncio.Event()

    @app.event(priority=0)
    async def rescued(ctx: Context) -> None:
        assert ctx.was_stale
        order.append("rescued")
        over.set()

    @app.event()
    async def stream() -> None:
        order.append("new")
        if not over.is_set():
            await stream.schedule()

    lost = {"lockId": "of-a-dead-worker", "lockedUntil": datetime(2020, 1, 1, tzinfo=UTC)}
    scheduled = await rescued.schedule()
    raw.records.update_one({"_id": scheduled.id}, {"$set": lost})
    await app.schedule_many([stream.call() for _ in range(50)])
    async with running(app, concurrency=1, poll_interval="50ms"):
        await soon(over.wait())
    assert order.index("rescued") < 200


# Extending


async def test_an_extended_lease_lasts(app: Gangline, raw: Raw) -> None:
    extended, release = asyncio.Event(), asyncio.Event()

    @app.event(lease=LEASE, renew=False)
    async def work(ctx: Context) -> None:
        await ctx.extend_lease("1h")
        extended.set()
        await release.wait()

    async with running(app):
        await work.schedule()
        await soon(extended.wait())
        assert raw.record()["lockedUntil"] > datetime.now(UTC) + timedelta(minutes=30)
        release.set()
        await eventually(raw.finished)
    assert raw.statuses() == ["success"]


async def test_a_thread_extends_its_lease(app: Gangline, raw: Raw) -> None:
    extended, release = threading.Event(), threading.Event()

    @app.event(lease=LEASE, renew=False)
    def work(ctx: Context) -> None:
        ctx.extend_lease_sync("1h")
        extended.set()
        release.wait(10)

    async with running(app):
        await work.schedule()
        await eventually(extended.is_set)
        assert raw.record()["lockedUntil"] > datetime.now(UTC) + timedelta(minutes=30)
        release.set()
        await eventually(raw.finished)
    assert raw.statuses() == ["success"]


async def test_a_shorter_extension_shortens_nothing(app: Gangline, raw: Raw) -> None:
    extended, release = asyncio.Event(), asyncio.Event()

    @app.event(lease="1h", renew=False)
    async def work(ctx: Context) -> None:
        await ctx.extend_lease("1s")
        extended.set()
        await release.wait()

    async with running(app):
        await work.schedule()
        await soon(extended.wait())
        assert raw.record()["lockedUntil"] > datetime.now(UTC) + timedelta(minutes=30)
        release.set()


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_extending_a_lost_lease_is_refused(app: Gangline, raw: Raw, in_thread: bool) -> None:
    started, taken = threading.Event(), threading.Event()
    refused: list[str] = []

    def in_a_thread(ctx: Context) -> None:
        started.set()
        taken.wait(10)
        try:
            ctx.extend_lease_sync("1m")
        except LeaseLost as error:
            refused.append(str(error))
        assert ctx.lease_lost or refused

    async def on_the_loop(ctx: Context) -> None:
        started.set()
        await asyncio.to_thread(taken.wait, 10)
        try:
            await ctx.extend_lease("1m")
        except LeaseLost as error:
            refused.append(str(error))

    job = app.event(name="work", renew=False)(in_a_thread if in_thread else on_the_loop)
    async with running(app):
        scheduled = await job.schedule()
        await eventually(started.is_set)
        assert scheduled.id is not None
        theirs = take_over(raw, scheduled.id)
        taken.set()
        await eventually(lambda: refused)
        await eventually(lambda: raw.statuses() == ["stale"])
    assert raw.record() == theirs


async def test_a_handler_cancelled_while_it_extends_harms_no_other_lease(app: Gangline, raw: Raw) -> None:
    """The keeper must not fall over a future that nobody waits for any more."""
    started, release = asyncio.Event(), asyncio.Event()

    @app.event(renew=False, timeout="50ms", max_tries=1)
    async def impatient(ctx: Context) -> None:
        await ctx.extend_lease("1m")

    @app.event(lease=LEASE, max_tries=1)
    async def long() -> None:
        started.set()
        await release.wait()

    async with running(app):
        with failing(raw, "update", blockConnection=True, blockTimeMS=300):
            await impatient.schedule()
            await eventually(lambda: raw.statuses(jobName="impatient") == ["error"])
        await long.schedule()
        await soon(started.wait())
        first = raw.record(jobName="long")["lockedUntil"]
        await eventually(lambda: raw.record(jobName="long")["lockedUntil"] > first)
        release.set()
        await eventually(lambda: raw.statuses(jobName="long") == ["success"])


async def test_the_server_away_for_a_moment_costs_no_lease(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event(lease="2s")
    async def long() -> None:
        started.set()
        await release.wait()

    def renewed(first: Document) -> bool:
        return bool(raw.record()["lockedUntil"] > first["lockedUntil"])

    async with running(app):
        await long.schedule()
        await soon(started.wait())
        first = raw.record()
        with failing(raw, "update", mode={"times": 1}, closeConnection=True):
            await eventually(lambda: renewed(first))
        release.set()
        await eventually(raw.finished)
    assert raw.statuses() == ["success"]
