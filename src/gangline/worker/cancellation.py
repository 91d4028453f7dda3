"""Noticing a cancellation that was swallowed on its way."""

from __future__ import annotations

import asyncio


def cancelled() -> bool:
    """Whether the current task was asked to end.

    A loop around calls of the driver asks this each time: a cancellation that arrives together with the driver's answer
    is swallowed there (by ``asyncio.wait_for`` before Python 3.12), and comes no second time.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def heed_cancellation() -> None:
    """Raise ``CancelledError`` if the current task was asked to end; call it before a long sleep."""
    if cancelled():
        raise asyncio.CancelledError
