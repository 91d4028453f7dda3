"""Repairing the partition of records that no claim would ever ask for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import Records
from gangline.store.connection import Document
from gangline.store.eligibility import Filter, alive
from gangline.store.schema import FREE, READY_BY_PRIORITY

BATCH = 500
FIELDS = ("partition", "createdAt", "nextRunAt", "lastRunAt")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A record outside the range: its id, its partition as it stands, and when it was made, as far as that is known.

    The Node side does not tell. Before its first claim a record of its own shows the instant that it was scheduled for,
    which is seldom later than the look that should have found it.
    """

    id: Any
    partition: Any
    created_at: datetime | None

    @classmethod
    def of(cls, document: Document) -> Misplaced:
        """Read it from ``document``."""
        never_claimed = document.get("lastRunAt") is None
        created_at = document.get("createdAt", document.get("nextRunAt") if never_claimed else None)
        return cls(
            document["_id"],
            document.get("partition"),
            created_at if isinstance(created_at, datetime) else None,
        )


def in_range(partition: Any, partitions: int) -> bool:
    """Whether claims of a queue with so many partitions ask for ``partition``."""
    if isinstance(partition, bool) or not isinstance(partition, int | float):
        return False
    return 0 <= partition < partitions and partition == int(partition)


async def find_misplaced(records: Records, partitions: int, hint: Hint = by_name) -> list[Misplaced]:
    """Return up to 500 records that are neither locked nor dead and whose partition no claim asks for.

    That is whatever is none of the partitions: missing, out of range, a fraction, no number at all. The server reads
    the gaps between them from a ready index: one key for each partition, however many records are well placed.
    """
    outside = {"partition": {"$nin": list(range(partitions))}, **FREE, **alive()}
    cursor = records.find(outside, FIELDS).hint(hint(READY_BY_PRIORITY))
    return [Misplaced.of(document) for document in await cursor.limit(BATCH).batch_size(BATCH).to_list()]


async def repair(records: Records, misplaced: Sequence[Misplaced], partitions: int) -> int:
    """Give each of ``misplaced`` a partition in range and return how many were changed.

    Each write repeats the condition: a claim that came first keeps its record, and so does another repair.
    """
    if not misplaced:
        return 0
    writes = [UpdateOne(_still(item), {"$set": {"partition": random.randrange(partitions)}}) for item in misplaced]
    return (await records.bulk_write(writes, ordered=False)).modified_count


def _still(item: Misplaced) -> Filter:
    # With $eq, since what another program put there may look like an operator.
    return {"_id": item.id, "partition": {"$eq": item.partition}, **FREE}
