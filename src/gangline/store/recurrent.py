"""The one record of each recurrent job: made when it is missing, moved when its rule changed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime

import uuid_utils
from pymongo.errors import DuplicateKeyError

from gangline.jobs.definition import JobDefinition
from gangline.jobs.record import JobType
from gangline.jobs.recurrence import Recurrence
from gangline.store.connection import Connection, Document


class RecurrentRecords:
    """Registers recurrent jobs. Many processes may do so at once: there is one record per name."""

    def __init__(self, connection: Connection, partitions: int) -> None:
        self._records = connection.records
        self._clock = connection.clock
        self._partitions = partitions

    async def register(self, jobs: Iterable[JobDefinition]) -> None:
        """Make sure that each recurrent job of ``jobs`` has its record and that the record follows the job's rule."""
        for job in jobs:
            if job.recurrence is not None:
                await self._register(job, job.recurrence)

    async def _register(self, job: JobDefinition, rule: Recurrence) -> None:
        stored = await self._records.find_one(_record_of(job.name), {"schedule": 1, "maxTriesReachedAt": 1})
        if stored is None:
            await self._insert(job, rule)
        elif stored.get("maxTriesReachedAt") is not None:
            await self._revive(job, rule)
        elif stored.get("schedule") is None:
            await self._adopt(job, rule)
        elif _rule_of(stored) != rule.text:
            await self._follow(job, rule, _rule_of(stored))

    async def _insert(self, job: JobDefinition, rule: Recurrence) -> None:
        now = self._clock.now()
        record = {
            "_id": str(uuid_utils.uuid7()),
            "jobName": job.name,
            "type": JobType.RECURRENT.value,
            "priority": job.priority,
            "nextRunAt": now if job.run_at_start else rule.next_after(now, anchor=now),
            "partition": random.randrange(self._partitions),
            "params": {},
            "tries": 0,
            "createdAt": now,
            "schedule": _schedule(rule, now),
        }
        try:
            await self._records.insert_one(record)
        except DuplicateKeyError:
            return  # another process was first

    async def _revive(self, job: JobDefinition, rule: Recurrence) -> None:
        """Put a record back that was set aside while a program defined the job as an event job."""
        now = self._clock.now()
        await self._records.update_one(
            {**_record_of(job.name), "maxTriesReachedAt": {"$ne": None}},
            {
                "$set": {"nextRunAt": rule.next_after(now, anchor=now), "schedule": _schedule(rule, now), "tries": 0},
                "$unset": {"status": "", "maxTriesReachedAt": "", "expiresAt": "", "lastError": ""},
            },
        )

    async def _adopt(self, job: JobDefinition, rule: Recurrence) -> None:
        """Note the rule on a record of the Node side; its next instant is one of the same cadence already."""
        unnoted = {**_record_of(job.name), "schedule": None}
        await self._records.update_one(unnoted, [{"$set": {"schedule": {"rule": rule.text, "anchor": "$nextRunAt"}}}])

    async def _follow(self, job: JobDefinition, rule: Recurrence, old: str | None) -> None:
        """Move the record to the new rule, unless another process did."""
        now = self._clock.now()
        await self._records.update_one(
            {**_record_of(job.name), "schedule.rule": old},
            {"$set": {"nextRunAt": rule.next_after(now, anchor=now), "schedule": _schedule(rule, now)}},
        )


def _record_of(name: str) -> Document:
    return {"jobName": name, "type": JobType.RECURRENT.value}


def _schedule(rule: Recurrence, anchor: datetime) -> Document:
    return {"rule": rule.text, "anchor": anchor}


def _rule_of(stored: Document) -> str | None:
    schedule = stored["schedule"]
    return schedule.get("rule") if isinstance(schedule, dict) else None
