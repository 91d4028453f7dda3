"""How a command works on the queue itself, where insights are not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gangline.cli.options import needed
from gangline.jobs.settings import collection_prefix
from gangline.store.connection import Address, Connection

Answer = TypeVar("Answer")


def connected(uri: str | None, prefix: str, action: Callable[[Connection], Awaitable[Answer]]) -> Answer:
    """Return what ``action`` gives on a connection to the queue at ``uri``."""
    return at(Address.parse(needed(uri), prefix=collection_prefix(prefix)), action)


def at(address: Address, action: Callable[[Connection], Awaitable[Answer]]) -> Answer:
    """Return what ``action`` gives on a connection to the queue at ``address``."""
    return asyncio.run(_connected(address, action))


async def _connected(address: Address, action: Callable[[Connection], Awaitable[Answer]]) -> Answer:
    connection = Connection(address)
    try:
        return await action(connection)
    finally:
        await connection.close()
