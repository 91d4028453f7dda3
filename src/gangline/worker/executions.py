"""The life of an execution: a slot and a lease are taken, the handler runs, its outcome is settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from gangline.jobs.context import Context
from gangline.jobs.definition import JobDefinition
from gangline.jobs.lease import Lease
from gangline.jobs.outcome import Bury, Failure, Fate, HandBack, Interrupted, Outcome, Status, Unfit, decide
from gangline.jobs.record import ClaimedRecord
from gangline.jobs.settings import WorkerSettings
from gangline.store.clock import ServerClock
from gangline.store.errors import StoreError
from gangline.store.history import Execution, History
from gangline.store.settle import Settlement, Verdict
from gangline.worker.executor import Executor, Run
from gangline.worker.lease_keeper import HeldLease, LeaseKeeper
from gangline.worker.settling import SettleQueue
from gangline.worker.slots import Slot, Slots

logger = logging.getLogger("gangline.executions")

# After the grace time: how long cancelled handlers may take to unwind before their records are handed back over them.
UNWIND_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class RunningExecution:
    """One execution that runs now, as :attr:`Worker.running_executions` tells it."""

    job_id: str
    name: str
    tries: int
    started_at: datetime
    lease: Lease


@dataclass(eq=False)
class _Live:
    """The moving parts of one execution."""

    job: JobDefinition
    record: ClaimedRecord
    held: HeldLease
    slot: Slot
    context: Context
    started_at: datetime
    in_handler: bool = True
    told_stale: bool = False
    given_up: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Executions:
    """Starts, follows and ends executions."""

    def __init__(
        self,
        jobs: Mapping[str, JobDefinition],
        settings: WorkerSettings,
        *,
        slots: Slots,
        executor: Executor,
        keeper: LeaseKeeper,
        settling: SettleQueue,
        history: History,
        clock: ServerClock,
        worker: str,
        rng: Random,
    ) -> None:
        self._jobs = jobs
        self._settings = settings
        self._slots = slots
        self._executor = executor
        self._keeper = keeper
        self._settling = settling
        self._history = history
        self._clock = clock
        self._worker = worker
        self._random = rng
        self._live: set[_Live] = set()
        self._unsettled: set[_Live] = set()
        self._asides: set[asyncio.Task[None]] = set()
        self._progressed = asyncio.Event()
        self.handed_back = 0

    @property
    def running(self) -> Sequence[RunningExecution]:
        """The executions whose handlers run now."""
        return tuple(
            RunningExecution(
                job_id=live.record.id,
                name=live.record.name,
                tries=live.record.tries,
                started_at=live.started_at,
                lease=live.record.lease,
            )
            for live in self._live
            if live.in_handler
        )

    def start(self, record: ClaimedRecord, sent: float) -> None:
        """Start an execution of ``record``; ``sent`` is the monotonic instant before its claim was sent."""
        job = self._jobs[record.name]
        held = self._held(job, record, sent)
        context = Context(record=record, max_tries=job.max_tries, holder=held)
        live = _Live(job, record, held, self._slots.take(record.name), context, self._clock.now())
        self._live.add(live)
        self._keeper.hold(live.held, lambda: self._lost(live))
        live.task = asyncio.create_task(self._run(live), name=f"gangline-job-{record.id}")

    async def drain(self, grace: float, hurry: asyncio.Event) -> None:
        """Let running executions end for ``grace`` seconds or until ``hurry``, then hand the rest back."""
        await self._wait_for_all(grace, hurry)
        for live in list(self._live):
            if live.in_handler and live.task is not None:
                live.held.ask_to_end()
                live.task.cancel()
        await self._wait_for_all(UNWIND_SECONDS, None)
        for live in list(self._live):
            if live.in_handler:
                self._hand_back(live)
        await self._wait_for_all(UNWIND_SECONDS, None)  # in a hurry too: what is handed back must be written
        await self._wait_for_all(self._longest_lease(), hurry)

    async def abandon(self) -> None:
        """Forget what is left: handlers that do not end, and outcomes that could not be written in time."""
        tasks = {live.task for live in self._live if live.task is not None} | self._asides
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=UNWIND_SECONDS)

    def _longest_lease(self) -> float:
        """Until when an outcome that waits for the server may still be written under its lease, in seconds from now."""
        deadlines = [live.held.deadline - time.monotonic() for live in self._unsettled]
        return max(deadlines, default=0.0) + UNWIND_SECONDS

    async def _wait_for_all(self, seconds: float, hurry: asyncio.Event | None) -> None:
        everything = asyncio.ensure_future(self._everything())
        hurried = asyncio.ensure_future(hurry.wait()) if hurry is not None else None
        waits = {everything, hurried} if hurried is not None else {everything}
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _everything(self) -> None:
        while self._unsettled or self._asides or not all(live.given_up for live in self._live):
            self._progressed.clear()
            await self._progressed.wait()

    def _hand_back(self, live: _Live) -> None:
        """Hand back the record of a handler that does not listen; it goes on without the right to write."""
        self._keeper.let_go(live.held)
        live.in_handler = False
        live.given_up = live.held.lost = True
        self._settle(live, Run(Interrupted()))

    async def _run(self, live: _Live) -> None:
        if time.monotonic() >= live.held.deadline:
            live.held.lose()  # the claim's answer took longer than its lease: another execution may run by now
            self._end(live)
            return
        try:
            run = await self._executor.run(live.job, live.context)
        except asyncio.CancelledError:
            run = Run(Interrupted())
        self._end(live)
        if run.lingering is None:
            live.slot.release()
        else:
            run.lingering.add_done_callback(lambda _: live.slot.release())
        if not live.held.lost:
            self._settle(live, run)

    def _end(self, live: _Live) -> None:
        live.in_handler = False
        self._keeper.let_go(live.held)
        self._live.discard(live)
        self._progressed.set()

    def _settle(self, live: _Live, run: Run) -> None:
        now = self._clock.now()
        decision = decide(live.record, live.job, run.ending, now=now, chance=self._random.random())
        settlement = Settlement(self._execution(live, decision.outcome, now), decision.fate)
        self._unsettled.add(live)
        self._settling.settle(
            settlement,
            deadline=live.held.deadline,
            tell=lambda verdict: self._settled(live, run, decision.fate, verdict),
        )

    def _settled(self, live: _Live, run: Run, fate: Fate, verdict: Verdict) -> None:
        self._unsettled.discard(live)
        self._progressed.set()
        if verdict is Verdict.LOST:
            self._aside(self._tell_stale(live))
        elif isinstance(fate, HandBack):
            self.handed_back += 1
        elif isinstance(fate, Bury) and not isinstance(run.ending, Unfit):
            self._aside(self._executor.tell_dead(live.job, live.context, run.error))

    def _lost(self, live: _Live) -> None:
        if not live.in_handler:
            return  # it began to settle while the keeper's word was on its way: that write tells
        # The slot frees now: the record is another execution's, and this handler may run for long yet.
        live.slot.release()
        self._aside(self._write_stale(live))

    async def _write_stale(self, live: _Live) -> None:
        failure = Failure("LeaseLost", "its lease ended before the handler did")
        outcome = Outcome(status=Status.STALE, failure=failure)
        try:
            await self._history.write([self._execution(live, outcome, self._clock.now())])
        except StoreError as error:
            live.context.logger.warning("its history could not be written: %s", error)
        await self._tell_stale(live)

    async def _tell_stale(self, live: _Live) -> None:
        if live.told_stale:
            return
        live.told_stale = True
        live.context.logger.warning(
            "job %s (%s) lost its lease; what it did changes nothing",
            live.record.name,
            live.record.id,
            extra={"event": "lease_lost"},
        )
        await self._executor.tell_stale(live.job, live.context)

    def _execution(self, live: _Live, outcome: Outcome, now: datetime) -> Execution:
        return Execution(
            record=live.record, outcome=outcome, started_at=live.started_at, ended_at=now, worker=self._worker
        )

    def _held(self, job: JobDefinition, record: ClaimedRecord, sent: float) -> HeldLease:
        renew = self._settings.renew if job.renew is None else job.renew
        length: timedelta = job.lease or self._settings.lease
        return HeldLease(record.lease, record.name, length, renew=renew, claimed=sent)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._asides.add(task)
        task.add_done_callback(self._aside_ended)

    def _aside_ended(self, task: asyncio.Task[None]) -> None:
        self._asides.discard(task)
        self._progressed.set()
