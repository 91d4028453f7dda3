"""The lease keeper alone: a store that is told what to answer, a clock that is moved by hand."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest
from pymongo.errors import AutoReconnect

from gangline import LeaseLost
from gangline.jobs.lease import Lease
from gangline.worker.lease_keeper import RETRY_AFTER_ERROR, HeldLease, LeaseKeeper
from support.apps import eventually, soon

LENGTH = timedelta(seconds=30)


class Clock:
    """Monotonic time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """Notes what is renewed; answers as told."""

    def __init__(self) -> None:
        self.renewed: list[tuple[set[str], timedelta]] = []
        self.lost: set[str] = set()
        self.errors: list[Exception] = []
        self.closed = threading.Event()

    def renew(self, leases: Sequence[Lease], length: timedelta) -> list[Lease]:
        if self.errors:
            raise self.errors.pop(0)
        self.renewed.append(({lease.lock_id for lease in leases}, length))
        return [lease for lease in leases if lease.lock_id in self.lost]

    def close(self) -> None:
        self.closed.set()


class Keeper(LeaseKeeper):
    """A keeper whose passes the test makes, on a loop that runs what it is told."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Store, clock)
        self._loop = asyncio.get_running_loop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def keeper(clock: Clock) -> Keeper:
    return Keeper(clock)


def held_lease(clock: Clock, lock_id: str, length: timedelta = LENGTH, *, renew: bool = True) -> HeldLease:
    return HeldLease(Lease(f"record of {lock_id}", lock_id), "job", length, renew=renew, claimed=clock.now)


async def test_a_lease_is_renewed_after_a_third_of_its_length(keeper: Keeper, store: Store, clock: Clock) -> None:
    keeper.hold(held_lease(clock, "a"), pytest.fail)
    clock.now += 9.9
    keeper.run_once(store)
    assert store.renewed == []
    clock.now += 0.1
    keeper.run_once(store)
    keeper.run_once(store)
    clock.now += 9.9
    keeper.run_once(store)
    assert store.renewed == [({"a"}, LENGTH)]
    clock.now += 0.1
    keeper.run_once(store)
    assert len(store.renewed) == 2


async def test_leases_of_one_length_are_renewed_together(keeper: Keeper, store: Store, clock: Clock) -> None:
    short = timedelta(seconds=3)
    for lock_id, length in (("a", LENGTH), ("b", LENGTH), ("c", short)):
        keeper.hold(held_lease(clock, lock_id, length), pytest.fail)
    clock.now += 10
    keeper.run_once(store)
    assert sorted(store.renewed, key=lambda item: item[1]) == [({"c"}, short), ({"a", "b"}, LENGTH)]


async def test_a_lease_that_was_let_go_is_not_renewed(keeper: Keeper, store: Store, clock: Clock) -> None:
    held = held_lease(clock, "a")
    keeper.hold(held, pytest.fail)
    keeper.let_go(held)
    clock.now += 10
    keeper.run_once(store)
    assert store.renewed == []


async def test_a_renewal_that_finds_its_lock_gone_is_told_once(keeper: Keeper, store: Store, clock: Clock) -> None:
    told: list[str] = []
    held, other = held_lease(clock, "a"), held_lease(clock, "b")
    keeper.hold(held, lambda: told.append("a"))
    keeper.hold(other, pytest.fail)
    store.lost = {"a"}
    clock.now += 10
    keeper.run_once(store)
    await eventually(lambda: told)
    assert held.lost
    assert held.should_end
    assert not other.lost
    clock.now += 10
    keeper.run_once(store)
    assert store.renewed[-1] == ({"b"}, LENGTH)
    assert told == ["a"]


async def test_an_execution_that_began_to_settle_is_not_told(keeper: Keeper, store: Store, clock: Clock) -> None:
    """It lets go while the renewal is on its way, and learns from its own write."""
    held = held_lease(clock, "a")
    keeper.hold(held, pytest.fail)

    class Settling(Store):
        def renew(self, leases: Sequence[Lease], length: timedelta) -> list[Lease]:
            keeper.let_go(held)
            return list(leases)

    clock.now += 10
    keeper.run_once(Settling())
    await asyncio.sleep(0)
    assert not held.lost


async def test_an_unreachable_server_takes_no_lease_away_and_is_asked_again(
    keeper: Keeper, store: Store, clock: Clock
) -> None:
    held = held_lease(clock, "a")
    keeper.hold(held, pytest.fail)
    store.errors = [AutoReconnect("away")]
    clock.now += 60  # far beyond the end of the lease: only the server may say that it is lost
    keeper.run_once(store)
    keeper.run_once(store)
    assert store.renewed == []
    clock.now += RETRY_AFTER_ERROR
    keeper.run_once(store)
    await asyncio.sleep(0)
    assert store.renewed == [({"a"}, LENGTH)]
    assert not held.lost


async def test_a_lease_without_renewal_ends_by_itself(keeper: Keeper, store: Store, clock: Clock) -> None:
    told: list[str] = []
    held = held_lease(clock, "a", renew=False)
    keeper.hold(held, lambda: told.append("a"))
    clock.now += 29.9
    keeper.run_once(store)
    await asyncio.sleep(0)
    assert not held.lost
    clock.now += 0.1
    keeper.run_once(store)
    await eventually(lambda: told)
    assert held.lost
    assert store.renewed == []


async def test_an_extension_moves_the_end(keeper: Keeper, store: Store, clock: Clock) -> None:
    held = held_lease(clock, "a", renew=False)
    keeper.hold(held, pytest.fail)
    extended = asyncio.ensure_future(held.extend(timedelta(minutes=5)))
    await asyncio.sleep(0)
    clock.now += 60  # the keeper was busy: the extension and the end of the old lease meet in one pass
    keeper.run_once(store)
    await soon(extended)
    assert store.renewed == [({"a"}, timedelta(minutes=5))]
    assert held.deadline == clock.now + 300
    clock.now += 299
    keeper.run_once(store)
    await asyncio.sleep(0)
    assert not held.lost


async def test_a_shorter_extension_keeps_the_end(keeper: Keeper, store: Store, clock: Clock) -> None:
    held = held_lease(clock, "a", renew=False)
    keeper.hold(held, pytest.fail)
    extended = asyncio.ensure_future(held.extend(timedelta(seconds=1)))
    await asyncio.sleep(0)
    keeper.run_once(store)
    await soon(extended)
    assert held.deadline == clock.now + 30


async def test_extending_a_lost_lease_raises_and_tells(keeper: Keeper, store: Store, clock: Clock) -> None:
    told: list[str] = []
    held = held_lease(clock, "a")
    keeper.hold(held, lambda: told.append("a"))
    store.lost = {"a"}
    extended = asyncio.ensure_future(held.extend(LENGTH))
    await asyncio.sleep(0)
    keeper.run_once(store)
    with pytest.raises(LeaseLost):
        await soon(extended)
    assert told == ["a"]
    with pytest.raises(LeaseLost):
        await held.extend(LENGTH)


async def test_an_extension_that_cannot_be_sent_raises_and_loses_nothing(
    keeper: Keeper, store: Store, clock: Clock
) -> None:
    held = held_lease(clock, "a")
    keeper.hold(held, pytest.fail)
    store.errors = [AutoReconnect("away")]
    extended = asyncio.ensure_future(held.extend(LENGTH))
    await asyncio.sleep(0)
    keeper.run_once(store)
    with pytest.raises(AutoReconnect):
        await soon(extended)
    assert not held.lost


async def test_an_extension_that_nobody_waits_for_any_more_is_dropped(
    keeper: Keeper, store: Store, clock: Clock
) -> None:
    held = held_lease(clock, "a")
    keeper.hold(held, pytest.fail)
    extended = asyncio.ensure_future(held.extend(LENGTH))
    await asyncio.sleep(0)
    extended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await extended
    keeper.run_once(store)
    assert store.renewed == []


async def test_a_blocked_loop_is_reported_once_for_each_time(
    keeper: Keeper, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.hold(held_lease(clock, "a", timedelta(hours=1)), pytest.fail)
    for blocked in (1, 2):
        for _ in range(5):  # this very coroutine is what blocks the loop: it does not await
            keeper.run_once(store)
            clock.now += 1
        assert len(caplog.records) == blocked
        await asyncio.sleep(0)  # the sign of life
    [first, _] = caplog.records
    assert first.levelno == logging.WARNING
    assert first.__dict__["event"] == "loop_blocked"
    assert first.__dict__["job_names"] == ["job"]


async def test_a_loop_that_answers_is_not_reported(
    keeper: Keeper, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.hold(held_lease(clock, "a", timedelta(hours=1)), pytest.fail)
    for _ in range(10):
        keeper.run_once(store)
        clock.now += 1
        await asyncio.sleep(0)
    assert caplog.records == []


# The thread


@pytest.fixture
async def started(store: Store) -> AsyncIterator[LeaseKeeper]:
    """A keeper in its thread, with the real clock."""
    keeper = LeaseKeeper(lambda: store)
    keeper.start()
    yield keeper
    await keeper.stop()


def now_held(lock_id: str, length: timedelta) -> HeldLease:
    return HeldLease(Lease("record", lock_id), "job", length, renew=True, claimed=asyncio.get_running_loop().time())


async def test_the_thread_wakes_for_a_short_lease(started: LeaseKeeper, store: Store) -> None:
    started.hold(now_held("a", timedelta(milliseconds=30)), pytest.fail)
    await eventually(lambda: len(store.renewed) >= 3)


async def test_the_thread_outlives_what_it_did_not_expect(
    started: LeaseKeeper, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.errors = [RuntimeError("not from the driver")]
    started.hold(now_held("a", timedelta(milliseconds=30)), pytest.fail)
    await eventually(lambda: store.renewed)
    assert "not from the driver" in caplog.text


async def test_a_stopped_keeper_has_closed_its_connection_and_refuses_extensions(store: Store) -> None:
    keeper = LeaseKeeper(lambda: store)
    keeper.start()
    held = now_held("a", LENGTH)
    keeper.hold(held, pytest.fail)
    await keeper.stop()
    assert store.closed.is_set()
    with pytest.raises(LeaseLost):
        await soon(held.extend(LENGTH))
    with pytest.raises(LeaseLost):
        held.extend_sync(LENGTH)


async def test_a_keeper_that_never_started_can_be_stopped() -> None:
    await LeaseKeeper(Store).stop()
