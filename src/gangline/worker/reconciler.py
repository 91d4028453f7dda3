"""Keeps the queue inside the partitions: repairs records that no claim would ask for, and says where they come from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Protocol

from gangline.store.errors import StoreError
from gangline.store.reconcile import BATCH, Misplaced
from gangline.worker.cancellation import heed_cancellation

logger = logging.getLogger("gangline.reconciler")

INTERVAL_SECONDS = 5 * 60.0
PAUSE_SECONDS = 0.1  # between full batches: a roll-out over a large queue must not crowd out the claims


class Repairs(Protocol):
    """The store's side of the reconciler."""

    async def find_misplaced(self) -> Sequence[Misplaced]:
        """Return up to a batch of records outside the range."""

    async def repair(self, misplaced: Sequence[Misplaced]) -> int:
        """Repair those that are still outside, and return how many."""

    async def others(self) -> Sequence[str]:
        """Name the workers that run with another number of partitions."""

    def now(self) -> datetime:
        """Return the server's time."""


class Reconciler:
    """Repairs at start and every five minutes, and between that whatever a survey comes across."""

    def __init__(self, repairs: Repairs, partitions: int, rng: Random) -> None:
        self._repairs = repairs
        self._partitions = partitions
        self._random = rng
        self._in_order_since: datetime | None = None
        self._warned = False

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            try:
                pause = await self.run_once()
            except StoreError as error:
                logger.info("partitions could not be reconciled: %s", error, extra={"event": "reconcile_failed"})
                pause = INTERVAL_SECONDS
            heed_cancellation()
            await asyncio.sleep(pause)

    async def run_once(self) -> float:
        """Repair one batch and return the seconds until the next."""
        misplaced = await self._repairs.find_misplaced()
        await self.repair(misplaced)
        if len(misplaced) >= BATCH:
            return PAUSE_SECONDS
        self._in_order_since = self._in_order_since or self._repairs.now()
        return INTERVAL_SECONDS * self._random.uniform(0.9, 1.1)

    async def repair(self, misplaced: Sequence[Misplaced]) -> None:
        """Repair ``misplaced`` records, wherever they were found."""
        if not misplaced:
            return
        repaired = await self._repairs.repair(misplaced)
        if repaired:
            logger.info(
                "%d records got a partition below %d", repaired, self._partitions, extra={"event": "reconciled"}
            )
        await self._warn_of_others([item for item in misplaced if self._is_fresh(item)])

    def _is_fresh(self, item: Misplaced) -> bool:
        """Whether someone wrote it after the queue was in order, with a partition of a larger queue."""
        if self._in_order_since is None or item.created_at is None or not isinstance(item.partition, int | float):
            return False
        return item.partition >= self._partitions and item.created_at > self._in_order_since

    async def _warn_of_others(self, fresh: Sequence[Misplaced]) -> None:
        if not fresh or self._warned:
            return
        self._warned = True
        logger.warning(
            "records keep arriving outside the %d partitions of this worker, the last in partition %s: another program "
            "uses this queue with more partitions (%s). Give all of them the same number",
            self._partitions,
            fresh[-1].partition,
            ", ".join(await self._others()) or "no worker of Gangline's, so a producer or a Node worker",
            extra={"event": "partitions_differ"},
        )

    async def _others(self) -> Sequence[str]:
        try:
            return await self._repairs.others()
        except StoreError:
            return ["it is not known which"]  # the warning matters more than the names
