"""Whatever an execution comes to once its lease was taken over changes nothing, and says so."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from gangline import Context, Dismiss, Gangline, Retry
from support.apps import Raw, eventually, running, soon, take_over


def raises(error: Exception) -> NoReturn:
    raise error


ENDS: dict[str, Callable[[], object]] = {
    "returns": lambda: 1,
    "dismisses": lambda: raises(Dismiss("no")),
    "asks for a retry": lambda: raises(Retry(in_=0)),
    "fails": lambda: raises(ValueError("no")),
}


@pytest.mark.parametrize("max_tries", [1, 5], ids=["last try", "more tries"])
@pytest.mark.parametrize("end", ENDS)
async def test_an_execution_that_was_taken_over_changes_nothing(
    app: Gangline, raw: Raw, end: str, max_tries: int
) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    stale: list[str] = []
    dead: list[str] = []

    @app.event(
        max_tries=max_tries,
        on_stale=lambda params, ctx: stale.append(ctx.id),
        on_max_tries=lambda error, params, ctx: dead.append(ctx.id),
    )
    async def work() -> object:
        started.set()
        await release.wait()
        return ENDS[end]()

    async with running(app):
        scheduled = await work.options(unique="mine").schedule()
        await soon(started.wait())
        assert scheduled.id is not None
        theirs = take_over(raw, scheduled.id)
        release.set()
        await eventually(lambda: stale)
    assert raw.record() == theirs
    assert raw.statuses() == ["stale"]
    assert stale == [scheduled.id]
    assert dead == []


async def test_a_timed_out_execution_that_was_taken_over_changes_nothing(app: Gangline, raw: Raw) -> None:
    started = asyncio.Event()
    stale: list[str] = []

    @app.event(timeout="300ms", on_stale=lambda params, ctx: stale.append(ctx.id))
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(app):
        scheduled = await work.schedule()
        await soon(started.wait())
        assert scheduled.id is not None
        theirs = take_over(raw, scheduled.id)
        await eventually(lambda: stale)
    assert raw.record() == theirs
    assert raw.statuses() == ["stale"]


async def test_a_stopping_worker_hands_back_nothing_that_was_taken_over(app: Gangline, raw: Raw) -> None:
    started = asyncio.Event()
    stale: list[str] = []

    @app.event(on_stale=lambda params, ctx: stale.append(ctx.id))
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(app, grace=0) as worker:
        scheduled = await work.schedule()
        await soon(started.wait())
        assert scheduled.id is not None
        theirs = take_over(raw, scheduled.id)
    assert raw.record() == theirs
    assert raw.statuses() == ["stale"]
    assert stale == [scheduled.id]
    assert worker.handed_back == 0


async def test_a_recurrent_execution_that_was_taken_over_moves_nothing(app: Gangline, raw: Raw) -> None:
    started, release, stale = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def tell(params: Any, ctx: Context) -> None:
        stale.set()

    @app.recurrent(every="1h", run_at_start=True, on_stale=tell)
    async def tick() -> None:
        started.set()
        await release.wait()

    async with running(app):
        await soon(started.wait())
        theirs = take_over(raw, raw.record()["_id"])
        release.set()
        await soon(stale.wait())
    assert raw.record() == theirs


async def test_those_that_were_not_taken_over_are_settled_in_the_same_group(app: Gangline, raw: Raw) -> None:
    release = asyncio.Event()
    started: list[int] = []
    stale: list[int] = []

    @app.event(max_tries=1, on_stale=lambda params, ctx: stale.append(params["number"]))
    async def work(number: int) -> None:
        started.append(number)
        await release.wait()
        if number % 2:
            raise ValueError

    async with running(app):
        outcomes = await app.schedule_many([work.call(number) for number in range(10)])
        await eventually(lambda: len(started) == 10)
        theirs = [take_over(raw, str(outcomes[number].id), lock_id=f"theirs-{number}") for number in (0, 1)]
        release.set()
        await eventually(lambda: len(stale) == 2 and raw.history.count_documents({}) == 10)
    assert sorted(stale) == [0, 1]
    assert list(raw.records.find({"lockId": {"$ne": None}}).sort("lockId", 1)) == theirs
    told = {entry["params"]["number"]: entry["status"] for entry in raw.entries()}
    assert told == {number: "stale" if number < 2 else "error" if number % 2 else "success" for number in range(10)}


async def test_a_thread_that_was_taken_over_changes_nothing(app: Gangline, raw: Raw) -> None:
    started, release = asyncio.Event(), False
    loop = asyncio.get_running_loop()
    stale: list[str] = []

    @app.event(on_stale=lambda params, ctx: stale.append(ctx.id))
    def work() -> int:
        loop.call_soon_threadsafe(started.set)
        while not release:
            time.sleep(0.005)
        return 1

    async with running(app):
        scheduled = await work.schedule()
        await soon(started.wait())
        assert scheduled.id is not None
        theirs = take_over(raw, scheduled.id)
        release = True
        await eventually(lambda: stale)
    assert raw.record() == theirs
    assert raw.statuses() == ["stale"]
