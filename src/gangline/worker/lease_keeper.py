"""Keeps the leases of running executions alive, from a thread of its own with a connection of its own.

A handler that blocks the event loop keeps its lease, and is reported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from gangline.jobs.errors import LeaseLost
from gangline.jobs.lease import Lease
from gangline.store.errors import StoreError

logger = logging.getLogger("gangline.leases")

RENEWALS_PER_LEASE = 3
RETRY_AFTER_ERROR = 0.5
LOOP_CHECK_INTERVAL = 1.0
LOOP_BLOCKED_ABOVE = 2.0


class Renewals(Protocol):
    """The store's side of the keeper."""

    def renew(self, leases: Sequence[Lease], length: timedelta) -> list[Lease]:
        """Renew ``leases`` and return those that are lost."""

    def close(self) -> None:
        """Close the connection."""


class HeldLease:
    """The lease of one running execution: the context's view of it, and the keeper's.

    ``deadline`` is this process's cautious idea of its end, by the monotonic clock; only the server knows the real one.
    """

    def __init__(self, lease: Lease, name: str, length: timedelta, *, renew: bool, claimed: float) -> None:
        self.lease = lease
        self.name = name
        self.length = length
        self.renew = renew
        self.deadline = claimed + length.total_seconds()
        self.lost = False
        self.should_end = False
        self._keeper: LeaseKeeper | None = None
        self._on_lost: Callable[[], None] | None = None

    def attach(self, keeper: LeaseKeeper, on_lost: Callable[[], None]) -> None:
        """Connect it with its keeper; ``on_lost`` is called on the event loop, once at most."""
        self._keeper, self._on_lost = keeper, on_lost

    def ask_to_end(self) -> None:
        """See :attr:`Context.should_end`."""
        self.should_end = True

    def lose(self) -> None:
        """Note on the event loop that the lease is lost."""
        if not self.lost:
            self.lost = self.should_end = True
            if self._on_lost is not None:
                self._on_lost()

    async def extend(self, by: timedelta) -> None:
        """See :meth:`Context.extend_lease`."""
        await asyncio.wrap_future(self._extension(by))

    def extend_sync(self, by: timedelta) -> None:
        """See :meth:`Context.extend_lease_sync`."""
        self._extension(by).result()

    def _extension(self, by: timedelta) -> Future[None]:
        if self.lost or self._keeper is None:
            raise LeaseLost(f"job {self.lease.record_id}: another execution may own it")
        return self._keeper.extend(self, by)

    @property
    def due(self) -> float:
        """When the keeper must act: renew it, or see it end."""
        if not self.renew:
            return self.deadline
        return self.deadline - self.length.total_seconds() * (1 - 1 / RENEWALS_PER_LEASE)


@dataclass(frozen=True)
class _Extension:
    held: HeldLease
    by: timedelta
    done: Future[None]


class LeaseKeeper:
    """A thread that renews leases at a third of their length and reports a blocked event loop."""

    def __init__(self, connect: Callable[[], Renewals], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._held: dict[str, HeldLease] = {}
        self._extensions: list[_Extension] = []
        self._stopping = False
        self._not_before = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._watch = _LoopWatch(monotonic)

    def start(self) -> None:
        """Start the thread; call it on the event loop that runs the executions."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="gangline-leases", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; leases are no longer renewed."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def hold(self, held: HeldLease, on_lost: Callable[[], None]) -> None:
        """Keep ``held`` until :meth:`let_go`."""
        held.attach(self, on_lost)
        with self._changed:
            self._held[held.lease.lock_id] = held
            # The thread wakes by itself once a second; only a lease that is due earlier needs to wake it.
            if held.due < self._monotonic() + LOOP_CHECK_INTERVAL:
                self._changed.notify()

    def let_go(self, held: HeldLease) -> None:
        """Renew ``held`` no longer: its execution settles it, or gave it up."""
        with self._changed:
            self._held.pop(held.lease.lock_id, None)

    def extend(self, held: HeldLease, by: timedelta) -> Future[None]:
        """Let ``held`` end ``by`` from now at the earliest."""
        done: Future[None] = Future()
        with self._changed:
            if self._stopping:
                raise LeaseLost(f"job {held.lease.record_id}: its worker has stopped")
            self._extensions.append(_Extension(held, by, done))
            self._changed.notify()
        return done

    def run_once(self, renewals: Renewals) -> None:
        """Do what is due now: extensions, renewals, ends, and a look at the event loop."""
        with self._changed:
            extensions, self._extensions = self._extensions, []
            due = [held for held in self._held.values() if held.due <= self._monotonic()]
        for extension in extensions:
            self._extend(renewals, extension)
        now = self._monotonic()  # an extension may just have moved the end of one that was due
        self._end([held for held in due if not held.renew and held.due <= now])
        if self._monotonic() >= self._not_before:
            self._renew(renewals, [held for held in due if held.renew])
        self._check_loop()

    def _run(self) -> None:
        renewals = self._connect()
        try:
            while self._wait():
                self._pass(renewals)
        finally:
            renewals.close()
            self._refuse_extensions()

    def _pass(self, renewals: Renewals) -> None:
        try:
            self.run_once(renewals)
        except Exception:  # without this thread every lease of the worker would end
            self._not_before = self._monotonic() + RETRY_AFTER_ERROR
            logger.exception("leases could not be renewed", extra={"event": "renewal_failed"})

    def _refuse_extensions(self) -> None:
        with self._changed:
            extensions, self._extensions = self._extensions, []
        for extension in extensions:
            extension.done.set_exception(LeaseLost(f"job {extension.held.lease.record_id}: its worker has stopped"))

    def _wait(self) -> bool:
        with self._changed:
            if not self._stopping and not self._extensions:
                self._changed.wait(self._pause())
            return not self._stopping

    def _pause(self) -> float:
        next_due = min((held.due for held in self._held.values()), default=float("inf"))
        now = self._monotonic()
        return max(0.0, min(max(next_due, self._not_before) - now, LOOP_CHECK_INTERVAL))

    def _renew(self, renewals: Renewals, due: list[HeldLease]) -> None:
        by_length: defaultdict[timedelta, list[HeldLease]] = defaultdict(list)
        for held in due:
            by_length[held.length].append(held)
        for length, group in by_length.items():
            self._renew_group(renewals, group, length)

    def _renew_group(self, renewals: Renewals, group: list[HeldLease], length: timedelta) -> None:
        sent = self._monotonic()
        try:
            lost = {lease.lock_id for lease in renewals.renew([held.lease for held in group], length)}
        except StoreError as error:
            # Only the server's answer can tell that a lease is lost: go on asking.
            self._not_before = self._monotonic() + RETRY_AFTER_ERROR
            logger.warning("leases could not be renewed: %s", error, extra={"event": "renewal_failed"})
            return
        for held in group:
            held.deadline = max(held.deadline, sent + length.total_seconds())
        self._end([held for held in group if held.lease.lock_id in lost])

    def _extend(self, renewals: Renewals, extension: _Extension) -> None:
        if not extension.done.set_running_or_notify_cancel():
            return  # the handler was cancelled while it waited
        sent = self._monotonic()
        held = extension.held
        try:
            lost = renewals.renew([held.lease], extension.by)
        except StoreError as error:
            extension.done.set_exception(error)
            return
        if lost:
            self._end([held])
            extension.done.set_exception(LeaseLost(f"job {held.lease.record_id}: another execution may own it"))
        else:
            held.deadline = max(held.deadline, sent + extension.by.total_seconds())
            extension.done.set_result(None)

    def _end(self, ended: list[HeldLease]) -> None:
        for held in ended:
            # An execution that began to settle meanwhile has let go, and learns the verdict from its own write.
            with self._changed:
                if self._held.pop(held.lease.lock_id, None) is None:
                    continue
            self._call_on_loop(held.lose)

    def _check_loop(self) -> None:
        with self._changed:
            names = sorted({held.name for held in self._held.values()})
        if names:
            self._watch.look(names, self._call_on_loop)

    def _call_on_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None  # noqa: S101 - start() set it
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # the loop is closed: the executions are gone


class _LoopWatch:
    """Asks the event loop for a sign of life and reports one that is long in coming, once for each time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._asked: float | None = None
        self._reported = False

    def look(self, names: list[str], call_on_loop: Callable[[Callable[[], None]], None]) -> None:
        if self._asked is None:
            self._asked, self._reported = self._monotonic(), False
            call_on_loop(self._answer)
            return
        blocked = self._monotonic() - self._asked
        if blocked > LOOP_BLOCKED_ABOVE and not self._reported:
            self._reported = True
            logger.warning(
                "the event loop has been blocked for %.1f s; running: %s. Leases are kept, but nothing else runs: "
                "make the handler a plain function, so that it gets a thread, or await in it",
                blocked,
                ", ".join(names),
                extra={"event": "loop_blocked", "blocked_seconds": blocked, "job_names": names},
            )

    def _answer(self) -> None:
        self._asked = None
