"""What becomes of a job whose handler does not return: retries, death, dismissal, hooks, and odd exceptions."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from gangline import Context, Dismiss, Gangline, InvalidParams, JobTimeout, Retry, RetryPolicy
from support.apps import AT_ONCE, Document, Raw, eventually, running, soon

FAR = RetryPolicy.fixed("1h")


async def until_dead(raw: Raw, **fields: Any) -> Document:
    """The one record with these fields, once it is dead."""
    return await eventually(lambda: raw.records.find_one({"status": "maxTriesReached", **fields}))


async def until_released(raw: Raw) -> Document:
    """The one record, once an execution has released it."""
    return await eventually(lambda: raw.records.find_one({"lastExecutionId": {"$ne": None}, "lockId": None}))


# Retrying


async def test_a_failing_job_is_tried_again_by_its_policy_and_dies(app: Gangline, raw: Raw) -> None:
    """Cases 2, 27 and 59."""
    told: list[tuple[str, Any, int]] = []
    lasts: list[bool] = []

    async def tell(error: BaseException | None, params: Any, ctx: Context) -> None:
        told.append((str(error), params, ctx.tries))

    @app.event(max_tries=3, retry=AT_ONCE, keep_dead="2h", on_max_tries=tell)
    async def fail(ctx: Context, word: str) -> None:
        lasts.append(ctx.is_last_try)
        raise ValueError(f"no {word}, try {ctx.tries}")

    async with running(app):
        await fail.options(unique="only").schedule("luck")
        dead = await until_dead(raw)
        assert (await fail.options(unique="only", run_in="1h").schedule("luck")).created
    assert lasts == [False, False, True]
    assert told == [("no luck, try 3", {"word": "luck"}, 3)]
    assert dead["tries"] == 3
    assert dead["expiresAt"] - dead["maxTriesReachedAt"] == timedelta(hours=2)
    assert {"lockId", "lockedUntil", "lockedBy", "claimWasStale", "uniqueIdentifier"}.isdisjoint(dead)
    assert dead["freedUniqueIdentifier"] == "only"
    assert (dead["lastError"]["type"], dead["lastError"]["message"]) == ("ValueError", "no luck, try 3")
    entries = raw.entries()
    assert [(entry["status"], entry["tries"]) for entry in entries] == [("error", 1), ("error", 2), ("error", 3)]
    assert "raise ValueError" in entries[0]["errorTrace"]
    assert "gangline/worker" not in entries[0]["errorTrace"]


async def test_a_retry_waits_as_long_as_the_policy_says(app: Gangline, raw: Raw) -> None:
    @app.event(retry=RetryPolicy.fixed("1h"))
    async def fail() -> None:
        raise ValueError

    async with running(app):
        await fail.schedule()
        record = await until_released(raw)
    ended = raw.entries()[0]["endedAt"]
    assert abs(record["nextRunAt"] - ended - timedelta(hours=1)) <= timedelta(milliseconds=1)
    assert record["tries"] == 1


async def test_without_a_limit_a_job_never_dies(app: Gangline, raw: Raw) -> None:
    @app.event(max_tries=None, retry=AT_ONCE)
    async def fail_often(ctx: Context) -> None:
        assert not ctx.is_last_try
        if ctx.tries < 15:
            raise ValueError

    async with running(app):
        await fail_often.schedule()
        await eventually(raw.empty)
    assert raw.statuses() == ["error"] * 14 + ["success"]


async def test_dead_records_are_kept_for_ever_if_the_job_says_so(app: Gangline, raw: Raw) -> None:
    @app.event(max_tries=1, keep_dead=None)
    async def fail() -> None:
        raise ValueError

    async with running(app):
        await fail.schedule()
        assert "expiresAt" not in await until_dead(raw)


async def test_a_handler_names_the_time_of_its_next_try(app: Gangline, raw: Raw) -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)

    @app.event()
    async def at_an_instant() -> None:
        raise Retry(at=at)

    @app.event(retry=FAR)
    async def in_a_moment(ctx: Context) -> int:
        if ctx.tries == 1:
            raise Retry(in_="1ms")
        return ctx.tries

    async with running(app):
        await at_an_instant.schedule()
        await in_a_moment.schedule()
        await eventually(lambda: raw.entries(jobName="in_a_moment", status="success"))
        record = await until_released(raw)
    assert record["nextRunAt"] == at
    assert record["tries"] == 1


async def test_retry_does_not_lift_the_limit_of_tries(app: Gangline, raw: Raw) -> None:
    @app.event(max_tries=2)
    async def insist() -> None:
        raise Retry(in_=0)

    async with running(app):
        await insist.schedule()
        assert (await until_dead(raw))["tries"] == 2


async def test_a_dismissed_job_is_gone(app: Gangline, raw: Raw) -> None:
    """Case 59."""
    runs: list[int] = []

    @app.event()
    async def give_up(ctx: Context) -> None:
        runs.append(ctx.tries)
        raise Dismiss("the order was cancelled")

    async with running(app):
        await give_up.schedule()
        await eventually(raw.empty)
    [entry] = raw.entries()
    assert (entry["status"], entry["dismissed"], runs) == ("success", "the order was cancelled", [1])


@pytest.mark.parametrize("reason", ["lone \ud800 surrogate", "x" * 17_000_000, 7], ids=["surrogate", "huge", "number"])
async def test_whatever_the_reason_of_a_dismissal_the_job_is_gone(app: Gangline, raw: Raw, reason: Any) -> None:
    @app.event()
    async def give_up() -> None:
        raise Dismiss(reason)

    async with running(app):
        await give_up.schedule()
        await eventually(raw.empty)
    [entry] = raw.entries()
    assert entry["status"] == "success"
    assert len(entry["dismissed"]) <= 2_000


# Params


async def test_params_are_checked_again_before_the_run(app: Gangline, raw: Raw) -> None:
    """Case 12."""
    runs: list[int] = []

    @app.event(max_tries=2, retry=AT_ONCE)
    async def add(number: int) -> None:
        runs.append(number)

    scheduled = await add.schedule(1)
    raw.records.update_one({"_id": scheduled.id}, {"$set": {"params": {"number": "secret"}}})
    async with running(app):
        dead = await until_dead(raw)
    assert runs == []
    assert dead["lastError"]["type"].endswith("InvalidParams")
    assert "number" in dead["lastError"]["message"]
    assert "secret" not in dead["lastError"]["message"]
    assert raw.statuses() == ["error"] * 2


def explode(value: int) -> int:
    if value == 13:
        raise RuntimeError("no validation error")
    return value


async def test_params_whose_check_raises_something_else_fail_the_job(app: Gangline, raw: Raw) -> None:
    """Case 12."""

    @app.event(max_tries=1)
    async def add(number: Annotated[int, AfterValidator(explode)]) -> None: ...

    scheduled = await add.schedule(1)
    raw.records.update_one({"_id": scheduled.id}, {"$set": {"params": {"number": 13}}})
    async with running(app, concurrency=1):
        dead = await until_dead(raw)
        await add.schedule(2)
        await eventually(lambda: raw.entries(status="success"))
    assert "no validation error" in dead["lastError"]["message"]


@pytest.mark.parametrize("timeout", [None, "10s"])
async def test_arguments_that_the_handler_does_not_take_fail_the_job(
    app: Gangline, raw: Raw, timeout: str | None
) -> None:
    """Case 12: a decorator may pretend another signature."""

    def original(number: int) -> None: ...

    @wraps(original)
    async def pretender() -> None: ...

    app.event(name="pretender", max_tries=1, timeout=timeout)(pretender)
    async with running(app, concurrency=1):
        await app.schedule_by_name("pretender", {"number": 1})
        assert (await until_dead(raw))["lastError"]["type"] == "TypeError"


# on_error


def retry_in_an_hour(error: BaseException, params: Any, ctx: Context) -> Retry:
    return Retry(in_="1h")


async def retry_in_an_hour_async(error: BaseException, params: Any, ctx: Context) -> Retry:
    return Retry(in_="1h")


@pytest.mark.parametrize("hook", [retry_in_an_hour, retry_in_an_hour_async])
async def test_the_error_hook_may_ask_for_a_retry(app: Gangline, raw: Raw, hook: Callable[..., Any]) -> None:
    """Case 58."""

    @app.event(on_error=hook, retry=AT_ONCE)
    async def fail() -> None:
        raise ValueError("why")

    async with running(app):
        await fail.schedule()
        record = await until_released(raw)
    [entry] = raw.entries()
    assert record["nextRunAt"] - entry["endedAt"] > timedelta(minutes=59)
    assert (entry["status"], entry["errorMessage"]) == ("error", "why")


async def test_the_error_hook_may_dismiss(app: Gangline, raw: Raw) -> None:
    """Case 58."""
    seen: list[tuple[BaseException, Any, int]] = []

    def hook(error: BaseException, params: Any, ctx: Context) -> Dismiss:
        seen.append((error, params, ctx.tries))
        return Dismiss("not worth it")

    @app.event(on_error=hook)
    async def fail(x: int) -> None:
        raise ValueError("why")

    async with running(app):
        await fail.schedule(3)
        await eventually(raw.empty)
    assert [entry["dismissed"] for entry in raw.entries()] == ["not worth it"]
    [(error, params, tries)] = seen
    assert (str(error), params, tries) == ("why", {"x": 3}, 1)


def decide_nothing(error: BaseException, params: Any, ctx: Context) -> None: ...


async def decide_nothing_async(error: BaseException, params: Any, ctx: Context) -> None: ...


def raise_itself(error: BaseException, params: Any, ctx: Context) -> None:
    raise RuntimeError("the hook itself")


async def raise_itself_async(error: BaseException, params: Any, ctx: Context) -> None:
    raise RuntimeError("the hook itself")


async def raise_exit(error: BaseException, params: Any, ctx: Context) -> None:
    raise SystemExit(3)


async def raise_cancelled(error: BaseException, params: Any, ctx: Context) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "hook",
    [decide_nothing, decide_nothing_async, raise_itself, raise_itself_async, raise_exit, raise_cancelled],
)
async def test_an_error_hook_that_decides_nothing_leaves_it_to_the_policy(
    app: Gangline, raw: Raw, hook: Callable[..., Any]
) -> None:
    """Case 58."""

    @app.event(max_tries=2, retry=AT_ONCE, on_error=hook)
    async def fail() -> None:
        raise ValueError("why")

    async with running(app):
        await fail.schedule()
        await until_dead(raw)
    assert [(entry["status"], entry["errorMessage"]) for entry in raw.entries()] == [("error", "why")] * 2


async def test_the_error_hook_hears_of_invalid_params(app: Gangline, raw: Raw) -> None:
    """Case 12."""
    heard: list[tuple[type, Any]] = []

    def hook(error: BaseException, params: Any, ctx: Context) -> None:
        heard.append((type(error), params))

    @app.event(max_tries=1, on_error=hook)
    async def add(number: int) -> None: ...

    scheduled = await add.schedule(1)
    raw.records.update_one({"_id": scheduled.id}, {"$set": {"params": {"number": "x"}}})
    async with running(app):
        await until_dead(raw)
    assert heard == [(InvalidParams, {"number": "x"})]


# Odd exceptions


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


class NotPicklable(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)


class Rooted(BaseException):
    pass


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


ODD: list[BaseException] = [
    WithoutText(),
    NotPicklable(),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    Rooted("root"),
    StopIteration(1),
    StopAsyncIteration(),
    ExceptionGroup("several", [ValueError(1)]),
    ValueError("lone \ud800 surrogate"),
    ValueError("x" * 20_000_000),
]


@pytest.mark.parametrize("timeout", [None, "10s"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_whatever_a_handler_raises_its_job_fails_and_the_worker_lives(
    app: Gangline, raw: Raw, in_thread: bool, timeout: str | None
) -> None:
    """Case 56."""

    def in_a_thread(which: int) -> None:
        raise ODD[which]

    async def on_the_loop(which: int) -> None:
        raise ODD[which]

    @app.event()
    async def sound() -> None: ...

    odd = app.event(name="odd", max_tries=1, timeout=timeout)(in_a_thread if in_thread else on_the_loop)
    async with running(app, concurrency=1):
        await app.schedule_many([odd.call(which) for which in range(len(ODD))])
        await eventually(lambda: raw.records.count_documents({"status": "maxTriesReached"}) == len(ODD))
        await sound.schedule()
        await eventually(lambda: raw.entries(jobName="sound", status="success"))
    entries = {entry["params"]["which"]: entry for entry in raw.entries(jobName="odd", status="error")}
    assert len(entries) == len(ODD)
    for which, error in enumerate(ODD):
        entry = entries[which]
        assert entry["errorType"].endswith(type(error).__name__) or isinstance(error, StopIteration)
        assert 0 < len(entry["errorMessage"]) <= 2_000
        assert len(entry["errorTrace"]) <= 20_000


@pytest.mark.parametrize("timeout", [None, "10s"])
async def test_a_handler_that_cancels_itself_has_failed(app: Gangline, raw: Raw, timeout: str | None) -> None:
    """Case 56."""
    job = app.event(max_tries=2, retry=AT_ONCE, timeout=timeout)(cancel_itself)
    async with running(app):
        await job.schedule()
        await until_dead(raw)
    assert [entry["errorType"] for entry in raw.entries()] == ["asyncio.exceptions.CancelledError"] * 2


# Timeouts


async def test_an_async_handler_is_cancelled_at_its_timeout(app: Gangline, raw: Raw) -> None:
    cancelled = asyncio.Event()
    errors: list[BaseException] = []

    @app.event(timeout="50ms", max_tries=1, on_error=lambda error, params, ctx: errors.append(error))
    async def too_long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with running(app):
        await too_long.schedule()
        await soon(cancelled.wait())
        dead = await until_dead(raw)
    assert dead["lastError"]["type"] == "gangline.jobs.errors.JobTimeout"
    assert dead["lastError"]["message"] == "ran longer than 0.05 s"
    assert [type(error) for error in errors] == [JobTimeout]


# Records that do not fit


@pytest.mark.parametrize("kind", ["recurrent", "something", None])
async def test_a_record_of_another_type_than_its_definition_is_set_aside(
    app: Gangline, raw: Raw, kind: str | None
) -> None:
    """Case 57."""
    runs: list[str] = []

    @app.event()
    async def work() -> None:
        runs.append("work")

    scheduled = await work.schedule()
    raw.records.update_one({"_id": scheduled.id}, {"$set": {"type": kind}})
    async with running(app):
        aside = await eventually(lambda: raw.records.find_one({"maxTriesReachedAt": {"$ne": None}}))
        await work.schedule()
        await eventually(lambda: raw.entries(status="success"))
    assert runs == ["work"]
    assert aside["lastError"]["type"] == "TypeMismatch"
    assert {"lockId", "lockedUntil", "expiresAt"}.isdisjoint(aside)
    [entry] = raw.entries(jobId=scheduled.id)
    assert (entry["status"], entry["errorType"]) == ("error", "TypeMismatch")
    [dead] = await app.insights.counts()
    assert dead.dead == 1


async def test_event_records_of_a_job_that_became_recurrent_are_set_aside(app: Gangline, raw: Raw) -> None:
    """Case 72."""
    ran = asyncio.Event()
    old = await app.schedule_by_name("changing", {"x": 1})

    @app.recurrent(name="changing", every="1h", run_at_start=True)
    async def changing() -> None:
        ran.set()

    async with running(app):
        await soon(ran.wait())
        aside = await eventually(lambda: raw.records.find_one({"maxTriesReachedAt": {"$ne": None}}))
        await eventually(lambda: raw.entries(status="success"))
    assert aside["_id"] == old.id
    assert aside["lastError"]["type"] == "TypeMismatch"
    assert "expiresAt" not in aside
    assert raw.record(type="recurrent")["nextRunAt"] > datetime.now(UTC)


async def test_a_thread_that_ignores_its_timeout_keeps_its_slot_until_it_ends(app: Gangline, raw: Raw) -> None:
    """Case 13: the slot rule. The witness, in the other slot, proves that the worker was looking for jobs."""
    asked: list[bool] = []
    started: list[int] = []
    release = False

    @app.event(timeout="50ms", max_tries=1, max_parallel=1)
    def deaf(ctx: Context, number: int) -> None:
        started.append(number)
        while not release:
            time.sleep(0.005)
        asked.append(ctx.should_end)

    @app.event()
    async def witness() -> None: ...

    try:
        async with running(app, concurrency=2):
            await deaf.schedule(1)
            dead = await until_dead(raw)
            assert dead["lastError"]["type"] == "gangline.jobs.errors.JobTimeout"
            await app.schedule_many([deaf.call(2), witness.call()])
            await eventually(lambda: raw.statuses(jobName="witness"))
            await witness.schedule()
            await eventually(lambda: raw.statuses(jobName="witness") == ["success"] * 2)
            assert started == [1]
            release = True
            await eventually(lambda: raw.statuses(jobName="deaf") == ["error", "success"])
    finally:
        release = True
    assert asked == [True, False]


async def test_a_coroutine_that_ignores_its_timeout_keeps_its_slot_until_it_ends(app: Gangline, raw: Raw) -> None:
    """Case 13."""
    release = asyncio.Event()
    order: list[str] = []

    @app.event(timeout="50ms", max_tries=1, max_parallel=1)
    async def deaf() -> None:
        order.append("deaf")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                order.append("cancelled")

    @app.event()
    async def witness() -> None:
        order.append("witness")

    try:
        async with running(app, concurrency=2):
            await deaf.schedule()
            await until_dead(raw)
            await app.schedule_many([deaf.call(), witness.call()])
            await eventually(lambda: raw.statuses(jobName="witness"))
            release.set()
            await eventually(lambda: raw.statuses(jobName="deaf") == ["error", "success"])
    finally:
        release.set()
    assert order == ["deaf", "cancelled", "witness", "deaf"]


async def test_a_worker_stops_although_a_thread_ignores_its_timeout(app: Gangline, raw: Raw) -> None:
    """Case 13."""
    release = False

    @app.event(timeout="50ms", max_tries=1)
    def deaf() -> None:
        while not release:
            time.sleep(0.005)

    try:
        async with running(app, concurrency=1, grace=0):
            await deaf.schedule()
            await until_dead(raw)
    finally:
        release = True
    assert raw.statuses() == ["error"]
