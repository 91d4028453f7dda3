"""The settle queue alone: groups, repetitions, refusals."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from gangline.jobs.lease import Lease
from gangline.jobs.outcome import Outcome, Remove, Status
from gangline.jobs.record import ClaimedRecord
from gangline.store.history import Execution
from gangline.store.settle import Settlement, Verdict
from gangline.worker import settling
from gangline.worker.settling import SettleQueue
from support.apps import eventually, soon

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def settlement(name: str) -> Settlement:
    record = ClaimedRecord(
        id=name,
        name="job",
        type="event",
        priority=100,
        next_run_at=EPOCH,
        params={},
        unique=None,
        tries=1,
        was_stale=False,
        claimed_at=EPOCH,
        lease=Lease(name, f"lock of {name}"),
        anchor=EPOCH,
    )
    outcome = Outcome(status=Status.SUCCESS)
    return Settlement(
        Execution(record=record, outcome=outcome, started_at=EPOCH, ended_at=EPOCH, worker="w"), fate=Remove()
    )


class Store:
    """Settles what it is given, in the groups it is given; `fails` may raise for a group."""

    def __init__(self) -> None:
        self.groups: list[list[Settlement]] = []
        self.fails: Callable[[list[str]], None] = lambda names: None
        self.lost: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        self.groups.append(list(settlements))
        names = [item.lease.record_id for item in settlements]
        await self.gate.wait()
        self.fails(names)
        return [Verdict.LOST if name in self.lost else Verdict.HELD for name in names]

    def written(self) -> list[list[str]]:
        return [[item.lease.record_id for item in group] for group in self.groups]


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def queue(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SettleQueue]:
    monkeypatch.setattr(settling, "LINGER", 0)
    queue = SettleQueue(store, random.Random(1), monotonic=lambda: 100.0)
    queue.start()
    yield queue
    await queue.stop()


@pytest.fixture
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.worker.backoff.Backoff.next", lambda self: 0.001)


def settle(queue: SettleQueue, *names: str, deadline: float = 200.0) -> Any:
    """Settle these at once, and give their verdicts."""
    verdicts = []
    for name in names:
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        queue.settle(settlement(name), deadline=deadline, tell=verdict.set_result)
        verdicts.append(verdict)
    return asyncio.gather(*verdicts)


async def test_what_ends_together_is_settled_together(queue: SettleQueue, store: Store) -> None:
    store.lost = {"b"}
    assert await soon(settle(queue, "a", "b", "c")) == [Verdict.HELD, Verdict.LOST, Verdict.HELD]
    assert store.written() == [["a", "b", "c"]]
    assert not any(item.doubtful or item.repeated for item in store.groups[0])


async def test_a_group_has_a_largest_size(queue: SettleQueue, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "MAX_GROUP", 2)
    await soon(settle(queue, *"abcde"))
    assert sorted(map(len, store.groups)) == [1, 2, 2]
    assert sorted(name for group in store.written() for name in group) == list("abcde")


async def test_what_ends_while_a_group_is_on_its_way_shares_the_next_ones(queue: SettleQueue, store: Store) -> None:
    store.gate.clear()
    verdicts = [settle(queue, "a")]
    await eventually(lambda: len(store.groups) == 1)
    verdicts.append(settle(queue, "b"))
    await eventually(lambda: len(store.groups) == 2)
    verdicts.append(settle(queue, "c", "d"))
    store.gate.set()
    await soon(asyncio.gather(*verdicts))
    assert store.written() == [["a"], ["b"], ["c", "d"]]


async def test_an_execution_whose_lease_may_have_ended_is_doubtful(queue: SettleQueue, store: Store) -> None:
    await soon(asyncio.gather(settle(queue, "sure", deadline=100.1), settle(queue, "doubtful", deadline=100.0)))
    assert [(item.lease.record_id, item.doubtful) for item in store.groups[0]] == [("sure", False), ("doubtful", True)]


@pytest.mark.usefixtures("_no_patience")
async def test_an_unreachable_server_is_asked_until_it_answers(queue: SettleQueue, store: Store) -> None:
    failures = 8

    def fail(names: list[str]) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise AutoReconnect("away")

    store.fails = fail
    assert await soon(settle(queue, "a")) == [Verdict.HELD]
    assert [group[0].repeated for group in store.groups] == [False] + [True] * 8


@pytest.mark.usefixtures("_no_patience")
@pytest.mark.parametrize(
    "error", [OperationFailure("too large", code=10334), ValueError("not from the driver")], ids=["server", "odd"]
)
async def test_one_that_is_refused_holds_nobody_else(queue: SettleQueue, store: Store, error: Exception) -> None:
    def refuse(names: list[str]) -> None:
        if "bad" in names:
            raise error

    store.fails = refuse
    verdicts = await soon(settle(queue, "a", "bad", "b"))
    assert verdicts == [Verdict.HELD, Verdict.LOST, Verdict.HELD]
    assert store.written().count(["bad"]) == settling.MAX_REFUSALS
    assert store.written().count(["a"]) == store.written().count(["b"]) == 1
    assert await soon(settle(queue, "next one")) == [Verdict.HELD]


async def test_one_that_waits_for_its_turn_to_repeat_holds_nobody_of_its_group(
    queue: SettleQueue, store: Store
) -> None:
    """The server cannot take one of them (a shard is away): the others are settled meanwhile."""
    away = True

    def fail(names: list[str]) -> None:
        if away and "slow" in names:
            raise AutoReconnect("its shard is away")

    store.fails = fail
    slow, others = settle(queue, "slow"), settle(queue, "a", "b")
    assert await soon(others) == [Verdict.HELD] * 2
    assert not slow.done()
    away = False
    assert await soon(slow) == [Verdict.HELD]


async def test_a_stopped_queue_writes_and_tells_nothing_more(store: Store) -> None:
    queue = SettleQueue(store, random.Random(1))
    queue.start()
    store.gate.clear()
    on_its_way = settle(queue, "a")
    await eventually(lambda: store.groups)
    await queue.stop()
    store.gate.set()
    late = settle(queue, "b")
    await asyncio.sleep(2 * settling.LINGER)
    assert store.written() == [["a"]]
    assert not on_its_way.done()
    assert not late.done()
