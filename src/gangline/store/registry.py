"""Which workers run: for people and for warnings. Nothing depends on it for correctness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gangline.store.connection import Connection, Document

PUBLISH_EVERY = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class WorkerEntry:
    """What a worker tells of itself."""

    name: str
    host: str
    pid: int
    version: str
    partitions: int
    concurrency: int
    jobs: Mapping[str, str]
    claim_protocol: str
    shape: str
    started_at: datetime
    seen_at: datetime | None = None


class Registry:
    """Publishes and lists workers. An entry that is not renewed for three minutes is deleted by the server."""

    def __init__(self, connection: Connection) -> None:
        self._workers = connection.workers

    async def publish(self, entry: WorkerEntry) -> None:
        """Write ``entry`` as seen now."""
        fields = {
            "host": entry.host,
            "pid": entry.pid,
            "version": entry.version,
            "partitions": entry.partitions,
            "concurrency": entry.concurrency,
            "jobs": [{"name": name, "type": kind} for name, kind in entry.jobs.items()],
            "claimProtocol": entry.claim_protocol,
            "shape": entry.shape,
            "startedAt": entry.started_at,
        }
        update: list[Document] = [{"$set": {**_literally(fields), "seenAt": "$$NOW"}}]
        await self._workers.update_one({"_id": entry.name}, update, upsert=True)

    async def withdraw(self, name: str) -> None:
        """Delete the entry of a worker that stops."""
        await self._workers.delete_one({"_id": name})

    async def workers(self) -> list[WorkerEntry]:
        """Return the entries of all workers that run, by name."""
        return [_entry(document) for document in await self._workers.find().sort("_id", 1).to_list()]


def _literally(fields: Document) -> Document:
    return {name: {"$literal": value} for name, value in fields.items()}


def _entry(document: Document) -> WorkerEntry:
    jobs: list[dict[str, Any]] = document["jobs"]
    return WorkerEntry(
        name=document["_id"],
        host=document["host"],
        pid=document["pid"],
        version=document["version"],
        partitions=document["partitions"],
        concurrency=document["concurrency"],
        jobs={job["name"]: job["type"] for job in jobs},
        claim_protocol=document["claimProtocol"],
        shape=document["shape"],
        started_at=document["startedAt"],
        seen_at=document["seenAt"],
    )
