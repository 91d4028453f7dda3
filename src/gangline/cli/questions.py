"""How a command asks the queue something: no app module is needed, only the address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gangline.app import Gangline
from gangline.cli.options import needed
from gangline.store.insights import Insights

Answer = TypeVar("Answer")


def ask(uri: str | None, prefix: str, question: Callable[[Insights], Awaitable[Answer]]) -> Answer:
    """Return the answer of the queue at ``uri``."""
    return asyncio.run(_asked(needed(uri), prefix, question))


async def _asked(uri: str, prefix: str, question: Callable[[Insights], Awaitable[Answer]]) -> Answer:
    async with Gangline(uri, prefix=prefix) as app:
        return await question(app.insights)
