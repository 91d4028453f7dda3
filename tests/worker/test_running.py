"""What a running worker does with a job that works, and what the handler sees."""

import asyncio
import logging
import threading
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import pytest

from gangline import Context, Gangline
from support.apps import Raw, eventually, running, soon


async def test_an_event_job_runs_once_and_leaves_its_result_in_the_history(app: Gangline, raw: Raw) -> None:
    runs: list[str] = []

    @app.event()
    async def greet(name: str) -> dict[str, str]:
        runs.append(name)
        return {"said": f"hello {name}"}

    async with running(app):
        scheduled = await greet.schedule(name="Ada")
        [entry] = await eventually(raw.finished)
    assert runs == ["Ada"]
    assert (entry["jobId"], entry["status"], entry["result"]) == (scheduled.id, "success", {"said": "hello Ada"})
    assert (entry["params"], entry["tries"], entry["jobName"]) == ({"name": "Ada"}, 1, "greet")
    assert entry["_id"] == entry["executionId"]
    assert entry["startedAt"] <= entry["endedAt"] < entry["expiresAt"]


async def test_a_plain_function_runs_in_a_thread(app: Gangline, raw: Raw) -> None:
    threads: list[threading.Thread] = []

    @app.event()
    def work(number: int) -> int:
        threads.append(threading.current_thread())
        return number * 2

    async with running(app):
        await work.schedule(21)
        [entry] = await eventually(raw.finished)
    assert entry["result"] == 42
    assert threads[0] is not threading.main_thread()


async def test_a_plain_function_that_gives_a_coroutine_is_waited_for(app: Gangline, raw: Raw) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    @wraps(work)
    def wrapper() -> Any:
        return work()

    job = app.event()(wrapper)
    async with running(app):
        await job.schedule()
        [entry] = await eventually(raw.finished)
    assert entry["result"] == "done"


async def test_the_context_tells_the_record(app: Gangline, raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    seen: asyncio.Future[Context] = asyncio.get_running_loop().create_future()
    release = asyncio.Event()

    @app.event(name="tell", max_tries=3)
    async def tell(ctx: Context, value: int) -> None:
        ctx.logger.warning("noted %d", value, extra={"colour": "red"})
        seen.set_result(ctx)
        await release.wait()

    before = datetime.now(UTC).replace(microsecond=0)
    async with running(app):
        scheduled = await tell.options(priority=7, unique="only-one").schedule(5)
        ctx = await soon(seen)
        record = raw.record()
        release.set()
        assert (ctx.id, ctx.name, ctx.tries, ctx.max_tries) == (scheduled.id, "tell", 1, 3)
        assert (ctx.priority, ctx.unique, ctx.was_stale, ctx.is_last_try) == (7, "only-one", False, False)
        assert (ctx.lease.record_id, ctx.lease.lock_id) == (record["_id"], record["lockId"])
        assert ctx.scheduled_for == record["nextRunAt"] >= before
        assert ctx.record.params == {"value": 5}
        assert not ctx.lease_lost
        assert not ctx.should_end
        await eventually(lambda: raw.statuses() == ["success"])
    assert raw.entries()[0]["_id"] == ctx.lease.lock_id
    [line] = [line for line in caplog.records if line.name == "gangline.job"]
    identity = {"job_id": ctx.id, "job_name": "tell", "execution_id": ctx.lease.lock_id, "tries": 1, "colour": "red"}
    assert identity.items() <= line.__dict__.items()
    assert line.levelno == logging.WARNING


async def test_running_executions_are_listed_while_their_handlers_run(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def hold() -> None:
        started.set()
        await release.wait()

    async with running(app) as worker:
        scheduled = await hold.schedule()
        await soon(started.wait())
        [execution] = worker.running_executions
        assert (execution.job_id, execution.name, execution.tries) == (scheduled.id, "hold", 1)
        assert execution.lease.lock_id == raw.record()["lockId"]
        release.set()
        await eventually(lambda: not worker.running_executions)


async def test_without_history_nothing_is_written(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, keep_history=0):
        await work.schedule()
        await eventually(raw.empty)
    assert raw.entries() == []


async def test_a_result_that_cannot_be_stored_is_left_out_and_the_job_is_done(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def work() -> object:
        return object()

    @app.event(timeout="10s")
    async def work_in_time() -> object:
        return object()

    async with running(app):
        await work.schedule()
        await work_in_time.schedule()
        entries = await eventually(raw.finished)
    assert [entry["status"] for entry in entries] == ["success"] * 2
    assert all("cannot be stored" in entry["result"]["notKept"] for entry in entries)


async def test_a_succeeded_job_has_still_run_once_when_its_lease_would_have_ended(app: Gangline, raw: Raw) -> None:
    """Case 8."""
    runs: list[str] = []

    @app.event(lease="600ms")
    async def once() -> None:
        runs.append("once")

    @app.event()
    async def later() -> None:
        runs.append("later")

    async with running(app):
        await once.schedule()
        await later.options(run_in="900ms").schedule()
        await eventually(raw.empty)
    assert sorted(runs) == ["later", "once"]
    assert raw.statuses() == ["success"] * 2


async def test_records_of_unknown_names_wait(app: Gangline, raw: Raw) -> None:
    """Case 37."""

    @app.event()
    async def known() -> None: ...

    unknown = await app.schedule_by_name("fromTheNextRelease", {"x": 1})
    async with running(app):
        await known.schedule()
        await eventually(lambda: raw.statuses() == ["success"])
        assert (await app.insights.counts())[0].name == "fromTheNextRelease"
    record = raw.record()
    assert record["_id"] == unknown.id
    assert (record["tries"], record.get("lockId"), record.get("status")) == (0, None, None)
