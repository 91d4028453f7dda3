"""Settling: every write that an execution makes at its end, under its lease, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from pymongo import DeleteOne, UpdateOne
from pymongo.results import BulkWriteResult

from gangline.jobs.lease import Lease
from gangline.jobs.outcome import Bury, Fate, HandBack, Remove, RunAgain
from gangline.store.claims.protocol import Records
from gangline.store.connection import Document
from gangline.store.history import Execution, History
from gangline.store.schema import DEAD

Write = DeleteOne | UpdateOne

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
        together = [settlement for settlement in settlements if not settlement.doubtful]
        verdicts = dict(zip(map(id, together), await self._settle_group(together), strict=True))
        for settlement in settlements:
            if settlement.doubtful:
                [verdicts[id(settlement)]] = await self._settle_group([settlement])
        return [verdicts[id(settlement)] for settlement in settlements]

    async def _settle_group(self, settlements: list[Settlement]) -> list[Verdict]:
        if not settlements:
            return []
        writes = [_write(settlement.lease, settlement.fate, settlement.execution) for settlement in settlements]
        result = await self._records.bulk_write(writes, ordered=False)
        if _count(result) == len(writes):
            return [Verdict.HELD] * len(writes)
        return await self._tell_apart(settlements, result.deleted_count)

    async def _tell_apart(self, settlements: list[Settlement], deleted: int) -> list[Verdict]:
        """Find out which leases were held: the server only tells how many."""
        ids = [settlement.lease.record_id for settlement in settlements]
        found = self._records.find({"_id": {"$in": ids}}, {"lastExecutionId": 1})
        last = {document["_id"]: document.get("lastExecutionId") for document in await found.to_list()}
        gone = [item for item in settlements if _removes(item) and item.lease.record_id not in last]
        ours = len(gone) == deleted or all(item.repeated for item in gone)
        return [
            _verdict(ours and item in gone if _removes(item) else last.get(item.lease.record_id) == item.lease.lock_id)
            for item in settlements
        ]


def _verdict(held: bool) -> Verdict:
    return Verdict.HELD if held else Verdict.LOST


def _count(result: BulkWriteResult) -> int:
    return result.deleted_count + result.matched_count


def _removes(settlement: Settlement) -> bool:
    return isinstance(settlement.fate, Remove)


def _write(lease: Lease, fate: Fate, execution: Execution) -> Write:
    held = {"_id": lease.record_id, "lockId": lease.lock_id}
    match fate:
        case Remove():
            return DeleteOne(held)
        case RunAgain(at, fresh):
            return _release(held, lease, _run_again(execution, at, fresh))
        case Bury(keep):
            return _release(held, lease, _bury(execution, keep))
        case HandBack():
            return _release(held, lease, {"$inc": {"tries": -1}})


def _release(held: Document, lease: Lease, change: dict[str, dict[str, Any]]) -> UpdateOne:
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
