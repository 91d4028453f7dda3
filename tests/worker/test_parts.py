"""The small parts of a worker: slots, threads for plain handlers, waits after errors."""

import asyncio
import contextvars
import random
import threading
from collections.abc import AsyncIterator

import pytest

from gangline import Gangline
from gangline.jobs.definition import JobDefinition
from gangline.worker.backoff import Backoff
from gangline.worker.slots import Slots
from gangline.worker.threads import HandlerThreads
from support.apps import eventually, soon

# Slots


def definitions(**limits: int | None) -> list[JobDefinition]:
    app = Gangline()
    for name, limit in limits.items():
        app.event(name=name, max_parallel=limit)(lambda: None)
    return list(app.jobs.values())


def test_room_is_what_is_free() -> None:
    freed: list[int] = []
    slots = Slots(3, definitions(b=None, a=None), freed=lambda: freed.append(slots.free))
    one, other = slots.take("a"), slots.take("b")
    room = slots.room()
    assert (room.limit, list(room.names), dict(room.caps), room.complete) == (1, ["a", "b"], {}, True)
    one.release()
    one.release()
    assert freed == [2]
    other.release()
    assert slots.room().limit == 3


def test_a_name_at_its_limit_has_no_room() -> None:
    slots = Slots(10, definitions(a=2, b=None, c=1), freed=lambda: None)
    first = slots.take("a")
    room = slots.room()
    assert (list(room.names), dict(room.caps), room.complete) == (["a", "b", "c"], {"a": 1, "c": 1}, True)
    slots.take("a")
    room = slots.room()
    assert (room.limit, list(room.names), dict(room.caps), room.complete) == (8, ["b", "c"], {"c": 1}, False)
    first.release()
    assert list(slots.room().names) == ["a", "b", "c"]


def test_there_is_no_room_once_every_name_is_at_its_limit() -> None:
    slots = Slots(10, definitions(a=1), freed=lambda: None)
    slots.take("a")
    assert slots.room().limit == 0


# Threads


@pytest.fixture
async def threads() -> AsyncIterator[HandlerThreads]:
    threads = HandlerThreads()
    yield threads
    threads.close()


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gangline-handler"]


async def test_a_thread_is_used_again(threads: HandlerThreads) -> None:
    first = await soon(threads.run(threading.current_thread))
    assert await soon(threads.run(threading.current_thread)) is first
    assert first.daemon


async def test_functions_that_run_at_once_have_threads_of_their_own(threads: HandlerThreads) -> None:
    meeting = threading.Barrier(3, timeout=10)
    await soon(asyncio.gather(*(threads.run(meeting.wait) for _ in range(3))))


@pytest.mark.parametrize("error", [ValueError(), SystemExit(), KeyboardInterrupt(), StopIteration()], ids=repr)
async def test_what_a_function_raises_is_raised(threads: HandlerThreads, error: BaseException) -> None:
    def fail() -> None:
        raise error

    caught: list[BaseException] = []

    async def run() -> None:
        try:
            await threads.run(fail)
        except BaseException as raised:
            caught.append(raised)

    await soon(run())
    assert caught == [error] or isinstance(caught[0].__cause__, StopIteration)
    assert await soon(threads.run(lambda: 1)) == 1


async def test_context_variables_reach_the_thread(threads: HandlerThreads) -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    variable.set("inside")
    assert await soon(threads.run(variable.get)) == "inside"


async def test_an_abandoned_function_goes_on_and_its_thread_comes_back(threads: HandlerThreads) -> None:
    release = threading.Event()
    running: list[threading.Thread] = []

    def work() -> None:
        running.append(threading.current_thread())
        release.wait(10)

    task = asyncio.ensure_future(threads.run(work))
    await eventually(lambda: running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await soon(threads.run(threading.current_thread)) is not running[0]
    release.set()

    async def all_of_them() -> set[threading.Thread]:
        """Have as many functions meet as there are threads; one that is still busy is replaced by another."""
        meeting = threading.Barrier(len(handler_threads()), timeout=10)

        def meet() -> threading.Thread:
            meeting.wait()
            return threading.current_thread()

        return set(await asyncio.gather(*(threads.run(meet) for _ in range(meeting.parties))))

    async def until_back() -> None:
        while running[0] not in await all_of_them():
            pass

    await soon(until_back())


async def test_closing_ends_idle_threads_at_once_and_busy_ones_with_their_function() -> None:
    before = len(handler_threads())
    threads = HandlerThreads()
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(10)

    await soon(threads.run(lambda: None))
    busy = asyncio.ensure_future(threads.run(work))
    await eventually(started.is_set)
    threads.close()
    release.set()
    await soon(busy)
    await eventually(lambda: len(handler_threads()) == before)


# Waits after errors


def test_waits_grow_and_are_bounded() -> None:
    backoff = Backoff(random.Random(1))
    assert backoff.fresh
    waits = [backoff.next() for _ in range(50)]
    assert not backoff.fresh
    assert all(0.05 * 2**place <= wait <= 0.1 * 2**place for place, wait in enumerate(waits[:6]))
    assert all(2.5 <= wait <= 5 for wait in waits[6:])
    backoff.reset()
    assert backoff.fresh
    assert backoff.next() <= 0.1
