"""Which records may be claimed, in which order, and over which index: one place for claims, surveys and plan tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline.jobs.hint import Shape
from gangline.store.schema import DEAD, FREE, READY_BY_NAME, READY_BY_PRIORITY, Index

Filter = dict[str, Any]

ORDER = (("priority", -1), ("nextRunAt", 1), ("_id", 1))

_ARRAY = {"$type": "array"}
_DOCUMENT = {"$type": "object"}

MAX_SORTED_NAMES = 200  # an $in over more in front of the sort makes the planner sort in memory (seen on 6.0.5)


INDEX_OF: Mapping[Shape, Index] = {Shape.BY_NAME: READY_BY_NAME, Shape.BY_PRIORITY: READY_BY_PRIORITY}


def free(names: Sequence[str], now: datetime) -> Filter:
    """Return the filter for records of ``names`` that are due, not locked and not dead, in any partition."""
    return {"jobName": _one_of(names), **FREE, "nextRunAt": {"$lte": now}, **alive()}


def ready(partition: int | None, names: Sequence[str], now: datetime) -> Filter:
    """Return the filter of a claim: exactly one partition, never ``$in``; ``None`` for records that have none."""
    return {"partition": partition, **free(names, now)}


def expired(names: Sequence[str], now: datetime) -> Filter:
    """Return the filter for records of ``names`` whose lease ended before its execution settled."""
    return {"lockedUntil": {"$lte": now}, "jobName": _one_of(names), **alive()}


def _one_of(names: Sequence[str]) -> Any:
    return names[0] if len(names) == 1 else {"$in": list(names)}


def alive() -> Filter:
    """Return the condition that a record is not dead, in the Node side's words, and that its identity is one.

    An array as ``jobName`` would match every name in it, and a document as ``_id`` cannot be told from its copies.
    """
    return {"$nor": [{"type": "event", "status": DEAD}, {"jobName": _ARRAY}, {"_id": _DOCUMENT}]}
