"""Outcomes that cannot be written at once: each is written once, and none is lost."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gangline import Context, Gangline, RecordTooLarge, RetryPolicy
from gangline.worker.lease_keeper import HeldLease
from support.apps import Raw, eventually, failing, running, soon

FAR = RetryPolicy.fixed("1h")
AWAY: dict[str, Any] = {"closeConnection": True}
ANSWER_LOST: dict[str, Any] = {"writeConcernError": {"code": 64, "errmsg": "took effect, but who knows"}}
REFUSED: dict[str, Any] = {"errorCode": 2}


@pytest.mark.parametrize("how", [AWAY, ANSWER_LOST], ids=["never sent", "answer lost"])
@pytest.mark.parametrize("command", ["insert", "delete", "update"])
async def test_an_outcome_is_written_once_when_the_server_is_away_for_a_moment(
    impatient_app: Gangline, raw: Raw, caplog: pytest.LogCaptureFixture, command: str, how: dict[str, Any]
) -> None:
    """Cases 43 and 55. A success is a deletion, a failure an update, and the history before both an insertion."""
    started, release = asyncio.Event(), asyncio.Event()
    stale: list[str] = []

    @impatient_app.event(retry=FAR, renew=False, on_stale=lambda params, ctx: stale.append(ctx.id))
    async def work() -> None:
        started.set()
        await release.wait()
        if command == "update":
            raise ValueError

    async with running(impatient_app, concurrency=1):
        await work.schedule()
        await soon(started.wait())
        with failing(raw, command, **how) as point:
            release.set()
            await eventually(lambda: "outcomes could not be written yet" in caplog.text)
            point.off()
            await eventually(lambda: raw.records.find_one({"lockId": {"$ne": None}}) is None)
    if command == "update":
        record = raw.record()
        assert record["tries"] == 1
        assert record["nextRunAt"] - raw.entries()[0]["endedAt"] == timedelta(hours=1)
        assert raw.statuses() == ["error"]
    else:
        assert raw.empty()
        assert raw.statuses() == ["success"]
    assert stale == []


async def test_handing_back_is_charged_once_although_its_answer_was_lost(impatient_app: Gangline, raw: Raw) -> None:
    started = asyncio.Event()

    @impatient_app.event(renew=False)
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(impatient_app, concurrency=1, grace=0) as worker:
        await work.schedule()
        await soon(started.wait())
        with failing(raw, "update", mode={"times": 2}, **ANSWER_LOST):
            await soon(worker.stop())
    assert raw.record()["tries"] == 0
    assert worker.handed_back == 1


async def test_a_job_whose_retry_cannot_be_written_is_seen_again_after_its_lease(
    app: Gangline, raw: Raw, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 55: the server refuses the write for good."""
    monkeypatch.setattr("gangline.worker.settling.MAX_REFUSALS", 1)
    started, release = asyncio.Event(), asyncio.Event()

    @app.event(lease="1s", renew=False)
    async def work(ctx: Context) -> None:
        started.set()
        await release.wait()
        if ctx.tries == 1:
            raise ValueError("the first try")

    async with running(app, concurrency=1):
        await work.schedule()
        await soon(started.wait())
        with failing(raw, "update", **REFUSED) as point:
            release.set()
            await eventually(lambda: "the server refuses the outcome of job" in caplog.text)
            point.off()
            await eventually(raw.finished)
    assert [(entry["tries"], entry["status"]) for entry in raw.entries()] == [(1, "error"), (2, "success")]


async def test_a_finished_job_is_not_run_again_when_only_its_deletion_was_lost(
    impatient_app: Gangline, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """Its history tells the one that takes the record over that it is done."""
    started, release = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @impatient_app.event(lease="1s", renew=False)
    async def work(ctx: Context) -> None:
        runs.append(ctx.tries)
        started.set()
        await release.wait()

    async with running(impatient_app, concurrency=1, grace=0) as worker:
        await work.schedule()
        await soon(started.wait())
        with failing(raw, "delete", **AWAY):
            release.set()
            await eventually(lambda: "outcomes could not be written yet" in caplog.text)
            await soon(worker.stop())
    assert raw.statuses() == ["success"]
    assert raw.record()["lockId"]
    async with running(impatient_app):
        await eventually(raw.finished)
    assert runs == [1]
    assert raw.statuses() == ["success"]


async def test_a_result_too_large_for_the_history_is_left_out_and_the_job_is_done(app: Gangline, raw: Raw) -> None:
    """Case 35."""

    @app.event()
    async def work() -> str:
        return "x" * 17_000_000

    async with running(app):
        await work.schedule()
        [entry] = await eventually(raw.finished)
    assert entry["status"] == "success"
    assert "result" not in entry
    assert "cannot be stored" in entry["errorMessage"]


async def test_every_execution_of_many_is_in_the_history_once(app: Gangline, raw: Raw) -> None:
    @app.event(max_tries=1)
    async def work(number: int) -> int:
        if number % 3 == 0:
            raise ValueError
        return number

    async with running(app, concurrency=32):
        await app.schedule_many([work.call(number) for number in range(600)])
        await eventually(lambda: raw.records.count_documents({"status": {"$ne": "maxTriesReached"}}) == 0)
    told = {entry["params"]["number"]: entry.get("result") for entry in raw.entries()}
    assert raw.history.count_documents({}) == 600
    assert told == {number: number if number % 3 else None for number in range(600)}
    assert raw.records.count_documents({}) == 200


async def test_a_lease_that_ends_while_its_outcome_is_written_changes_nothing(app: Gangline, raw: Raw) -> None:
    """The keeper's word, too late to stop the write, must not tell of a loss that the write does not find."""
    held: asyncio.Future[Context] = asyncio.get_running_loop().create_future()
    release = asyncio.Event()
    stale: list[str] = []

    @app.event(on_stale=lambda params, ctx: stale.append(ctx.id))
    async def work(ctx: Context) -> None:
        held.set_result(ctx)
        await release.wait()

    async with running(app):
        await work.schedule()
        ctx = await soon(held)
        assert isinstance(ctx.holder, HeldLease)
        with failing(raw, "insert", "delete", mode={"times": 1}, blockConnection=True, blockTimeMS=200) as point:
            release.set()
            await point.met()
            ctx.holder.lose()
            await eventually(raw.finished)
    assert raw.statuses() == ["success"]
    assert stale == []


async def test_a_record_as_large_as_may_be_still_runs_fails_and_dies(app: Gangline, raw: Raw) -> None:
    """Cases 28 and 35: what is accepted leaves room for what claims and settling write beside it."""

    @app.event(max_tries=1)
    async def work(payload: str) -> None:
        raise ValueError("x" * 10_000)

    size = 16 * 1024 * 1024
    while True:
        try:
            await work.schedule("x" * size)
        except RecordTooLarge:
            size -= 20 * 1024
        else:
            break
    async with running(app):
        await eventually(lambda: raw.records.find_one({"status": "maxTriesReached"}, {"_id": 1}))
    assert raw.statuses() == ["error"]
