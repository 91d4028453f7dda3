"""Takes over records whose lease ended before their execution settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.batch import take
from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import LeaseLengths, Records
from gangline.store.connection import Document
from gangline.store.eligibility import expired
from gangline.store.schema import LOCKED

_FIELDS = ("jobName", "type", "priority", "tries", "uniqueIdentifier", "lastRunAt", "lockId", "lockedBy", "lockedUntil")


@dataclass(frozen=True)
class TakenOver:
    """Records that changed hands, and by record id the document as the lost execution left it."""

    records: tuple[ClaimedRecord, ...]
    left: Mapping[str, Document]


class ExpiredLeases:
    """Finds expired leases on an index that holds locked records only, in any partition, oldest first.

    An expired record is claimed from there and not set free: so it neither slows the ordinary claim nor waits behind a
    full backlog, and the new execution knows what it takes over.
    """

    def __init__(self, records: Records, hint: Hint = by_name) -> None:
        self._records = records
        self._hint = hint

    async def take_over(
        self, names: Sequence[str], limit: int, *, now: datetime, leases: LeaseLengths, worker: str
    ) -> TakenOver:
        """Claim up to ``limit`` expired records of ``names``.

        Raises:
            pymongo.errors.PyMongoError: as for :meth:`ClaimProtocol.claim`.
        """
        eligible = expired(names, now)
        cursor = self._records.find(eligible, _FIELDS).sort("lockedUntil", 1).hint(self._hint(LOCKED))
        left = {document["_id"]: document for document in await cursor.limit(limit).batch_size(limit).to_list()}
        if not left:
            return TakenOver((), {})
        won = await take(self._records, list(left), eligible, leases, worker, was_stale=True)
        return TakenOver(won, {record.id: left[record.id] for record in won})
