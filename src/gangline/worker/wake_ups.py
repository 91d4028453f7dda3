"""Wakes the scheduler when a record comes or is freed, by a change stream that is open only while the worker rests.

Polling goes on as it would without: a wake-up that is lost costs a poll interval and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import Random
from typing import Protocol

from gangline.store.changes import Change, has_no_streams
from gangline.store.errors import StoreError, summary
from gangline.worker.backoff import Backoff
from gangline.worker.cancellation import cancelled, heed_cancellation

logger = logging.getLogger("gangline.wake_ups")


class Changes(Protocol):
    """An open stream."""

    async def next(self) -> Change | None:
        """Wait for a change, or for nothing long enough."""


class WakeUps:
    """Opens a stream while the worker rests, and closes it when it has been busy for a while."""

    def __init__(
        self,
        open_changes: Callable[[], AbstractAsyncContextManager[Changes]],
        wake: Callable[[datetime | None], None],
        rng: Random,
        *,
        patience: float,
    ) -> None:
        """``wake`` gets the instant that a record is due.

        ``patience`` is how many seconds a worker may be busy before its stream is closed: where jobs trickle in, each
        would cost two commands otherwise, and a look.
        """
        self._open = open_changes
        self._wake = wake
        self._patience = patience
        self._wanted = asyncio.Event()
        self._closing: asyncio.TimerHandle | None = None
        self._listening: asyncio.Future[None] | None = None
        self._backoff = Backoff(rng)

    def resting(self, rests: bool) -> None:
        """Be told whether the worker has nothing to do but to wait."""
        if rests:
            self._cancel_closing()
            self._wanted.set()
        elif self._wanted.is_set() and self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(self._patience, self._close)

    async def run(self) -> None:
        """Listen while the worker rests, until cancelled. Returns if the server has no streams, and says so once."""
        try:
            while not cancelled():
                await self._wanted.wait()
                if not await self._listen_cancellably():
                    return
        finally:
            self._cancel_closing()

    def _cancel_closing(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _close(self) -> None:
        self._closing = None
        self._wanted.clear()
        if self._listening is not None:
            self._listening.cancel()

    async def _listen_cancellably(self) -> bool:
        """Listen until the worker is busy; return whether it is worth coming back."""
        self._listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({self._listening})
        finally:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        error = None if self._listening.cancelled() else self._listening.exception()
        if isinstance(error, StoreError):
            return await self._broke(error)
        if error is not None:
            raise error
        return True

    async def _listen(self) -> None:
        async with self._open() as changes:
            self._wake(None)  # what came before the stream was open
            while True:
                change = await changes.next()
                heed_cancellation()
                self._backoff.reset()
                if change is not None:
                    self._wake(change.due_at)

    async def _broke(self, error: StoreError) -> bool:
        reason = has_no_streams(error)
        if reason is not None:
            logger.info(
                "new jobs are found by polling: %s", reason, extra={"event": "wake_ups_unavailable", "reason": reason}
            )
            return False
        if self._backoff.fresh:
            logger.info(
                "new jobs are found by polling for now: %s", summary(error), extra={"event": "wake_ups_interrupted"}
            )
        await asyncio.sleep(self._backoff.next())
        return True
