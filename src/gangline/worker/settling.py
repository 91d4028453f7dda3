"""Settles executions in groups: those that end while a group is being written share the next one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from gangline.store.errors import StoreError, is_transient
from gangline.store.settle import Settlement, Verdict
from gangline.worker.backoff import Backoff
from gangline.worker.cancellation import cancelled

logger = logging.getLogger("gangline.settling")

LINGER = 0.002
MAX_GROUP = 500
MAX_REFUSALS = 5


class Settles(Protocol):
    """The store's side of settling."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Write ``settlements`` and return a verdict for each."""


@dataclass(slots=True)
class _Waiting:
    settlement: Settlement
    deadline: float
    tell: Callable[[Verdict], None]


class SettleQueue:
    """Collects settlements and writes them together."""

    def __init__(self, store: Settles, random: Random, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._random = random
        self._monotonic = monotonic
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the writers: one group is on its way while the next one's history is written."""
        for number in range(2):
            task = asyncio.create_task(self._run(), name=f"gangline-settling-{number}")
            self._tasks.add(task)

    async def stop(self) -> None:
        """Stop the writers. What still waits is not written: its record frees itself when its lease ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def settle(self, settlement: Settlement, *, deadline: float, tell: Callable[[Verdict], None]) -> None:
        """Settle in the next group and ``tell`` the verdict; ``deadline`` is the cautious end of the lease.

        While the server cannot be asked it goes on trying. Nobody renews the lease meanwhile, so the record frees
        itself in time; a write after that is fenced and tells what became of it. After :meth:`stop` nothing is told.
        """
        # A function and no future: no task has to wake up once more for the verdict of each job.
        self._waiting.append(_Waiting(settlement, deadline, tell))
        self._arrived.set()

    async def _run(self) -> None:
        while not cancelled():
            await self._arrived.wait()
            await asyncio.sleep(LINGER)
            await self._write_next()

    async def _write_next(self) -> None:
        group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        if not self._waiting:
            self._arrived.clear()
        if group:
            await self._write(group)

    async def _write(self, group: list[_Waiting]) -> None:
        try:
            await self._attempt(group, repeated=False)
        except Exception as error:  # a writer that ended would leave every later outcome unwritten
            logger.warning(
                "%d outcomes could not be written yet: %s", len(group), error, extra={"event": "settle_failed"}
            )
            # Each alone and all at once, so that one that the server refuses cannot hold the others.
            await asyncio.gather(*map(self._insist, group))

    async def _insist(self, item: _Waiting) -> None:
        backoff = Backoff(self._random)
        refusals = 0
        while refusals < MAX_REFUSALS:
            await asyncio.sleep(backoff.next())
            try:
                await self._attempt([item], repeated=True)
            except Exception as error:
                if cancelled():
                    return
                refusals += not (isinstance(error, StoreError) and is_transient(error))
            else:
                return
        logger.error(
            "the server refuses the outcome of job %s; it runs again when its lease ends",
            item.settlement.lease.record_id,
            extra={"event": "settle_refused"},
        )
        item.tell(Verdict.LOST)

    async def _attempt(self, group: list[_Waiting], *, repeated: bool) -> None:
        verdicts = await self._store.settle([self._settlement(item, repeated) for item in group])
        for item, verdict in zip(group, verdicts, strict=True):
            item.tell(verdict)

    def _settlement(self, item: _Waiting, repeated: bool) -> Settlement:
        doubtful = self._monotonic() >= item.deadline
        return (
            replace(item.settlement, doubtful=doubtful, repeated=repeated) if doubtful or repeated else item.settlement
        )
