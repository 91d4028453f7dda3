"""The read model: what people want to know of a queue. Command line, dashboard and metrics read it; no worker does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from bson.datetime_ms import DatetimeMS
from pymongo.errors import OperationFailure

from gangline.jobs.record import JobType
from gangline.store.codec import instant
from gangline.store.connection import Connection, Document
from gangline.store.eligibility import Filter
from gangline.store.schema import DEAD


class State(StrEnum):
    """The state of a record, as it follows from its fields at one instant."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    STALE = "stale"
    DEAD = "dead"


_DEAD_EVENT: Filter = {"type": JobType.EVENT.value, "status": DEAD}
_ALIVE: Filter = {"maxTriesReachedAt": None, "$nor": [_DEAD_EVENT]}


def in_state(state: State, now: datetime) -> Filter:
    """Return the filter for records that are in ``state`` at ``now``."""
    # By `$not` and `$lte`, since what is no date is never reached: claims and recovery treat it so.
    match state:
        case State.DEAD:
            return {"$or": [{"maxTriesReachedAt": {"$ne": None}}, _DEAD_EVENT]}
        case State.RUNNING:
            return {**_ALIVE, "lockedUntil": {"$ne": None, "$not": {"$lte": now}}}
        case State.STALE:
            return {**_ALIVE, "lockedUntil": {"$ne": None, "$lte": now}}
        case State.READY:
            return {**_ALIVE, "lockedUntil": None, "nextRunAt": {"$lte": now}}
        case State.SCHEDULED:
            return {**_ALIVE, "lockedUntil": None, "nextRunAt": {"$not": {"$lte": now}}}


@dataclass(frozen=True, kw_only=True)
class JobCounts:
    """How many records of one job name are in each state, and since when the oldest of them waits."""

    name: str
    type: str
    scheduled: int = 0
    ready: int = 0
    running: int = 0
    stale: int = 0
    dead: int = 0
    oldest_due: datetime | None = None


class Insights:
    """Answers questions about a queue."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def now(self) -> datetime:
        """Return the server's time, by which the states are told."""
        await self._connection.ensure_server_time()
        return self._connection.clock.now()

    async def counts(self) -> list[JobCounts]:
        """Return the counts per job name and type, by name. Reads every record once."""
        now = await self.now()
        cursor = await self._connection.records.aggregate(_counting(now))
        [facets] = await cursor.to_list()
        return _counts(facets)

    async def jobs(self, *, state: State | None = None, name: str | None = None, limit: int = 50) -> list[Document]:
        """Return up to ``limit`` records with their ``state``, those that are due first in front."""
        now = await self.now()
        chosen: Filter = {} if state is None else in_state(state, now)
        if name is not None:
            chosen["jobName"] = name
        found = self._connection.records.find(chosen, {"params": 0}).sort("nextRunAt", 1).limit(limit)
        return [with_state(document, now) for document in await found.to_list()]

    async def job(self, job_id: str) -> Document | None:
        """Return one record with its ``state``, or ``None``."""
        now = await self.now()
        document = await self._connection.records.find_one({"_id": job_id})
        return None if document is None else with_state(document, now)

    async def executions(self, job_id: str, *, limit: int = 20) -> list[Document]:
        """Return the last executions of a job, the newest first. Reads the history from its end."""
        found = self._connection.history.find({"jobId": job_id}).sort("_id", -1).limit(limit)
        return await found.to_list()

    async def count_executions(self, name: str) -> int:
        """Return how many executions of one job name the history holds; reads an index."""
        return await self._connection.history.count_documents({"jobName": name})

    async def executions_of(self, name: str) -> AsyncIterator[Document]:
        """Give all executions of one job name that the history holds, the oldest first."""
        async for execution in self._connection.history.find({"jobName": name}).sort("startedAt", 1):
            yield execution

    async def write_conflicts(self) -> int | None:
        """Return how many write conflicts the server has counted since its start.

        ``None`` without the right to ask, and from a router or another server that does not count them.
        """
        try:
            status: Document = await self._connection.records.database.command("serverStatus")
        except OperationFailure:
            return None
        conflicts = status.get("metrics", {}).get("operation", {}).get("writeConflicts")
        return None if conflicts is None else int(conflicts)


def with_state(document: Document, now: datetime) -> Document:
    """Return ``document`` with its ``state`` at ``now``."""
    return {**document, "state": state_of(document, now).value}


def state_of(document: Document, now: datetime) -> State:
    """Return the state of a record at ``now``; the same as :func:`in_state` finds it in."""
    if _has(document, "maxTriesReachedAt") or _is_dead_event(document):
        return State.DEAD
    if _has(document, "lockedUntil"):
        return State.STALE if _reached(document, "lockedUntil", now) else State.RUNNING
    return State.READY if _reached(document, "nextRunAt", now) else State.SCHEDULED


def _is_dead_event(document: Document) -> bool:
    return all(value in _values(document, field) for field, value in _DEAD_EVENT.items())


def _has(document: Document, field: str) -> bool:
    return None not in _values(document, field)


def _reached(document: Document, field: str, now: datetime) -> bool:
    dates = (value for value in _values(document, field) if isinstance(value, datetime | DatetimeMS))
    return any(instant(date) <= now for date in dates)


def _values(document: Document, field: str) -> list[Any]:
    """What a filter on ``field`` looks at: a foreign program's array counts by its elements too."""
    value = document.get(field)
    return [value, *value] if isinstance(value, list) else [value]


def _counting(now: datetime) -> list[Document]:
    by_job = {
        "$group": {
            "_id": {"name": "$jobName", "type": "$type"},
            "count": {"$sum": 1},
            "oldest": {"$min": "$nextRunAt"},
        }
    }
    fields = ("jobName", "type", "nextRunAt", "lockedUntil", "status", "maxTriesReachedAt")
    return [
        {"$project": dict.fromkeys(fields, 1)},
        {"$facet": {state.value: [{"$match": in_state(state, now)}, by_job] for state in State}},
    ]


def _counts(facets: Document) -> list[JobCounts]:
    rows: defaultdict[tuple[str, str], Document] = defaultdict(dict)
    for state, groups in facets.items():
        for group in groups:
            row = rows[str(group["_id"].get("name")), str(group["_id"].get("type"))]
            row[state] = row.get(state, 0) + group["count"]
            if state == State.READY and isinstance(group["oldest"], datetime):
                row["oldest_due"] = group["oldest"]
    return [JobCounts(name=name, type=kind, **row) for (name, kind), row in sorted(rows.items())]
