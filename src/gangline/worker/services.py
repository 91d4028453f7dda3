"""The services of one worker: what each needs, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random

from gangline.jobs.definition import JobDefinition
from gangline.jobs.record import ClaimedRecord
from gangline.jobs.settings import WorkerSettings
from gangline.store.claims.expired import ExpiredLeases
from gangline.store.claims.protocol import ClaimProtocol, LeaseLengths
from gangline.store.connection import Connection
from gangline.store.history import History
from gangline.store.leases import LeaseRenewals
from gangline.store.settle import Settler
from gangline.store.survey import Survey, survey
from gangline.worker.executions import Executions
from gangline.worker.executor import Executor
from gangline.worker.lease_keeper import LeaseKeeper
from gangline.worker.recovery import Recovery
from gangline.worker.scheduler import Acquisition, Scheduler
from gangline.worker.settling import SettleQueue
from gangline.worker.slots import Slots
from gangline.worker.threads import HandlerThreads

LAST_STEP_SECONDS = 5.0  # for the acquisition step that is under way when the worker stops


class Services:
    """Everything that runs while a worker runs."""

    def __init__(
        self,
        connection: Connection,
        jobs: Mapping[str, JobDefinition],
        settings: WorkerSettings,
        protocol: ClaimProtocol,
        partitions: int,
        worker: str,
        rng: Random,
    ) -> None:
        leases = _lease_lengths(jobs, settings)
        history = History(connection.history, settings.keep_history)
        settler = Settler(connection.records, history)
        slots = Slots(settings.concurrency, list(jobs.values()), freed=lambda: self.scheduler.wake())
        recovery = Recovery(ExpiredLeases(connection.records), history, settler, connection.clock, jobs, leases, worker)
        self.threads = HandlerThreads()
        self.keeper = LeaseKeeper(lambda: LeaseRenewals(connection.address))
        self.settling = SettleQueue(settler, rng)
        self.executions = Executions(
            jobs,
            settings,
            slots=slots,
            executor=Executor(self.threads),
            keeper=self.keeper,
            settling=self.settling,
            history=history,
            clock=connection.clock,
            worker=worker,
            rng=rng,
        )
        self.scheduler = Scheduler(
            Acquisition(
                partitions=partitions,
                poll_interval=settings.poll_interval.total_seconds(),
                max_batch=settings.max_batch,
                leases=leases,
                worker=worker,
            ),
            protocol,
            _Queue(connection, recovery, partitions),
            slots.room,
            self.executions.start,
            rng,
        )

    def start(self) -> None:
        """Start in the order in which they need each other."""
        self.keeper.start()
        self.settling.start()
        self.acquiring = asyncio.create_task(self.scheduler.run(), name="gangline-scheduler")

    async def stop(self, grace: float, hurry: asyncio.Event) -> None:
        """Stop claiming; let executions end, leases alive; hand the rest back; then stop what they needed."""
        self.scheduler.stop()
        await asyncio.wait({self.acquiring}, timeout=LAST_STEP_SECONDS)
        self.acquiring.cancel()
        await self.executions.drain(grace, hurry)
        await self.settling.stop()
        await self.executions.abandon()
        await self.keeper.stop()
        self.threads.close()


class _Queue:
    """The scheduler's view of the store."""

    def __init__(self, connection: Connection, recovery: Recovery, partitions: int) -> None:
        self._connection = connection
        self._recovery = recovery
        self._partitions = partitions

    async def survey(self, names: Sequence[str]) -> Survey:
        return await survey(self._connection.records, names, self._partitions, now=self.now())

    async def take_over(self, names: Sequence[str], limit: int) -> Sequence[ClaimedRecord]:
        return await self._recovery.take_over(names, limit)

    def now(self) -> datetime:
        return self._connection.clock.now()


def _lease_lengths(jobs: Mapping[str, JobDefinition], settings: WorkerSettings) -> LeaseLengths:
    own = {name: job.lease for name, job in jobs.items() if job.lease is not None}
    return LeaseLengths(default=settings.lease, by_name=own)
