"""Where rows are measured: a database of the benchmark's own, and bars that show how far it is."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gangline.bench.queue import opened
from gangline.bench.report import Progress, Row
from gangline.cli.bench.output import Fields
from gangline.cli.own_database import own_database
from gangline.cli.progress import shown_progress

Settings = TypeVar("Settings")
Measured = TypeVar("Measured", bound=Row)


class Bench:
    """A server to measure on."""

    def __init__(self, uri: str, server: Fields, progress: Progress) -> None:
        self._uri = uri
        self.server = server
        self._progress = progress

    @property
    def sorted_updates(self) -> bool:
        """Whether the server can do sorted updates."""
        return bool(self.server["sorted_updates"])

    def rows(
        self, measure: Callable[[str, Settings, Progress], Measured], settings: Sequence[Settings]
    ) -> list[Measured]:
        """Measure one row after another."""
        return [measure(self._uri, each, self._progress) for each in settings]


@contextmanager
def measured(uri: str | None, mongod: str | None) -> Iterator[Bench]:
    """Give a place to measure in, at ``uri`` or on an embedded server; it is gone afterwards."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with own_database("bench", uri, mongod) as database, shown_progress(quiet=False) as progress:
        yield Bench(database, asyncio.run(_server(database)), progress)


async def _server(uri: str) -> Fields:
    async with opened(uri) as connection:
        info = await connection.records.database.client.server_info()
        capabilities = await connection.capabilities()
    return {"version": info["version"], "sorted_updates": capabilities.sorted_update}
