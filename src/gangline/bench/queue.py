"""A queue to measure on: an own database, filled with records that are due."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pymongo import IndexModel

from gangline.bench.reference import plain_indexes
from gangline.store.connection import Address, Connection, Document
from gangline.store.schema import DEFAULT_PREFIX, HISTORY_INDEXES, RECORD_INDEXES, Index

JOB = "bench"
LONG_DUE = datetime(2024, 1, 1, tzinfo=UTC)
_PORTION = 5_000


@asynccontextmanager
async def opened(uri: str, *, sockets: int = 100) -> AsyncIterator[Connection]:
    """Give a connection with up to ``sockets`` sockets."""
    parts = urlsplit(uri)
    query = urlencode({**dict(parse_qsl(parts.query)), "maxPoolSize": max(sockets, 1)})
    connection = Connection(Address.parse(urlunsplit(parts._replace(query=query)), prefix=DEFAULT_PREFIX))
    try:
        await connection.capabilities()
        yield connection
    finally:
        await connection.close()


def job_id(number: int) -> str:
    """Return the id of the record with this number."""
    return f"job-{number:08d}"


def due_records(count: int, partitions: int, **fields: Any) -> Iterator[Document]:
    """Give ``count`` records that are due, spread over the partitions, oldest first, with ``fields`` besides."""
    for number in range(count):
        yield {
            "_id": job_id(number),
            "jobName": JOB,
            "type": "event",
            "priority": 100,
            "nextRunAt": LONG_DUE + number * timedelta(milliseconds=1),
            "partition": number % partitions,
            "params": None,
            "tries": 0,
            "createdAt": LONG_DUE,
            **fields,
        }


async def fill(connection: Connection, records: Iterator[Document]) -> None:
    """Insert ``records``."""
    portion: list[Document] = []
    for record in records:
        portion.append(record)
        if len(portion) == _PORTION:
            await connection.records.insert_many(portion, ordered=False)
            portion = []
    if portion:
        await connection.records.insert_many(portion, ordered=False)


async def start_over(connection: Connection, *, plain: bool) -> None:
    """Empty the queue and give it Gangline's indexes, or the ``plain`` ones of the reference."""
    await connection.records.drop()
    await connection.history.drop()
    await connection.records.create_indexes(plain_indexes() if plain else _models(RECORD_INDEXES))
    await connection.history.create_indexes(_models(HISTORY_INDEXES))


def _models(indexes: Sequence[Index]) -> list[IndexModel]:
    return [IndexModel(list(index.keys), **index.options) for index in indexes]
