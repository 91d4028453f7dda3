"""Right and wrong uses of decorated functions. A comment names the error that mypy must find on its line, and no other.

It is checked by ``test_typing`` and kept out of the project's own run of mypy.
"""

from datetime import UTC, datetime
from typing import assert_type

from gangline import Context, Gangline, Scheduled
from gangline.jobs.scheduling import JobCall

app = Gangline()


@app.event(max_tries=5)
async def with_context(ctx: Context, to: str, number: int = 0) -> dict[str, str]:
    return {ctx.id: to * number}


@app.event()
async def without_context(to: str, *, number: int) -> int:
    return len(to) + number


@app.event(name="plain", lease="1m")
def plain(ctx: Context, to: str) -> bytes:
    return to.encode()


@app.event()
def plain_without_context(to: str = "") -> float:
    return len(to) / 2


@app.event()
def nothing() -> None: ...


@app.event()
def only_context(ctx: Context) -> str:
    return ctx.name


@app.recurrent(every="1m")
async def tick(ctx: Context) -> int:
    return ctx.tries


@app.recurrent(cron="0 3 * * *", timezone="Europe/Berlin")
def clean_up(days: int = 7) -> str:
    return str(days)


async def right(ctx: Context) -> None:
    assert_type(await with_context.schedule("a", 1), Scheduled)
    assert_type(await with_context.schedule(to="a"), Scheduled)
    assert_type(await with_context.options(run_in="5m", priority=200).schedule("a", number=1), Scheduled)
    assert_type(with_context.call("a"), JobCall)
    assert_type(with_context.options(run_at=datetime.now(UTC), unique="a", on_conflict="replace").call("a"), JobCall)
    assert_type(await without_context.schedule("a", number=1), Scheduled)
    assert_type(await plain.schedule("a"), Scheduled)
    assert_type(await plain_without_context.schedule(), Scheduled)
    assert_type(await nothing.schedule(), Scheduled)
    assert_type(await only_context.schedule(), Scheduled)
    await app.schedule_many([with_context.call("a"), plain.call(to="a"), nothing.call()])


async def called_directly_a_function_keeps_what_it_returns(ctx: Context) -> None:
    assert_type(await with_context(ctx, "a", number=2), dict[str, str])
    assert_type(await without_context("a", number=2), int)
    assert_type(plain(ctx, "a"), bytes)
    assert_type(plain_without_context(), float)
    assert_type(only_context(ctx), str)
    assert_type(await tick(ctx), int)
    assert_type(clean_up(days=1), str)


async def wrong_arguments(ctx: Context) -> None:
    await with_context.schedule()  # error: call-arg
    await with_context.schedule(1)  # error: arg-type
    await with_context.schedule(ctx, "a")  # error: arg-type, arg-type
    await with_context.schedule("a", wrong=1)  # error: call-arg
    await with_context.schedule(to="a", number="1")  # error: arg-type
    with_context.call("a", 1, 2)  # error: call-arg
    with_context.options(priority=1).call(to=1)  # error: arg-type
    await with_context.options(unique="a").schedule()  # error: call-arg
    await without_context.schedule("a", 1)  # error: call-arg
    await without_context.schedule(to="a")  # error: call-arg
    await plain.schedule(b"a")  # error: arg-type
    plain.call()  # error: call-arg
    await plain_without_context.schedule(0)  # error: arg-type
    await nothing.schedule("a")  # error: call-arg
    await only_context.schedule(ctx)  # error: call-arg


async def wrong_direct_calls(ctx: Context) -> None:
    await with_context("a")  # error: call-arg, arg-type
    plain("a")  # error: call-arg, arg-type
    await without_context(to="a", number="1")  # error: arg-type
    await plain_without_context()  # error: misc
    await tick()  # error: call-arg


async def wrong_options() -> None:
    with_context.options(run_later="5m")  # error: call-arg
    with_context.options(priority="high")  # error: arg-type
    with_context.options(on_conflict="ignore")  # error: arg-type
    app.event(every="1m")  # error: call-arg
    app.event(max_tries="5")  # error: arg-type
    app.recurrent(max_tries=5)  # error: call-arg
    app.recurrent(run_at_start="yes")  # error: arg-type
    app.worker(concurrency="x")  # error: arg-type
    app.worker(threads=3)  # error: call-arg


async def wrong_handles() -> None:
    await tick.schedule()  # error: attr-defined
    with_context.schedule("a")  # error: unused-coroutine
    await app.schedule_many(["with_context"])  # error: list-item
    app.event()(1)  # error: call-overload
