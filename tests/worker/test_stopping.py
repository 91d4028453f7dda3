"""Stopping a worker: what may end ends, the rest is handed back, and nothing is waited for for ever."""

import asyncio
import sys
import threading
import time
from subprocess import DEVNULL, PIPE

import pytest

from gangline import Context, Gangline
from support.apps import DEADLINE, Raw, eventually, failing, running, soon
from support.programs import ENVIRONMENT


@pytest.fixture
def _short_unwinding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less long for handlers that do not listen."""
    monkeypatch.setattr("gangline.worker.executor.UNWIND_SECONDS", 0.2)
    monkeypatch.setattr("gangline.worker.executions.UNWIND_SECONDS", 0.5)


async def test_a_job_that_ends_within_the_grace_time_finishes(app: Gangline, raw: Raw) -> None:
    """Case 51."""
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def work() -> str:
        started.set()
        await release.wait()
        return "done"

    async with running(app, grace="10s") as worker:
        await work.schedule()
        await soon(started.wait())
        stop = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        release.set()
        await soon(stop)
    assert [entry["result"] for entry in raw.entries()] == ["done"]
    assert worker.handed_back == 0


async def test_the_lease_lives_on_during_the_grace_time(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event(lease="300ms")
    async def work() -> None:
        started.set()
        await release.wait()

    async with running(app, grace="10s") as worker:
        await work.schedule()
        await soon(started.wait())
        stop = asyncio.create_task(worker.stop())
        first = raw.record()["lockedUntil"]
        await eventually(lambda: (raw.record()["lockedUntil"] - first).total_seconds() > 0.6)
        release.set()
        await soon(stop)
    assert raw.statuses() == ["success"]


async def test_no_job_is_claimed_once_the_worker_stops(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await release.wait()

    @app.event()
    async def witness() -> None: ...

    async with running(app, grace="10s") as worker:
        await work.schedule()
        await soon(started.wait())
        stop = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        await witness.schedule()
        release.set()
        await soon(stop)
    assert raw.record()["jobName"] == "witness"
    assert raw.record()["tries"] == 0


async def test_what_does_not_end_is_handed_back_at_once_and_no_try_is_charged(app: Gangline, raw: Raw) -> None:
    """Case 51."""
    started: list[int] = []
    cancelled: list[int] = []

    @app.event(max_tries=1, lease="1h")
    async def work(ctx: Context) -> None:
        started.append(ctx.tries)
        if len(started) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(ctx.tries)
                assert ctx.should_end

    async with running(app, grace="10ms") as worker:
        await work.schedule()
        await eventually(lambda: started)
        assert worker.running_executions
    record = raw.record()
    assert cancelled == [1]
    assert worker.handed_back == 1
    assert record["tries"] == 0
    assert {"lockId", "lockedUntil", "lockedBy", "claimWasStale"}.isdisjoint(record)
    async with running(app):
        await eventually(raw.finished)
    assert started == [1, 1]
    assert [(entry["status"], entry.get("errorType")) for entry in raw.entries()] == [
        ("error", "HandedBack"),
        ("success", None),
    ]


@pytest.mark.parametrize("timeout", [None, "1h"])
async def test_a_handler_that_still_ends_well_when_it_is_cancelled_has_succeeded(
    app: Gangline, raw: Raw, timeout: str | None
) -> None:
    started = asyncio.Event()

    @app.event(timeout=timeout)
    async def tidy() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "tidied up"
        return "never"

    async with running(app, grace=0):
        await tidy.schedule()
        await soon(started.wait())
    assert [entry["result"] for entry in raw.entries()] == ["tidied up"]
    assert raw.empty()


@pytest.mark.usefixtures("_short_unwinding")
@pytest.mark.parametrize("hurried", [False, True], ids=["grace", "hurry"])
@pytest.mark.parametrize("timeout", [None, "1h"])
async def test_a_handler_that_swallows_its_cancellation_is_handed_back_over_its_head(
    app: Gangline, raw: Raw, timeout: str | None, hurried: bool
) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    ends: list[bool] = []

    @app.event(timeout=timeout)
    async def deaf(ctx: Context) -> str:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ends.append(ctx.should_end)
        return "too late"

    try:
        async with running(app, grace=0) as worker:
            await deaf.schedule()
            await soon(started.wait())
            if hurried:
                worker.hurry()
        assert worker.handed_back == 1
        handed_back = raw.record()
        assert handed_back["tries"] == 0
        assert "lockId" not in handed_back
    finally:
        release.set()
    await eventually(lambda: ends)
    assert ends == [True]
    assert raw.record() == handed_back
    assert [entry["errorType"] for entry in raw.entries()] == ["HandedBack"]


async def test_a_thread_that_looks_at_should_end_still_ends_well(app: Gangline, raw: Raw) -> None:
    started = threading.Event()

    @app.event()
    def attentive(ctx: Context) -> str:
        started.set()
        ends = time.monotonic() + DEADLINE
        while not ctx.should_end and time.monotonic() < ends:
            time.sleep(0.005)
        return "wrapped up"

    async with running(app, grace=0):
        await attentive.schedule()
        await eventually(started.is_set)
    assert [entry["result"] for entry in raw.entries()] == ["wrapped up"]
    assert raw.empty()


@pytest.mark.usefixtures("_short_unwinding")
async def test_a_thread_that_does_not_end_is_handed_back(app: Gangline, raw: Raw) -> None:
    started, release = threading.Event(), threading.Event()

    @app.event()
    def deaf() -> None:
        started.set()
        release.wait(DEADLINE)

    try:
        async with running(app, grace=0) as worker:
            await deaf.schedule()
            await eventually(started.is_set)
        assert worker.handed_back == 1
        assert raw.record()["tries"] == 0
    finally:
        release.set()


async def test_hurry_ends_the_grace_time(app: Gangline, raw: Raw) -> None:
    started = asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(app, grace="1h") as worker:
        await work.schedule()
        await soon(started.wait())
        stop = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        assert not stop.done()
        worker.hurry()
        await soon(stop)
    assert worker.handed_back == 1
    assert raw.record()["tries"] == 0


async def test_stop_waits_for_every_settled_write(app: Gangline, raw: Raw) -> None:
    """Case 70: the write of the history is still under way, and then that of the record."""
    started: list[int] = []
    release = asyncio.Event()

    @app.event()
    async def work(number: int) -> None:
        started.append(number)
        await release.wait()

    async with running(app, grace="1h") as worker:
        await app.schedule_many([work.call(number) for number in range(20)])
        await eventually(lambda: len(started) == 20)
        with failing(raw, "insert", "delete", mode={"times": 4}, blockConnection=True, blockTimeMS=200) as point:
            release.set()
            await point.met()
            await soon(worker.stop())
    assert raw.empty()
    assert raw.statuses() == ["success"] * 20


async def test_stop_may_be_asked_for_more_than_once(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await release.wait()

    async with running(app) as worker:
        await work.schedule()
        await soon(started.wait())
        stops = [asyncio.create_task(worker.stop()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(stop.done() for stop in stops)
        release.set()
        await soon(asyncio.gather(*stops))
        assert raw.empty()
        await soon(worker.stop())


async def test_who_gives_up_waiting_for_a_stop_does_not_undo_it(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await release.wait()

    async with running(app) as worker:
        await work.schedule()
        await soon(started.wait())
        impatient = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        release.set()
        await soon(worker.stop())
    assert raw.statuses() == ["success"]


async def test_a_worker_stopped_before_its_start_runs_nothing(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def work() -> None: ...

    await work.schedule()
    worker = app.worker()
    await worker.stop()
    await soon(worker.run())
    await soon(worker.stop())
    assert raw.record()["tries"] == 0
    assert worker.running_executions == ()


async def test_cancelling_run_stops_in_order(app: Gangline, raw: Raw) -> None:
    started = asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = app.worker(grace=0, poll_interval="30ms")
    run = asyncio.create_task(worker.run())
    await work.schedule()
    await soon(started.wait())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(run)
    assert worker.handed_back == 1
    assert raw.record()["tries"] == 0


@pytest.mark.usefixtures("_short_unwinding")
async def test_stop_ends_although_the_server_is_away(impatient_app: Gangline, raw: Raw) -> None:
    """The outcome cannot be written: the record frees itself when its lease ends, as long as that is waited for."""
    started, release = asyncio.Event(), asyncio.Event()

    @impatient_app.event(lease="300ms")
    async def work() -> None:
        started.set()
        await release.wait()

    async with running(impatient_app, grace=0) as worker:
        await work.schedule()
        await soon(started.wait())
        with failing(raw, "insert", "delete", "update", closeConnection=True):
            release.set()
            await soon(worker.stop())
    assert raw.record()["tries"] == 1


async def test_a_program_that_ends_without_stopping_its_worker_ends(uri: str) -> None:
    command = (sys.executable, "-m", "support.programs.forgetful", uri)
    process = await asyncio.create_subprocess_exec(*command, env=ENVIRONMENT, stdout=PIPE, stderr=DEVNULL)
    try:
        out, _ = await soon(process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
    assert out == b"running\n"
