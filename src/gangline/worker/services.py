"""The services of one worker: what each needs, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from random import Random

from gangline.jobs.definition import JobDefinition
from gangline.jobs.hint import Sample, Shape
from gangline.jobs.record import ClaimedRecord
from gangline.jobs.settings import WorkerSettings
from gangline.store.changes import open_changes
from gangline.store.claims.expired import ExpiredLeases
from gangline.store.claims.hints import AcquisitionIndexes
from gangline.store.claims.protocol import ClaimProtocol, LeaseLengths
from gangline.store.connection import Connection
from gangline.store.eligibility import MAX_SORTED_NAMES
from gangline.store.history import History
from gangline.store.leases import LeaseRenewals
from gangline.store.probe import probe
from gangline.store.reconcile import Misplaced, find_misplaced, repair
from gangline.store.registry import Registry, WorkerEntry
from gangline.store.settle import Settler
from gangline.store.survey import Survey, survey
from gangline.worker.executions import Executions
from gangline.worker.executor import Executor
from gangline.worker.hint_prober import HintProber
from gangline.worker.lease_keeper import LeaseKeeper
from gangline.worker.presence import Presence
from gangline.worker.reconciler import Reconciler
from gangline.worker.recovery import Recovery
from gangline.worker.scheduler import Acquisition, Scheduler
from gangline.worker.settling import SettleQueue
from gangline.worker.slots import Slots
from gangline.worker.threads import HandlerThreads
from gangline.worker.wake_ups import WakeUps

LAST_STEP_SECONDS = 5.0  # for the acquisition step that is under way when the worker stops
CANCELLATIONS = 10
VERSION = version("gangline")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """What a worker is made of."""

    worker: str
    connection: Connection
    jobs: Mapping[str, JobDefinition]
    settings: WorkerSettings
    protocol: ClaimProtocol
    indexes: AcquisitionIndexes
    partitions: int
    rng: Random

    @property
    def names(self) -> Sequence[str]:
        """The names of the jobs."""
        return sorted(self.jobs)

    @property
    def leases(self) -> LeaseLengths:
        """How long claims last."""
        own = {name: job.lease for name, job in self.jobs.items() if job.lease is not None}
        return LeaseLengths(default=self.settings.lease, by_name=own)


class Services:
    """Everything that runs while a worker runs."""

    def __init__(self, plan: Blueprint) -> None:
        self._plan = plan
        history = History(plan.connection.history, plan.settings.keep_history)
        settler = Settler(plan.connection.records, history)
        slots = Slots(plan.settings.concurrency, list(plan.jobs.values()), freed=lambda: self.scheduler.wake())
        self.threads = HandlerThreads()
        self.keeper = LeaseKeeper(lambda: LeaseRenewals(plan.connection.address))
        self.settling = SettleQueue(settler, plan.rng)
        self.executions = Executions(
            plan.jobs,
            plan.settings,
            slots=slots,
            executor=Executor(self.threads),
            keeper=self.keeper,
            settling=self.settling,
            history=history,
            clock=plan.connection.clock,
            worker=plan.worker,
            rng=plan.rng,
        )
        self.prober = _prober(plan, lambda: self.presence.changed())
        self.presence = _presence(plan, self.prober)
        self.reconciler = _reconciler(plan)
        self.wake_ups = _wake_ups(plan, lambda due_at: self.scheduler.wake(due_at))
        queue = _Queue(plan, _recovery(plan, history, settler), self.reconciler)
        self.scheduler = Scheduler(
            _acquisition(plan),
            plan.protocol,
            queue,
            slots.room,
            self.executions.start,
            plan.rng,
            preferred=lambda: self.prober.shape,
            resting=self.wake_ups.resting,
        )
        self._background: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start in the order in which they need each other."""
        self.keeper.start()
        self.settling.start()
        self.acquiring = asyncio.create_task(self.scheduler.run(), name="gangline-scheduler")
        for service in self._in_background():
            name = f"gangline-{type(service).__name__.lower()}"
            self._background.append(asyncio.create_task(service.run(), name=name))

    def _in_background(self) -> Sequence[HintProber | Reconciler | Presence | WakeUps]:
        always = (self.prober, self.reconciler, self.presence)
        return (*always, self.wake_ups) if self._plan.settings.change_stream else always

    async def stop(self, grace: float, hurry: asyncio.Event) -> None:
        """Stop claiming; let executions end, leases alive; hand the rest back; then stop what they needed."""
        self.scheduler.stop()
        for task in self._background:
            task.cancel()
        await asyncio.wait({self.acquiring, *self._background}, timeout=LAST_STEP_SECONDS)
        self.acquiring.cancel()
        await self.executions.drain(grace, hurry)
        await self.settling.stop()
        await self.executions.abandon()
        await self.keeper.stop()
        await self.presence.withdraw()
        self.threads.close()


class _Queue:
    """The scheduler's view of the store."""

    def __init__(self, plan: Blueprint, recovery: Recovery, reconciler: Reconciler) -> None:
        self._plan = plan
        self._recovery = recovery
        self._reconciler = reconciler

    async def survey(self, names: Sequence[str]) -> Survey:
        records, hint = self._plan.connection.records, self._plan.indexes.hint
        return await survey(records, names, self._plan.partitions, now=self.now(), hint=hint)

    async def take_over(self, names: Sequence[str], limit: int) -> Sequence[ClaimedRecord]:
        return await self._recovery.take_over(names, limit)

    async def repair(self, misplaced: Sequence[Misplaced]) -> None:
        await self._reconciler.repair(misplaced)

    async def mend_indexes(self) -> bool:
        return await self._plan.indexes.refused()

    def now(self) -> datetime:
        return self._plan.connection.clock.now()


class _Repairs:
    """The reconciler's view of the store."""

    def __init__(self, plan: Blueprint) -> None:
        self._plan = plan

    async def find_misplaced(self) -> Sequence[Misplaced]:
        await self._plan.indexes.keep()  # here, since the reconciler comes by from time to time
        return await find_misplaced(self._plan.connection.records, self._plan.partitions, self._plan.indexes.hint)

    async def repair(self, misplaced: Sequence[Misplaced]) -> int:
        return await repair(self._plan.connection.records, misplaced, self._plan.partitions)

    async def others(self) -> Sequence[str]:
        workers = await Registry(self._plan.connection).workers()
        own = self._plan.partitions
        return [f"{entry.name} with {entry.partitions}" for entry in workers if entry.partitions != own]

    def now(self) -> datetime:
        return self._plan.connection.clock.now()


def _acquisition(plan: Blueprint) -> Acquisition:
    return Acquisition(
        partitions=plan.partitions,
        poll_interval=plan.settings.poll_interval.total_seconds(),
        max_batch=plan.settings.max_batch,
        leases=plan.leases,
        worker=plan.worker,
    )


def _recovery(plan: Blueprint, history: History, settler: Settler) -> Recovery:
    connection = plan.connection
    expired = ExpiredLeases(connection.records, plan.indexes.hint)
    return Recovery(expired, history, settler, connection.clock, plan.jobs, plan.leases, plan.worker)


def _reconciler(plan: Blueprint) -> Reconciler:
    return Reconciler(_Repairs(plan), plan.partitions, plan.rng)


def _wake_ups(plan: Blueprint, wake: Callable[[datetime | None], None]) -> WakeUps:
    # Busy for a whole poll interval: a worker that looks no more rarely than it would by polling needs no stream.
    patience = plan.settings.poll_interval.total_seconds()
    return WakeUps(lambda: open_changes(plan.connection, plan.names), wake, plan.rng, patience=patience)


def _prober(plan: Blueprint, chosen: Callable[[], None]) -> HintProber:
    async def measure(shape: Shape, partition: int) -> Sample:
        return await probe(plan.connection.records, shape, partition, names, plan.connection.clock.now())

    names = plan.names
    if len(names) > MAX_SORTED_NAMES:  # by name the server would have to sort in memory: there is nothing to choose
        return HintProber(None, plan.partitions, plan.rng, chosen, first=Shape.BY_PRIORITY)
    return HintProber(measure, plan.partitions, plan.rng, chosen)


def _presence(plan: Blueprint, prober: HintProber) -> Presence:
    started_at = plan.connection.clock.now()

    def entry() -> WorkerEntry:
        return WorkerEntry(
            name=plan.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            partitions=plan.partitions,
            concurrency=plan.settings.concurrency,
            jobs={name: job.type.value for name, job in plan.jobs.items()},
            claim_protocol=plan.protocol.name,
            shape=prober.shape.value,
            started_at=started_at,
        )

    return Presence(Registry(plan.connection), entry)
