"""The history: one document per execution, whose ``_id`` is the execution's lock id.

An execution writes its history before it settles its record. So none is missing when a process dies between the two
writes, and none is there twice, since a repeated write meets its own ``_id``. The first status that was written for an
execution stays, with one exception: an execution that then finds its lease lost turns its own entry to ``stale``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import bson
from bson.errors import InvalidDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, DocumentTooLarge, OperationFailure

from gangline.jobs.lease import Lease
from gangline.jobs.outcome import MAX_MESSAGE, Outcome, Status, storable_text
from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.protocol import is_token
from gangline.store.codec import instant
from gangline.store.connection import CODEC, Document

DUPLICATE_KEY = 11000
MAX_DOCUMENT_BYTES = 16 * 1024 * 1024

_PAYLOAD = ("params", "result")
_UNSTORABLE = (InvalidDocument, DocumentTooLarge, OverflowError, UnicodeEncodeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution that ended: whose it was, when it ran, and how it came out."""

    record: ClaimedRecord
    outcome: Outcome
    started_at: datetime
    ended_at: datetime
    worker: str

    @property
    def lease(self) -> Lease:
        """The lease it ran under."""
        return self.record.lease


class History:
    """Writes and corrects the history; with ``keep`` zero it writes nothing."""

    def __init__(self, collection: AsyncCollection[Document], keep: timedelta) -> None:
        self._collection = collection
        self._keep = keep

    async def write(self, executions: Iterable[Execution]) -> None:
        """Write the history of ``executions``. An entry that exists already stays as it is."""
        if self._keep:
            await self._insert([self._document(execution) for execution in executions])

    async def turn_stale(self, leases: Sequence[Lease]) -> None:
        """Turn the entries of executions that lost their lease to ``stale``, unless their work was accepted."""
        if self._keep and leases:
            ids = [lease.lock_id for lease in leases]
            await self._collection.update_many(
                {"_id": {"$in": ids}, "acceptedBy": None}, {"$set": {"status": Status.STALE.value}}
            )

    async def taken_over(self, leases: Sequence[Lease]) -> set[Lease]:
        """Return those of ``leases`` whose records were taken over: their entries are ``stale``."""
        if not self._keep or not leases:
            return set()
        stale = {"_id": {"$in": [lease.lock_id for lease in leases]}, "status": Status.STALE.value}
        ids = {entry["_id"] for entry in await self._collection.find(stale, {"_id": 1}).to_list()}
        return {lease for lease in leases if lease.lock_id in ids}

    async def write_lost(self, left: Iterable[Document], *, by: str, now: datetime) -> set[str]:
        """Write ``stale`` for executions that died: ``left`` are their records as they left them.

        Returns the lock ids of those that had written an entry themselves.
        """
        if not self._keep:
            return set()
        return await self._insert([self._lost(document, by, now) for document in left if _is_own(document)])

    async def accept_success(self, lock_id: str, *, by: Lease) -> bool:
        """Whether execution ``lock_id`` had written its success before it lost the record that ``by`` now holds.

        If so the job is done and must not run again. The acceptance is marked, so that the lost execution, should it
        still live, no longer turns its entry to ``stale``.
        """
        if not self._keep:
            return False
        success = {"_id": lock_id, "status": Status.SUCCESS.value}
        result = await self._collection.update_one(success, {"$set": {"acceptedBy": by.lock_id}})
        return result.matched_count == 1

    async def _insert(self, documents: list[Document]) -> set[str]:
        """Insert ``documents`` and return the ids of those that were there already."""
        if not documents:
            return set()
        try:
            await self._collection.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            duplicates = _duplicates(error)
            if duplicates is None:
                return await self._insert_storable(documents, error)
            return {documents[index]["_id"] for index in duplicates}
        except (OperationFailure, *_UNSTORABLE) as error:
            return await self._insert_storable(documents, error)
        return set()

    async def _insert_storable(self, documents: list[Document], error: Exception) -> set[str]:
        """Insert after an ``error`` that may be due to what one of them holds: only now is it worth a look at each."""
        storable = [_storable(document) for document in documents]
        if all(map(operator.is_, storable, documents)):
            raise error
        return await self._insert(storable)

    def _document(self, execution: Execution) -> Document:
        record, outcome = execution.record, execution.outcome
        document = {
            **_identity(record.lease.lock_id, record.id, record.name, record.type, record.priority, record.tries),
            **_times(execution.started_at, execution.ended_at, self._keep),
            "status": outcome.status.value,
            "params": record.params,
            "worker": execution.worker,
        }
        optional = {"uniqueIdentifier": record.unique, "result": outcome.result}
        document.update({name: value for name, value in optional.items() if value is not None})
        if outcome.dismissed is not None:
            # The user's own text: what could not be stored would keep the whole entry from being written.
            document["dismissed"] = storable_text(str(outcome.dismissed))[:MAX_MESSAGE]
        if outcome.failure is not None:
            failure = outcome.failure
            document.update(errorType=failure.type, errorMessage=failure.message, errorTrace=failure.trace)
        return document

    def _lost(self, left: Document, by: str, now: datetime) -> Document:
        started = instant(left["lastRunAt"])
        name, kind, priority, tries = (left.get(key) for key in ("jobName", "type", "priority", "tries"))
        return {
            **_identity(left["lockId"], left["_id"], name, kind, priority, tries),
            **_times(started, now, self._keep),
            "status": Status.STALE.value,
            "worker": left["lockedBy"],
            "errorType": "LeaseLost",
            "errorMessage": f"its lease ended without an outcome; the record was taken over by {by}",
        }


def _identity(lock_id: str, job_id: Any, name: Any, kind: Any, priority: Any, tries: Any) -> Document:
    return {
        "_id": lock_id,
        "jobId": job_id,
        "executionId": lock_id,
        "jobName": name,
        "type": kind,
        "priority": priority,
        "tries": tries,
    }


def _times(started: datetime, ended: datetime, keep: timedelta) -> Document:
    return {
        "startedAt": started,
        "endedAt": ended,
        "duration": max(ended - started, timedelta(0)) // timedelta(milliseconds=1),
        "expiresAt": ended + keep,
    }


def _is_own(left: Mapping[str, Any]) -> bool:
    # A Node worker writes its own history, under ids of its own.
    return is_token(left.get("lockId")) and "lockedBy" in left and "lastRunAt" in left


def _duplicates(error: BulkWriteError) -> list[int] | None:
    """The places of those that were there already; ``None`` if anything else went wrong."""
    details = error.details or {}
    errors = details.get("writeErrors", [])
    if details.get("writeConcernErrors") or any(item["code"] != DUPLICATE_KEY for item in errors):
        return None
    return [item["index"] for item in errors]


def _storable(document: Document) -> Document:
    """``document``, or if it cannot be stored, it without params and result.

    What an execution came to must be told, whatever it returned.
    """
    reason = _obstacle(document)
    rest = {name: value for name, value in document.items() if name not in _PAYLOAD}
    if reason is None or len(rest) == len(document):
        return document
    reason = f"params and result are not kept: together they cannot be stored ({reason})"
    told = rest.get("errorMessage")
    return {**rest, "errorMessage": f"{told}; {reason}" if told else reason}


def _obstacle(document: Document) -> str | None:
    try:
        size = len(bson.encode(document, codec_options=CODEC))
    except _UNSTORABLE as error:
        return str(error)[:200]
    return f"{size:,} bytes, the server takes {MAX_DOCUMENT_BYTES:,}" if size > MAX_DOCUMENT_BYTES else None
