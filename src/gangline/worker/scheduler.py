"""The acquisition loop: fills free slots with due records, one exact partition per claim.

While claims win it walks over the partitions in shuffled order. As soon as one comes up empty it looks at the whole
queue in one read, which tells where records are due (it goes there), whether a lease expired (it takes over), or when
something becomes due (it sleeps until then). So an idle scheduler costs one read per poll interval whatever the number
of partitions, and never sleeps while a due record waits and a slot is free.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from gangline.jobs.hint import Shape
from gangline.jobs.partitions import PartitionWalk
from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.protocol import ClaimProtocol, ClaimRequest, LeaseLengths
from gangline.store.eligibility import MAX_SORTED_NAMES
from gangline.store.errors import StoreError, is_refused_hint
from gangline.store.reconcile import Misplaced
from gangline.store.survey import Survey
from gangline.worker.backoff import Backoff
from gangline.worker.cancellation import cancelled
from gangline.worker.slots import Room

logger = logging.getLogger("gangline.scheduler")


class Queue(Protocol):
    """What the scheduler needs of the store, besides claims."""

    async def survey(self, names: Sequence[str]) -> Survey:
        """Look at the whole queue."""

    async def take_over(self, names: Sequence[str], limit: int) -> Sequence[ClaimedRecord]:
        """Claim records whose lease expired."""

    async def repair(self, misplaced: Sequence[Misplaced]) -> None:
        """Give records outside the range a partition in it."""

    async def mend_indexes(self) -> bool:
        """Mend what made the server refuse a hint; return whether it is worth trying again at once."""

    def now(self) -> datetime:
        """Return the server's time."""


@dataclass(frozen=True, kw_only=True)
class Acquisition:
    """The settings of a scheduler."""

    partitions: int
    poll_interval: float
    max_batch: int
    leases: LeaseLengths
    worker: str


class Scheduler:
    """Claims records for free slots and hands each to ``start``."""

    def __init__(
        self,
        settings: Acquisition,
        protocol: ClaimProtocol,
        queue: Queue,
        room: Callable[[], Room],
        start: Callable[[ClaimedRecord, float], None],
        rng: random.Random,
        *,
        preferred: Callable[[], Shape] = lambda: Shape.BY_NAME,
        resting: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """``start`` gets a record and the monotonic instant before its claim was sent.

        ``preferred`` tells the shape that this worker's workload favours. ``resting`` is told after each step whether
        there is nothing to do but to wait for something due.
        """
        self._settings = settings
        self._protocol = protocol
        self._queue = queue
        self._room = room
        self._start = start
        self._random = rng
        self._preferred = preferred
        self._resting = resting
        self._walk = PartitionWalk(settings.partitions, rng)
        self._targets: list[tuple[int, int | None]] = []
        self._due: dict[Any, int] = {}
        self._in_vain: set[Any] = set()
        self._repaired: set[Any] = set()
        self._look = True
        self._next_look = 0.0
        self._sleeps_until: datetime | None = None
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._backoff = Backoff(rng)

    def wake(self, due_at: datetime | None = None) -> None:
        """Look again at once: a slot became free, or a record came that is due at ``due_at``.

        One that becomes due when the next look comes anyway needs none of its own.
        """
        if due_at is None or self._sleeps_until is None or due_at < self._sleeps_until:
            self._wake.set()

    async def run(self) -> None:
        """Acquire until :meth:`stop`. An unreachable server is reported once and asked again, less and less often."""
        while not self._stopping.is_set() and not cancelled():
            try:
                pause = await self.run_once()
            except StoreError as error:
                self._look = True
                if not await self._mended(error):
                    self._report(error)
                    await _wait_for(self._stopping, self._backoff.next())
            else:
                self._recovered()
                await self._sleep(pause)

    def stop(self) -> None:
        """End :meth:`run` after the step that is under way: what its claim wins must be started, not left locked."""
        self._stopping.set()
        self.wake()

    async def run_once(self) -> float:
        """Make one step, a look or a claim, and return how many seconds nothing needs to be done."""
        self._wake.clear()
        self._sleeps_until = None
        room = self._room()
        if room.limit and (self._look or time.monotonic() >= self._next_look):
            pause = await self._look_around(room)
            self._resting(pause > 0)
            return pause
        self._resting(False)
        if not room.limit:
            return self._settings.poll_interval
        await self._claim(room)
        return 0.0

    async def _look_around(self, room: Room) -> float:
        view = await self._queue.survey(room.names)
        self._next_look = time.monotonic() + self._poll()
        if view.expired and await self._take_over(room):
            return 0.0  # and look again: there may be more
        if await self._repair(view.misplaced):
            return 0.0  # and look again: they can be claimed now
        self._in_vain &= view.due.keys()
        due = {record: partition for record, partition in view.due.items() if record not in self._in_vain}
        self._due, self._targets = due, _targets(due, complete=view.complete)
        self._random.shuffle(self._targets)
        self._look = not due
        if due:
            return 0.0
        self._in_vain.clear()
        self._repaired.clear()
        return self._until(view.next_due_at)

    async def _repair(self, misplaced: Sequence[Misplaced]) -> bool:
        # Once between two sleeps: what cannot be repaired must not keep the loop spinning.
        self._repaired &= {item.id for item in misplaced}
        new = [item for item in misplaced if item.id not in self._repaired]
        if new:
            await self._queue.repair(new)
            self._repaired.update(item.id for item in new)
            self._look = True
        return bool(new)

    async def _take_over(self, room: Room) -> bool:
        limit = min([room.limit, self._settings.max_batch, *room.caps.values()])
        sent = time.monotonic()
        taken = await self._queue.take_over(room.names, limit)
        for record in taken:
            self._start(record, sent)
        self._look = bool(taken)
        return self._look

    async def _claim(self, room: Room) -> None:
        partition, expected = self._targets.pop() if self._targets else (self._walk.next(), None)
        for request in self._requests(room, partition, expected):
            sent = time.monotonic()
            claims = await self._protocol.claim(request)
            for record in claims.records:
                self._start(record, sent)
            if claims.records or claims.contended:
                self._look = expected is not None and not self._targets  # that was all there was
                return
        self._came_up_empty(partition)

    def _came_up_empty(self, partition: int) -> None:
        # A record that a look reported and that no claim wins, because a rival did or because something is wrong with
        # it, must not keep the loop spinning: it counts again after the next sleep.
        self._in_vain.update(record for record, where in self._due.items() if where == partition)
        self._look = not self._targets

    def _requests(self, room: Room, partition: int, expected: int | None) -> Iterator[ClaimRequest]:
        """One claim, unless there are more names than one by name can take: then one after another covers them all."""
        shape = self._shape(room)
        names, step = room.names, len(room.names)
        if shape is Shape.BY_NAME and step > MAX_SORTED_NAMES:
            names, step = self._random.sample(names, step), MAX_SORTED_NAMES
        limit = min(room.limit, self._settings.max_batch, expected or self._settings.max_batch)
        for start in range(0, len(names), step):
            yield ClaimRequest(
                partition=partition,
                names=names[start : start + step],
                limit=limit,
                caps=room.caps,
                shape=shape,
                now=self._queue.now(),
                leases=self._settings.leases,
                worker=self._settings.worker,
            )

    def _shape(self, room: Room) -> Shape:
        # By priority a claim walks over the records of every name it may not take, so all names must have room.
        return self._preferred() if room.complete else Shape.BY_NAME

    def _poll(self) -> float:
        # Workers that were woken together drift apart; never by more than a user would notice.
        return self._settings.poll_interval + self._random.uniform(0.0, min(0.05, self._settings.poll_interval / 20))

    def _until(self, next_due_at: datetime | None) -> float:
        pause, now = max(0.0, self._next_look - time.monotonic()), self._queue.now()
        if next_due_at is not None:
            pause = min(pause, max(0.001, (next_due_at - now).total_seconds()))
        self._sleeps_until = now + timedelta(seconds=pause)
        return pause

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            await _wait_for(self._wake, seconds)
        else:
            await asyncio.sleep(0)

    async def _mended(self, error: StoreError) -> bool:
        """Whether ``error`` was a missing index, and is mended."""
        if not is_refused_hint(error):
            return False
        try:
            return await self._queue.mend_indexes()
        except StoreError:
            return False  # the next refusal is another opportunity

    def _report(self, error: StoreError) -> None:
        if self._backoff.fresh:
            logger.warning("no jobs can be claimed: %s", error, extra={"event": "claim_failed"})

    def _recovered(self) -> None:
        if not self._backoff.fresh:
            logger.info("jobs can be claimed again", extra={"event": "claim_recovered"})
            self._backoff.reset()


def _targets(due: Mapping[Any, int], *, complete: bool) -> list[tuple[int, int | None]]:
    """Return the partitions where records are due, each with how many if that is known.

    A claim of one record is one command, and one of several is three.
    """
    return [(partition, count if complete else None) for partition, count in Counter(due.values()).items()]


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
