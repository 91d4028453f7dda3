"""A change stream over the records: it tells at once when one may have become claimable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pymongo
from bson.datetime_ms import DatetimeMS
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.errors import OperationFailure

from gangline.store.codec import instant
from gangline.store.connection import OPERATION_SECONDS, Connection, Document
from gangline.store.errors import StoreError

AWAIT_SECONDS = 60
"""How long the server holds an unanswered question: with the looks of a worker, one command a second at the most."""

_STANDALONE = 40573
_UNAUTHORIZED = 13


@dataclass(frozen=True, slots=True)
class Change:
    """A record came, or was freed.

    Attributes:
        due_at: when it is due; ``None`` if the change does not tell.
    """

    due_at: datetime | None


class Changes:
    """An open stream."""

    def __init__(self, stream: AsyncChangeStream[Document]) -> None:
        self._stream = stream

    async def next(self) -> Change | None:
        """Wait for a change, a minute at the most; ``None`` if there was none.

        Raises:
            pymongo.errors.PyMongoError: the stream broke; whatever comes after it is not told.
        """
        # The time of an operation would end the wait, and with it the stream.
        with pymongo.timeout(AWAIT_SECONDS + OPERATION_SECONDS):
            event = await self._stream.try_next()
        return None if event is None else Change(_instant(event.get("due")))


@asynccontextmanager
async def open_changes(connection: Connection, names: Sequence[str]) -> AsyncIterator[Changes]:
    """Open a stream of what may become claimable among ``names``, from now on.

    Raises:
        pymongo.errors.PyMongoError: it could not be opened; see :func:`has_no_streams`.
    """
    if connection.max_sockets == 1:  # the stream would hold it, and claims wait for it
        raise DriverConfigurationError("the URI allows a single socket by maxPoolSize")
    async with await connection.records.watch(_pipeline(names), max_await_time_ms=AWAIT_SECONDS * 1000) as stream:
        yield Changes(stream)


def has_no_streams(error: StoreError) -> str | None:
    """Return why the server will not open streams, also not later; ``None`` if it may."""
    if isinstance(error, DriverConfigurationError):
        return str(error)
    if not isinstance(error, OperationFailure):
        return None
    reasons = {_STANDALONE: "the server is no replica set", _UNAUTHORIZED: "the user lacks the right to a changeStream"}
    return reasons.get(error.code or 0)


def _pipeline(names: Sequence[str]) -> list[dict[str, Any]]:
    """What comes or is freed. Claims, renewals and removals, which are most of the changes, end in the server."""
    came = {"operationType": {"$in": ["insert", "replace"]}, "fullDocument.jobName": {"$in": list(names)}}
    freed = {
        "operationType": "update",
        "$or": [
            {"updateDescription.removedFields": {"$in": ["lockedUntil", "maxTriesReachedAt"]}},
            {"updateDescription.updatedFields.nextRunAt": {"$exists": True}},
        ],
    }
    due = {"$ifNull": ["$fullDocument.nextRunAt", "$updateDescription.updatedFields.nextRunAt"]}
    return [{"$match": {"$or": [came, freed]}}, {"$project": {"due": due}}]


def _instant(value: Any) -> datetime | None:
    return instant(value) if isinstance(value, datetime | DatetimeMS) else None
