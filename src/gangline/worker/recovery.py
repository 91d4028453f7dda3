"""Takes over what lost executions left behind, and finishes what they had finished."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence

from gangline.jobs.definition import JobDefinition
from gangline.jobs.outcome import Returned, decide
from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.expired import ExpiredLeases, TakenOver
from gangline.store.claims.protocol import LeaseLengths
from gangline.store.clock import ServerClock
from gangline.store.errors import StoreError
from gangline.store.history import Execution, History
from gangline.store.settle import Settlement, Settler

logger = logging.getLogger("gangline.recovery")


class Recovery:
    """Claims records whose lease expired, for new executions."""

    def __init__(
        self,
        expired: ExpiredLeases,
        history: History,
        settler: Settler,
        clock: ServerClock,
        jobs: Mapping[str, JobDefinition],
        leases: LeaseLengths,
        worker: str,
    ) -> None:
        self._expired = expired
        self._history = history
        self._settler = settler
        self._clock = clock
        self._jobs = jobs
        self._leases = leases
        self._worker = worker

    async def take_over(self, names: Sequence[str], limit: int) -> list[ClaimedRecord]:
        """Claim up to ``limit`` expired records of ``names`` and return those that must run.

        The lost executions get their entries in the history. One that had written its success there died between its
        two writes: its job is done, and its record is settled so instead of run again.
        """
        taken = await self._expired.take_over(
            names, limit, now=self._clock.now(), leases=self._leases, worker=self._worker
        )
        if not taken.records:
            return []
        logger.warning(
            "%d records were taken over from executions that lost their lease",
            len(taken.records),
            extra={"event": "taken_over", "job_ids": [record.id for record in taken.records]},
        )
        told = await self._tell_lost(taken)
        return [record for record in taken.records if not await self._is_finished(record, taken, told)]

    async def _tell_lost(self, taken: TakenOver) -> set[str]:
        """Write the history of the lost executions; return the lock ids of those that had written it themselves."""
        try:
            return await self._history.write_lost(taken.left.values(), by=self._worker, now=self._clock.now())
        except StoreError as error:
            # The records are ours; that the history of others could not be written is no reason not to run them.
            logger.warning("the history of lost executions could not be written: %s", error)
            return set()

    async def _is_finished(self, record: ClaimedRecord, taken: TakenOver, told: set[str]) -> bool:
        """Whether the lost execution had finished the job; if so its record is settled."""
        lost = taken.left[record.id].get("lockId")
        if lost not in told:
            return False
        try:
            accepted = await self._history.accept_success(lost, by=record.lease)
        except StoreError as error:
            logger.warning("it is not known whether job %s was finished; it runs again: %s", record.id, error)
            return False
        if accepted:
            await self._finish(record)
        return accepted

    async def _finish(self, record: ClaimedRecord) -> None:
        now = self._clock.now()
        decision = decide(record, self._jobs[record.name], Returned(None), now=now, chance=random.random())
        execution = Execution(
            record=record, outcome=decision.outcome, started_at=now, ended_at=now, worker=self._worker
        )
        try:
            await self._settler.settle_records([Settlement(execution, decision.fate, doubtful=True)])
        except StoreError as error:
            # The record may be gone already: to run it now could be a run without a record.
            logger.warning("job %s is finished, but its record could not be settled: %s", record.id, error)
