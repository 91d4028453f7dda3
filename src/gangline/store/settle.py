"""Settling: every write that an execution makes at its end, under its lease, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from pymongo import UpdateOne

from gangline.jobs.lease import Lease
from gangline.jobs.outcome import Bury, Fate, HandBack, Remove, RunAgain
from gangline.store.claims.protocol import Records
from gangline.store.connection import Document
from gangline.store.history import Execution, History
from gangline.store.schema import DEAD

# A release of any kind unsets these together: a record is locked or free, never half of both.
RELEASE = {"lockId": "", "lockedUntil": "", "claimWasStale": "", "lockedBy": ""}


class Verdict(Enum):
    """Whether a write found its lease."""

    HELD = "held"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Settlement:
    """One execution to settle.

    ``doubtful`` says that its lease may have ended by now: it is settled in a command of its own, whose answer tells
    for certain. ``repeated`` says that an earlier attempt may have taken effect without an answer.
    """

    execution: Execution
    fate: Fate
    doubtful: bool = False
    repeated: bool = False

    @property
    def lease(self) -> Lease:
        """The lease that every write carries."""
        return self.execution.lease


class Settler:
    """Writes the history and the fates of executions."""

    def __init__(self, records: Records, history: History) -> None:
        self._records = records
        self._history = history

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Settle ``settlements`` and return a verdict for each; a lost one changed nothing.

        The history comes first: a process that dies between the two writes leaves a record that is taken over, and an
        entry that tells what its last execution came to.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked; call again with ``repeated`` set.
        """
        await self._history.write(settlement.execution for settlement in settlements)
        verdicts = await self.settle_records(settlements)
        lost = [item.lease for item, verdict in zip(settlements, verdicts, strict=True) if verdict is Verdict.LOST]
        await self._history.turn_stale(lost)
        return verdicts

    async def settle_records(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Settle the records alone; their history is written already."""
        verdicts: dict[Lease, Verdict] = {}
        for group in _groups(settlements):
            write = self._remove if _removes(group[0]) else self._release
            verdicts.update(zip((item.lease for item in group), await write(group), strict=True))
        return [verdicts[item.lease] for item in settlements]

    async def _remove(self, group: Sequence[Settlement]) -> list[Verdict]:
        # One statement: 100 records cost the server 9 ms in it and 24 ms as a bulk of 100 (MongoDB 6.0.5). Lock ids
        # are unique, so both lists together match exactly the pairs.
        held = {"_id": {"$in": _ids(group)}, "lockId": {"$in": [item.lease.lock_id for item in group]}}
        deleted = (await self._records.delete_many(held, hint="_id_")).deleted_count
        if deleted == len(group):
            return [Verdict.HELD] * len(group)
        left = await self._last_executions(group)
        gone = [item.lease for item in group if item.lease.record_id not in left]
        taken = await self._history.taken_over(gone)
        # What is gone and was not taken over went in this write or, if it is repeated, in an earlier one; or someone
        # deleted it by hand while it ran, and then its execution did end well.
        return [
            _verdict((item.repeated or deleted > 0) and item.lease in gone and item.lease not in taken)
            for item in group
        ]

    async def _release(self, group: Sequence[Settlement]) -> list[Verdict]:
        writes = [_change(item.lease, item.fate, item.execution) for item in group]
        if (await self._records.bulk_write(writes, ordered=False)).matched_count == len(group):
            return [Verdict.HELD] * len(group)
        last = await self._last_executions(group)
        return [_verdict(last.get(item.lease.record_id) == item.lease.lock_id) for item in group]

    async def _last_executions(self, group: Sequence[Settlement]) -> dict[str, str | None]:
        """Who released the records of ``group`` last; the server only tells how many writes found their lease."""
        found = self._records.find({"_id": {"$in": _ids(group)}}, {"lastExecutionId": 1})
        return {document["_id"]: document.get("lastExecutionId") for document in await found.to_list()}


def _groups(settlements: Sequence[Settlement]) -> list[list[Settlement]]:
    """What can be written together: removals, releases, and each doubtful one alone."""
    sure = [item for item in settlements if not item.doubtful]
    together = [[item for item in sure if _removes(item)], [item for item in sure if not _removes(item)]]
    return [*filter(None, together), *([item] for item in settlements if item.doubtful)]


def _ids(group: Sequence[Settlement]) -> list[str]:
    return [item.lease.record_id for item in group]


def _verdict(held: bool) -> Verdict:
    return Verdict.HELD if held else Verdict.LOST


def _removes(settlement: Settlement) -> bool:
    return isinstance(settlement.fate, Remove)


def _change(lease: Lease, fate: Fate, execution: Execution) -> UpdateOne:
    held = {"_id": lease.record_id, "lockId": lease.lock_id}
    match fate:
        case RunAgain(at, fresh):
            return _released(held, lease, _run_again(execution, at, fresh))
        case Bury(keep):
            return _released(held, lease, _bury(execution, keep))
        case HandBack():
            return _released(held, lease, {"$inc": {"tries": -1}})
        case Remove():
            raise ValueError("a removal changes no field")


def _released(held: Document, lease: Lease, change: dict[str, dict[str, Any]]) -> UpdateOne:
    # lastExecutionId leads people to the history, and tells after a lost answer whether this write took effect.
    return UpdateOne(
        held,
        {
            **change,
            "$set": {**change.get("$set", {}), "lastExecutionId": lease.lock_id},
            "$unset": {**change.get("$unset", {}), **RELEASE},
        },
    )


def _run_again(execution: Execution, at: datetime, fresh: bool) -> dict[str, dict[str, Any]]:
    change: dict[str, dict[str, Any]] = {"$set": {"nextRunAt": at}, "$unset": {}}
    if fresh:
        change["$set"]["tries"] = 0
        change["$unset"]["lastError"] = ""
    else:
        change["$set"].update(_last_error(execution))
    return change


def _bury(execution: Execution, keep: timedelta | None) -> dict[str, dict[str, Any]]:
    change: dict[str, dict[str, Any]] = {
        "$set": {"status": DEAD, "maxTriesReachedAt": execution.ended_at},
        # A dead job's unique identifier is free again; what it was stays readable.
        "$unset": {"uniqueIdentifier": ""},
    }
    if keep is not None:
        change["$set"]["expiresAt"] = execution.ended_at + keep
    if execution.record.unique is not None:
        change["$set"]["freedUniqueIdentifier"] = execution.record.unique
    change["$set"].update(_last_error(execution))
    return change


def _last_error(execution: Execution) -> Document:
    failure = execution.outcome.failure
    if failure is None:
        return {}
    told = {"type": failure.type, "message": failure.message, "trace": failure.trace, "at": execution.ended_at}
    return {"lastError": told}
