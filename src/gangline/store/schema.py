"""Names of collections, fields' defaults and indexes, as data.

The names and options of the first group are shared with ``@orion-js/dogs``. No index here may have exactly the key
pattern ``{partition, jobName, priority, nextRunAt}`` or ``{partition, priority, nextRunAt}``: the Node side hints by
pattern, and the server refuses a pattern that matches two indexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECORDS = "records"
HISTORY = "history"
WORKERS = "workers"
DEFAULT_PREFIX = "gangline."

DEAD = "maxTriesReached"

# A claim writes `lockedUntil`, so a claimed record leaves the indexes with this filter, and claims never walk over it.
# The plain indexes of the Node side cost 7 million documents examined for 20,000 claims by 256 claimers; these 20,000.
FREE: Mapping[str, Any] = {"lockedUntil": None, "maxTriesReachedAt": None}


@dataclass(frozen=True, kw_only=True)
class Index:
    """One index: its name, its keys in order, and its options."""

    name: str
    keys: tuple[tuple[str, int], ...]
    unique: bool = False
    sparse: bool = False
    partial: Mapping[str, Any] | None = None
    expire_after: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that are set, under the server's names."""
        options: dict[str, Any] = {"name": self.name}
        if self.unique:
            options["unique"] = True
        if self.sparse:
            options["sparse"] = True
        if self.partial is not None:
            options["partialFilterExpression"] = dict(self.partial)
        if self.expire_after is not None:
            options["expireAfterSeconds"] = self.expire_after
        return options


LOCK_ID = Index(name="jobs_dogs_records_lock_id", keys=(("lockId", 1),), sparse=True)
UNIQUE_RECURRENT = Index(name="jobName_1", keys=(("jobName", 1),), unique=True, partial={"type": "recurrent"})
UNIQUE_IDENTIFIER = Index(name="uniqueIdentifier_1", keys=(("uniqueIdentifier", 1),), unique=True, sparse=True)
DEAD_TTL = Index(name="jobs_dogs_records_expires_at_ttl", keys=(("expiresAt", 1),), expire_after=0)

# `_id` ends the order, so that records of one priority and instant keep the order in which they were scheduled (ids
# are UUIDv7), and keeps these patterns apart from the Node side's.
READY_BY_NAME = Index(
    name="gangline_ready_by_name",
    keys=(("partition", 1), ("jobName", 1), ("priority", -1), ("nextRunAt", 1), ("_id", 1)),
    partial=FREE,
)
READY_BY_PRIORITY = Index(
    name="gangline_ready_by_priority",
    keys=(("partition", 1), ("priority", -1), ("nextRunAt", 1), ("_id", 1)),
    partial=FREE,
)
# Answers "is anything due, where, and if not: when" for all partitions in one read.
DUE = Index(
    name="gangline_due",
    keys=(("jobName", 1), ("nextRunAt", 1), ("partition", 1)),
    partial=FREE,
)
# Only locked records are in it: as many entries as there are executions.
LOCKED = Index(
    name="gangline_locked",
    keys=(("lockedUntil", 1), ("jobName", 1)),
    partial={"lockedUntil": {"$exists": True}},
)

RECORD_INDEXES = (
    LOCK_ID,
    UNIQUE_RECURRENT,
    UNIQUE_IDENTIFIER,
    DEAD_TTL,
    READY_BY_NAME,
    READY_BY_PRIORITY,
    DUE,
    LOCKED,
)

HISTORY_INDEXES = (
    Index(name="jobName_1_startedAt_1", keys=(("jobName", 1), ("startedAt", 1))),
    Index(name="executionId_1", keys=(("executionId", 1),)),
    Index(name="expiresAt_1", keys=(("expiresAt", 1),), expire_after=0),
)

WORKER_INDEXES = (Index(name="seenAt_1", keys=(("seenAt", 1),), expire_after=180),)
