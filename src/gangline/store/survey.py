"""One cheap read for an idle scheduler: what is due and where, whether a lease expired, and when to look next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bson.datetime_ms import DatetimeMS

from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import Records
from gangline.store.codec import instant
from gangline.store.connection import Document
from gangline.store.eligibility import MAX_SORTED_NAMES, expired, free, ready
from gangline.store.reconcile import FIELDS, Misplaced, in_range
from gangline.store.schema import DUE, READY_BY_NAME

_LIMIT = 16


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a scheduler sees at one moment, over all partitions.

    Attributes:
        due: by record id the partition of the records that have waited longest; bounded, so there may be more.
        expired: whether there is a lease to take over.
        next_due_at: when the next waiting record becomes due; only known if none is due now.
        misplaced: records among them that no claim would ask for, because their partition is missing or out of range.
    """

    due: dict[Any, int]
    expired: bool
    next_due_at: datetime | None
    misplaced: Sequence[Misplaced] = ()

    @property
    def complete(self) -> bool:
        """Whether ``due`` is all that is due."""
        return len(self.due) + len(self.misplaced) < _LIMIT


async def survey(
    records: Records, names: Sequence[str], partitions: int, *, now: datetime, hint: Hint = by_name
) -> Survey:
    """Look at the queue in one command that reads a handful of index entries, whatever the number of partitions.

    Only behind a backlog it takes a second one.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    index = hint(DUE)
    hinted: dict[str, Any] = {} if index is None else {"hint": index}
    cursor = await records.aggregate(_pipeline(records.name, names, now), **hinted)
    view = _read(await cursor.to_list(), partitions, now)
    if len(view.due) < _LIMIT:
        return view
    # Behind a backlog, a record of a program that knows no partitions is not among the first.
    unplaced = records.find(ready(None, names, now), FIELDS).hint(hint(READY_BY_NAME)).limit(-_LIMIT)
    return replace(view, misplaced=(*view.misplaced, *map(Misplaced.of, await unplaced.to_list())))


def _pipeline(collection: str, names: Sequence[str], now: datetime) -> list[dict[str, Any]]:
    chunks = [names[start : start + MAX_SORTED_NAMES] for start in range(0, len(names), MAX_SORTED_NAMES)]
    first, *others = [_waiting(chunk, now) for chunk in chunks]
    return [*first, *(_union(collection, part) for part in [*others, _expired(names, now)])]


def _union(collection: str, pipeline: list[dict[str, Any]]) -> dict[str, Any]:
    return {"$unionWith": {"coll": collection, "pipeline": pipeline}}


def _waiting(names: Sequence[str], now: datetime) -> list[dict[str, Any]]:
    # What is not due yet belongs to it: the first such record tells when to wake. What is no date is left out.
    return [
        {"$match": {**free(names, now), "nextRunAt": {"$type": "date"}}},
        {"$sort": {"nextRunAt": 1}},
        {"$limit": _LIMIT},
        {"$project": dict.fromkeys(FIELDS, 1)},
    ]


def _expired(names: Sequence[str], now: datetime) -> list[dict[str, Any]]:
    return [
        {"$match": expired(names, now)},
        {"$sort": {"lockedUntil": 1}},
        {"$limit": 1},
        {"$project": {"lockedUntil": 1}},
    ]


def _read(documents: list[Document], partitions: int, now: datetime) -> Survey:
    # A foreign program's array of dates matches like its elements; it must not end the loop that looks.
    dated = [document for document in documents if isinstance(document.get("nextRunAt"), datetime | DatetimeMS)]
    placed = [document for document in dated if in_range(document.get("partition"), partitions)]
    due = {document["_id"]: int(document["partition"]) for document in placed if instant(document["nextRunAt"]) <= now}
    later = [instant(document["nextRunAt"]) for document in placed if document["_id"] not in due]
    return Survey(
        due=due,
        expired=any("lockedUntil" in document for document in documents),
        next_due_at=min(later, default=None),
        misplaced=tuple(Misplaced.of(document) for document in dated if document not in placed),
    )
