"""The read model: what people want to know of a queue. Command line, dashboard and metrics read it; no worker does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from pymongo.errors import OperationFailure

from gangline.jobs.record import JobType
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


def in_state(state: State, now: datetime) -> Filter:
    """Return the filter for records that are in ``state`` at ``now``."""
    match state:
        case State.DEAD:
            return {"maxTriesReachedAt": {"$ne": None}}
        case State.RUNNING:
            return {"maxTriesReachedAt": None, "lockedUntil": {"$gt": now}}
        case State.STALE:
            return {"maxTriesReachedAt": None, "lockedUntil": {"$lte": now}}
        case State.READY:
            return {"maxTriesReachedAt": None, "lockedUntil": None, "nextRunAt": {"$lte": now}}
        case State.SCHEDULED:
            return {"maxTriesReachedAt": None, "lockedUntil": None, "nextRunAt": {"$gt": now}}


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

    async def counts(self) -> list[JobCounts]:
        """Return the counts per job name and type, by name. Reads every record once."""
        now = self._connection.clock.now()
        cursor = await self._connection.records.aggregate(_counting(now))
        return [_counts(document) for document in await cursor.to_list()]

    async def jobs(self, *, state: State | None = None, name: str | None = None, limit: int = 50) -> list[Document]:
        """Return up to ``limit`` records with their ``state``, those that are due first in front."""
        now = self._connection.clock.now()
        chosen: Filter = {} if state is None else in_state(state, now)
        if name is not None:
            chosen["jobName"] = name
        found = self._connection.records.find(chosen, {"params": 0}).sort("nextRunAt", 1).limit(limit)
        return [with_state(document, now) for document in await found.to_list()]

    async def job(self, job_id: str) -> Document | None:
        """Return one record with its ``state``, or ``None``."""
        document = await self._connection.records.find_one({"_id": job_id})
        return None if document is None else with_state(document, self._connection.clock.now())

    async def executions(self, job_id: str, *, limit: int = 20) -> list[Document]:
        """Return the last executions of a job, the newest first. Reads the history from its end."""
        found = self._connection.history.find({"jobId": job_id}).sort("_id", -1).limit(limit)
        return await found.to_list()

    async def write_conflicts(self) -> int | None:
        """Return how many write conflicts the server has counted since its start; ``None`` without the right to ask."""
        try:
            status: Document = await self._connection.records.database.command("serverStatus")
        except OperationFailure:
            return None
        return int(status["metrics"]["operation"]["writeConflicts"])


def with_state(document: Document, now: datetime) -> Document:
    """Return ``document`` with its ``state`` at ``now``."""
    return {**document, "state": state_of(document, now).value}


def state_of(document: Document, now: datetime) -> State:
    """Return the state of a record at ``now``."""
    if document.get("maxTriesReachedAt") is not None or _is_dead_event(document):
        return State.DEAD
    locked_until = document.get("lockedUntil")
    if locked_until is not None:
        return State.RUNNING if _after(locked_until, now) else State.STALE
    return State.SCHEDULED if _after(document.get("nextRunAt"), now) else State.READY


def _is_dead_event(document: Document) -> bool:
    return document.get("status") == DEAD and document.get("type") == JobType.EVENT


def _after(value: Any, now: datetime) -> bool:
    return not isinstance(value, datetime) or value > now


def _counting(now: datetime) -> list[Document]:
    dead = {"$gt": ["$maxTriesReachedAt", None]}
    locked = {"$gt": ["$lockedUntil", None]}
    state = {
        "$switch": {
            "branches": [
                {"case": dead, "then": State.DEAD.value},
                {"case": {"$and": [locked, {"$gt": ["$lockedUntil", now]}]}, "then": State.RUNNING.value},
                {"case": locked, "then": State.STALE.value},
                {"case": {"$gt": ["$nextRunAt", now]}, "then": State.SCHEDULED.value},
            ],
            "default": State.READY.value,
        }
    }
    return [
        {"$project": {"jobName": 1, "type": 1, "nextRunAt": 1, "state": state}},
        {
            "$group": {
                "_id": {"name": "$jobName", "type": "$type"},
                **{name.value: {"$sum": {"$cond": [{"$eq": ["$state", name.value]}, 1, 0]}} for name in State},
                "oldest_due": {"$min": {"$cond": [{"$eq": ["$state", State.READY.value]}, "$nextRunAt", None]}},
            }
        },
        {"$sort": {"_id.name": 1, "_id.type": 1}},
    ]


def _counts(document: Document) -> JobCounts:
    key = document.pop("_id")
    return JobCounts(name=str(key.get("name")), type=str(key.get("type")), **document)
