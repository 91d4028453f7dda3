"""Repairing the partition of records that no claim would ever ask for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from gangline.store.claims.protocol import Records
from gangline.store.connection import Document
from gangline.store.eligibility import Filter, alive
from gangline.store.schema import FREE, READY_BY_PRIORITY

BATCH = 500


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A record outside the range: its id, its partition as it stands, and when it was made, if that is known."""

    id: Any
    partition: Any
    created_at: datetime | None

    @classmethod
    def of(cls, document: Document) -> Misplaced:
        """Read it from ``document``."""
        created_at = document.get("createdAt")
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


async def find_misplaced(records: Records, partitions: int) -> list[Misplaced]:
    """Return up to 500 records that are neither locked nor dead and whose partition is missing or out of range.

    Three reads over the first key of a ready index, since one with ``$or`` would not use the partial index.
    """
    found: list[Misplaced] = []
    for outside in ({"partition": None}, {"partition": {"$lt": 0}}, {"partition": {"$gte": partitions}}):
        if len(found) < BATCH:
            cursor = records.find({**outside, **FREE, **alive()}, _FIELDS).hint(READY_BY_PRIORITY.name)
            found += [Misplaced.of(document) for document in await cursor.limit(len(found) - BATCH).to_list()]
    return found


async def repair(records: Records, misplaced: Sequence[Misplaced], partitions: int) -> int:
    """Give each of ``misplaced`` a partition in range and return how many were changed.

    Each write repeats the condition: a claim that came first keeps its record, and so does another repair.
    """
    if not misplaced:
        return 0
    writes = [UpdateOne(_still(item), {"$set": {"partition": random.randrange(partitions)}}) for item in misplaced]
    return (await records.bulk_write(writes, ordered=False)).modified_count


_FIELDS = ("partition", "createdAt")


def _still(item: Misplaced) -> Filter:
    return {"_id": item.id, "partition": item.partition, **FREE}
