"""Tells people which workers run: this one publishes itself, once a minute and when something of it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from gangline.store.errors import StoreError
from gangline.store.registry import PUBLISH_EVERY, WorkerEntry
from gangline.worker.cancellation import heed_cancellation

logger = logging.getLogger("gangline.presence")


class Publishes(Protocol):
    """The store's side of it."""

    def publish(self, entry: WorkerEntry) -> Awaitable[None]:
        """Write the entry."""

    def withdraw(self, name: str) -> Awaitable[None]:
        """Delete the entry."""


class Presence:
    """Keeps the entry of one worker in the registry. Nothing depends on it, so a failure is only logged."""

    def __init__(self, registry: Publishes, entry: Callable[[], WorkerEntry]) -> None:
        self._registry = registry
        self._entry = entry
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Publish again soon."""
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self.run_once()
            heed_cancellation()
            try:
                async with asyncio.timeout(PUBLISH_EVERY.total_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def run_once(self) -> None:
        """Publish now."""
        self._changed.clear()
        await self._attempt(self._registry.publish(self._entry()))

    async def withdraw(self) -> None:
        """Delete the entry; the worker stops."""
        await self._attempt(self._registry.withdraw(self._entry().name))

    async def _attempt(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except StoreError as error:
            logger.info("the worker's entry could not be written: %s", error, extra={"event": "presence_failed"})
