"""The reference ``dogs``: plain indexes, one ``findOneAndUpdate`` a job, the lock condition in the filter.

It is what the design page describes, written for this driver: same server, same machine, same client language, so that
a ratio tells of the design and of nothing else.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from pymongo import ASCENDING, IndexModel, ReturnDocument

from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.protocol import ClaimRequest, Claims, Records
from gangline.store.codec import claimed_record
from gangline.store.connection import Document
from gangline.store.schema import DEAD, DEAD_TTL, LOCK_ID, UNIQUE_IDENTIFIER, UNIQUE_RECURRENT

_SORT = {"priority": -1, "nextRunAt": 1}
_BY_NAME = {"partition": 1, "jobName": 1, **_SORT}
_BY_PRIORITY = {"partition": 1, **_SORT}
_LEASE = timedelta(seconds=300)


class Dogs:
    """Claims one record over the plain index."""

    name = "dogs"

    def __init__(self, records: Records) -> None:
        self._records = records

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim by ``findOneAndUpdate``."""
        document = await self._records.find_one_and_update(
            _selector(request),
            {
                "$set": {
                    "lockId": secrets.token_hex(9),
                    "lockedUntil": request.now + _LEASE,
                    "lastRunAt": request.now,
                },
                "$inc": {"tries": 1},
            },
            sort=list(_SORT.items()),
            hint=list(_BY_NAME.items()),
            return_document=ReturnDocument.AFTER,
        )
        return Claims((claimed_record(document),)) if document else Claims()


class DogsSorted:
    """Claims one record over the plain index by a sorted ``updateOne``, as ``dogs`` does on MongoDB 8."""

    name = "dogs-sorted-update"

    def __init__(self, records: Records) -> None:
        self._records = records

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim, and read back by the lock id."""
        lock_id = secrets.token_hex(9)
        fields = {
            "lockId": {"$literal": lock_id},
            "lockedUntil": {"$literal": request.now + _LEASE},
            "lastRunAt": {"$literal": request.now},
            "tries": {"$add": [{"$ifNull": ["$tries", 0]}, 1]},
        }
        result = await self._records.update_one(
            _selector(request), [{"$set": fields}], sort=_SORT, hint=list(_BY_NAME.items())
        )
        document = await self._records.find_one({"lockId": lock_id}) if result.matched_count else None
        return Claims((claimed_record(document),)) if document else Claims()


def _selector(request: ClaimRequest) -> Document:
    return {
        "partition": request.partition,
        "jobName": {"$in": list(request.names)},
        "nextRunAt": {"$lte": request.now},
        "$or": [{"lockedUntil": {"$exists": False}}, {"lockedUntil": {"$lte": request.now}}],
        "$nor": [{"type": "event", "status": DEAD}],
    }


def plain_indexes() -> list[IndexModel]:
    """Return the indexes of the reference."""
    shared = (LOCK_ID, UNIQUE_RECURRENT, UNIQUE_IDENTIFIER, DEAD_TTL)
    return [
        IndexModel(list(_BY_NAME.items()), name="plain_by_name"),
        IndexModel(list(_BY_PRIORITY.items()), name="plain_by_priority"),
        *(IndexModel([(key, ASCENDING) for key, _ in index.keys], **index.options) for index in shared),
    ]


async def settle(records: Records, history: Records | None, record: ClaimedRecord) -> None:
    """Write the history of a job that ended well and remove its record, one after the other."""
    if history is not None:
        await history.insert_one(entry(record.id, record.lease.lock_id, record.claimed_at))
    await records.delete_one({"_id": record.id, "type": "event", "lockId": record.lease.lock_id})


def entry(job_id: str, lock_id: str, started: datetime) -> Document:
    """Return the history of a job that ended well, with as many fields as the product writes."""
    return {
        "_id": lock_id,
        "jobId": job_id,
        "executionId": lock_id,
        "jobName": "bench",
        "type": "event",
        "priority": 100,
        "tries": 1,
        "startedAt": started,
        "endedAt": started,
        "duration": 0,
        "expiresAt": started + timedelta(weeks=1),
        "status": "success",
        "params": None,
        "worker": "bench",
    }
