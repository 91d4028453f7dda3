"""The supervisor by itself: which processes it starts, which it replaces, and when it gives up."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from gangline.worker import supervisor as module
from gangline.worker.backoff import Backoff
from gangline.worker.supervisor import Supervisor
from support.apps import eventually, soon


class Fake:
    """A process that is ready and ends when it is told."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.signals: list[int] = []
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def becomes_ready(self) -> None:
        """Tell that it claims jobs."""
        self._ready.set_result(True)

    def ends(self, code: int) -> None:
        """End with an exit code."""
        if not self._ready.done():
            self._ready.set_result(False)
        self._code.set_result(code)

    async def ready(self) -> bool:
        """Wait for it."""
        return await self._ready

    async def wait(self) -> int:
        """Wait for its end."""
        return await self._code

    def send_signal(self, number: int) -> None:
        """Note it."""
        self.signals.append(number)


class Fakes:
    """The processes in the order of their start."""

    def __init__(self) -> None:
        self.started: list[Fake] = []

    async def start(self) -> Fake:
        """Start one more."""
        self.started.append(Fake(100 + len(self.started)))
        return self.started[-1]

    async def number(self, count: int) -> None:
        """Wait until so many were started."""
        await eventually(lambda: len(self.started) == count)


@asynccontextmanager
async def supervised(fakes: Fakes, processes: int) -> AsyncIterator[tuple[Supervisor, "asyncio.Task[list[int]]"]]:
    """A supervisor that runs; the block ends it by ending all of its processes."""
    supervisor = Supervisor(fakes.start, processes, Random(1))
    running = asyncio.create_task(_codes(supervisor))
    try:
        yield supervisor, running
    finally:
        running.cancel()
        await asyncio.wait({running})


async def _codes(supervisor: Supervisor) -> list[int]:
    return list(await supervisor.run())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No pauses; the number of errors in a row, each time one was met."""
    met: list[int] = []

    class Quick:
        def __init__(self, rng: Random) -> None:
            self.errors = 0

        def next(self) -> float:
            self.errors += 1
            met.append(self.errors)
            return 0.0

        def reset(self) -> None:
            self.errors = 0

    monkeypatch.setattr(module, "Backoff", Quick)
    return met


async def test_the_others_start_when_the_first_is_ready() -> None:
    fakes = Fakes()
    async with supervised(fakes, 3):
        await fakes.number(1)
        await asyncio.sleep(0.01)
        assert len(fakes.started) == 1
        fakes.started[0].becomes_ready()
        await fakes.number(3)


async def test_one_that_dies_is_replaced_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    fakes = Fakes()
    async with supervised(fakes, 2):
        await fakes.number(1)
        fakes.started[0].becomes_ready()
        await fakes.number(2)
        for code in (-signal.SIGKILL, 0, 1, -99):
            fakes.started[-1].ends(code)
            await fakes.number(len(fakes.started) + 1)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "worker process 2 of 2 (pid 101) was killed by SIGKILL",
        "worker process 2 of 2 (pid 102) ended with exit code 0",
        "worker process 2 of 2 (pid 103) ended with exit code 1",
        "worker process 2 of 2 (pid 104) was killed by signal 99",
    ]
    assert not fakes.started[0].signals


async def test_the_pauses_grow_until_a_process_has_lived_for_a_while(
    quick: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = Fakes()
    async with supervised(fakes, 1):
        await fakes.number(1)
        fakes.started[0].becomes_ready()
        for steady in (60.0, 60.0, 0.0, 60.0):
            monkeypatch.setattr(module, "STEADY_SECONDS", steady)
            fakes.started[-1].ends(1)
            await fakes.number(len(fakes.started) + 1)
    assert quick == [1, 2, 1, 2]


async def test_a_mistake_of_the_very_first_ends_it_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    fakes = Fakes()
    async with supervised(fakes, 3) as (_, running):
        await fakes.number(1)
        fakes.started[0].ends(2)
        assert await soon(running) == [2, 0, 0]
    assert len(fakes.started) == 1
    assert [record.getMessage() for record in caplog.records] == ["the first worker process ended before it was ready"]


async def test_the_first_is_replaced_if_it_was_only_told_to_end() -> None:
    fakes = Fakes()
    async with supervised(fakes, 1):
        await fakes.number(1)
        fakes.started[0].ends(0)
        await fakes.number(2)


async def test_each_signal_goes_to_all_and_none_is_replaced_any_more() -> None:
    fakes = Fakes()
    async with supervised(fakes, 2) as (supervisor, running):
        await fakes.number(1)
        fakes.started[0].becomes_ready()
        await fakes.number(2)
        supervisor.signal(signal.SIGTERM)
        supervisor.signal(signal.SIGINT)
        assert [each.signals for each in fakes.started] == [[signal.SIGTERM, signal.SIGINT]] * 2
        fakes.started[1].becomes_ready()
        fakes.started[1].ends(3)
        fakes.started[0].ends(0)
        assert await soon(running) == [0, 3]
    assert len(fakes.started) == 2


async def test_a_signal_reaches_one_that_is_being_started() -> None:
    """It dies of it, with nothing claimed yet: that is no error."""
    fakes, starting, go = Fakes(), asyncio.Event(), asyncio.Event()

    class Slow(Fakes):
        async def start(self) -> Fake:
            starting.set()
            await go.wait()
            return await fakes.start()

    async with supervised(Slow(), 1) as (supervisor, running):
        await soon(starting.wait())
        supervisor.signal(signal.SIGTERM)
        go.set()
        await eventually(lambda: fakes.started and fakes.started[0].signals == [signal.SIGTERM])
        fakes.started[0].ends(-signal.SIGTERM)
        assert await soon(running) == [0]


async def test_one_that_dies_of_a_signal_while_it_works_is_an_error() -> None:
    fakes = Fakes()
    async with supervised(fakes, 1) as (supervisor, running):
        await fakes.number(1)
        fakes.started[0].becomes_ready()
        supervisor.signal(signal.SIGTERM)
        fakes.started[0].ends(-signal.SIGTERM)
        assert await soon(running) == [-signal.SIGTERM]


async def test_a_signal_while_a_place_is_empty_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Backoff):
        def next(self) -> float:
            return 3600.0

    monkeypatch.setattr(module, "Backoff", Long)
    fakes = Fakes()
    async with supervised(fakes, 1) as (supervisor, running):
        await fakes.number(1)
        fakes.started[0].becomes_ready()
        fakes.started[0].ends(1)
        await asyncio.sleep(0.01)
        supervisor.signal(signal.SIGTERM)
        assert await soon(running) == [0]
