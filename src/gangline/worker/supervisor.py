"""Several worker processes on one host: each is replaced when it dies, and all are stopped together."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol

from gangline.worker.backoff import Backoff

logger = logging.getLogger("gangline.supervisor")

STEADY_SECONDS = 60.0
"""How long a process must have lived for its death to count as the first in a row."""


class Process(Protocol):
    """A worker process that was started."""

    @property
    def pid(self) -> int:
        """Its process id."""

    async def ready(self) -> bool:
        """Wait until it claims jobs; whether it came to that."""

    async def wait(self) -> int:
        """Wait until it ended; return its exit code, the negative number of the signal that killed it."""

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""


class Supervisor:
    """Keeps a number of worker processes running.

    The first one starts alone and the others follow when it is ready: what is wrong with the app or a setting is told
    once, and the indexes are made once.
    """

    def __init__(self, start: Callable[[], Awaitable[Process]], processes: int, rng: Random) -> None:
        self._start = start
        self._places = range(1, processes + 1)
        self._random = rng
        self._running: set[Process] = set()
        self._signals: list[int] = []
        self._stopping = asyncio.Event()
        self._one_was_ready = asyncio.Event()

    async def run(self) -> Sequence[int]:
        """Run until :meth:`signal`, or until the very first process ended with an error.

        Returns:
            the exit code of the last process in each place.
        """
        async with asyncio.TaskGroup() as group:
            keeping = [group.create_task(self._keep(place)) for place in self._places]
        return [each.result() for each in keeping]

    def signal(self, number: int) -> None:
        """Replace no process any more, and hand the signal on to all of them."""
        self._stopping.set()
        self._signals.append(number)
        for process in self._running:
            process.send_signal(number)

    async def _keep(self, place: int) -> int:
        backoff = Backoff(self._random)
        if place > self._places[0]:
            await _either(self._one_was_ready, self._stopping)
        while not self._stopping.is_set():
            began = time.monotonic()
            pid, was_ready, code = await self._one_life()
            if self._stopping.is_set():
                return code if was_ready else 0  # it may have died of the signal, and had claimed nothing
            if code and not self._one_was_ready.is_set():
                self._give_up()
                return code
            if time.monotonic() - began >= STEADY_SECONDS:
                backoff.reset()
            await self._mourn(place, pid, code, backoff.next())
        return 0

    async def _one_life(self) -> tuple[int, bool, int]:
        """Start a process and see it through; return its id, whether it was ever ready, and its exit code."""
        process = await self._start()
        self._running.add(process)
        try:
            for number in self._signals:  # they came while it was being started
                process.send_signal(number)
            was_ready = await process.ready()
            if was_ready:
                self._one_was_ready.set()
            return process.pid, was_ready, await process.wait()
        finally:
            self._running.discard(process)

    def _give_up(self) -> None:
        logger.error("the first worker process ended before it was ready", extra={"event": "supervisor_gave_up"})
        self._stopping.set()

    async def _mourn(self, place: int, pid: int, code: int, pause: float) -> None:
        logger.warning(
            "worker process %d of %d (pid %d) %s; another takes its place in %.1f s",
            place,
            len(self._places),
            pid,
            _ending(code),
            pause,
            extra={"event": "worker_process_ended", "worker_pid": pid, "exit_code": code},
        )
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
