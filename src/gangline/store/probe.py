"""Measuring the two acquisition shapes on the live queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pymongo

from gangline.jobs.hint import Sample, Shape
from gangline.store.claims.protocol import Records
from gangline.store.connection import Document
from gangline.store.eligibility import INDEX_OF, ORDER, ready

MAX_PROBE_SECONDS = 1.0  # as maxTimeMS: a probe must never weigh on a busy server


async def probe(records: Records, shape: Shape, partition: int, names: Sequence[str], now: datetime) -> Sample:
    """Return what the server spends on finding the next record of ``names`` in ``partition`` by ``shape``.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked, took more than a second, or lacks the index.
    """
    explained = await explain(records, shape, partition, names, now)
    stats = explained["executionStats"]
    return Sample(stats["executionTimeMillis"], stats["totalKeysExamined"] + stats["totalDocsExamined"])


async def explain(records: Records, shape: Shape, partition: int, names: Sequence[str], now: datetime) -> Document:
    """Return the server's explanation of the read that a claim by ``shape`` makes, with its execution statistics."""
    find = {
        "find": records.name,
        "filter": ready(partition, names, now),
        "sort": dict(ORDER),
        "limit": 1,
        "hint": INDEX_OF[shape].name,
    }
    with pymongo.timeout(MAX_PROBE_SECONDS):
        return dict(await records.database.command("explain", find, verbosity="executionStats"))
