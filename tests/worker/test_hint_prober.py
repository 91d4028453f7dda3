"""The prober of acquisition shapes: how it measures, what it learns from it, and what workers do with that."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from urllib.parse import urlsplit

import pytest
from pymongo.errors import AutoReconnect, PyMongoError

from gangline import Context, Gangline
from gangline.jobs.hint import Sample, Shape
from gangline.store.eligibility import INDEX_OF
from gangline.store.probe import probe
from gangline.store.schema import READY_BY_NAME, READY_BY_PRIORITY
from gangline.worker.hint_prober import HintProber
from support.apps import Raw, eventually, running, soon
from support.commands import Commands, recorded
from support.explaining import explained
from support.records import Queue, open_queue

PARTITIONS = 1_000
FREE_OF_CHARGE, DEAR = Sample(0, 1), Sample(0, 100)


@dataclass
class FakeProbe:
    """Answers with `best` as the cheaper shape, and keeps what it was asked."""

    best: Shape = Shape.BY_PRIORITY
    error: PyMongoError | None = None
    asked: list[tuple[Shape, int]] = field(default_factory=list)

    async def __call__(self, shape: Shape, partition: int) -> Sample:
        self.asked.append((shape, partition))
        if self.error is not None:
            raise self.error
        return FREE_OF_CHARGE if shape is self.best else DEAR


class Announced:
    """Counts the calls of `chosen`."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def prober_of(measure: FakeProbe, announced: Callable[[], None] = lambda: None) -> HintProber:
    return HintProber(measure, PARTITIONS, Random(1), announced)


# How it measures


async def test_each_shape_is_sampled_three_times_and_each_is_first_in_its_turn() -> None:
    measure = FakeProbe()
    await prober_of(measure).run_once(measure)
    asked = [shape for shape, _ in measure.asked]
    first, second = Shape
    assert asked == [first, second, second, first, first, second]


async def test_both_shapes_of_a_pair_are_measured_on_the_same_partition_and_pairs_on_random_ones() -> None:
    measure = FakeProbe()
    await prober_of(measure).run_once(measure)
    partitions = [partition for _, partition in measure.asked]
    assert partitions[0::2] == partitions[1::2]
    assert len(set(partitions)) == 3
    assert all(0 <= partition < PARTITIONS for partition in partitions)


# What it learns


async def test_the_first_probe_decides_and_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gangline.hint")
    measure, announced = FakeProbe(best=Shape.BY_PRIORITY), Announced()
    prober = prober_of(measure, announced)
    before = prober.shape
    await prober.run_once(measure)
    assert (before, prober.shape) == (Shape.BY_NAME, Shape.BY_PRIORITY)
    assert announced.times == 1
    [record] = caplog.records
    assert record.__dict__["event"] == "hint_chosen"
    assert record.__dict__["shape"] == "by-priority"
    assert record.__dict__["examined"] == {"by-name": [100] * 3, "by-priority": [1] * 3}


async def test_a_first_probe_that_confirms_the_shape_is_announced_too() -> None:
    measure, announced = FakeProbe(best=Shape.BY_NAME), Announced()
    prober = prober_of(measure, announced)
    await prober.run_once(measure)
    assert (prober.shape, announced.times) == (Shape.BY_NAME, 1)


async def test_later_the_other_shape_needs_two_wins_in_a_row_and_only_the_change_is_announced() -> None:
    measure, announced = FakeProbe(best=Shape.BY_NAME), Announced()
    prober = prober_of(measure, announced)
    seen = []
    for best in (Shape.BY_NAME, Shape.BY_PRIORITY, Shape.BY_NAME, Shape.BY_PRIORITY, Shape.BY_PRIORITY):
        measure.best = best
        await prober.run_once(measure)
        seen.append((prober.shape, announced.times))
    assert seen == [(Shape.BY_NAME, 1)] * 4 + [(Shape.BY_PRIORITY, 2)]


async def test_a_failing_probe_keeps_the_shape_and_counts_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gangline.hint")
    measure, announced = FakeProbe(best=Shape.BY_NAME), Announced()
    prober = prober_of(measure, announced)
    await prober.run_once(measure)
    measure.best = Shape.BY_PRIORITY
    await prober.run_once(measure)
    caplog.clear()
    measure.error = AutoReconnect("gone")
    await prober.run_once(measure)
    assert (prober.shape, announced.times) == (Shape.BY_NAME, 1)
    assert [record.__dict__["event"] for record in caplog.records] == ["probe_failed"]
    measure.error = None
    await prober.run_once(measure)
    assert prober.shape is Shape.BY_PRIORITY, "the failure did not interrupt the row"


async def test_a_prober_without_a_probe_keeps_its_first_shape_and_ends() -> None:
    prober = HintProber(None, PARTITIONS, Random(1), lambda: None, first=Shape.BY_PRIORITY)
    await soon(prober.run())
    assert prober.shape is Shape.BY_PRIORITY


# When


async def test_it_probes_at_start_and_then_after_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    thrice = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            thrice.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("gangline.worker.hint_prober.asyncio.sleep", sleep)
    measure = FakeProbe()
    task = asyncio.create_task(prober_of(measure).run())
    await soon(thrice.wait())
    await cancelled(task)
    assert waits == [30 * 60.0] * 3
    assert len(measure.asked) == 3 * 6


async def test_cancelling_ends_it_while_it_waits_for_the_next_probe() -> None:
    measure, announced = FakeProbe(), asyncio.Event()
    task = asyncio.create_task(prober_of(measure, announced.set).run())
    await soon(announced.wait())
    await cancelled(task)
    assert len(measure.asked) == 6


async def test_cancelling_ends_it_while_a_probe_waits_for_the_server() -> None:
    asked = asyncio.Event()

    async def hangs(_shape: Shape, _partition: int) -> Sample:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(HintProber(hangs, PARTITIONS, Random(1), lambda: None).run())
    await soon(asked.wait())
    await cancelled(task)


async def cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel `task` and see it end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)


# On real data

FIFTY = [f"job{number:02}" for number in range(50)]


def by_work(queue: Queue, names: list[str]) -> Callable[[Shape, int], Awaitable[Sample]]:
    """The real probe, but for the time that a busy machine adds."""

    async def measure(shape: Shape, partition: int) -> Sample:
        return replace(await probe(queue.records, shape, partition, names, queue.now), milliseconds=0)

    return measure


@pytest.mark.parametrize(
    ("served", "best"), [(FIFTY[17:18], Shape.BY_NAME), (FIFTY, Shape.BY_PRIORITY)], ids=["one name", "all names"]
)
@pytest.mark.parametrize("first", Shape)
async def test_in_a_queue_of_fifty_names_the_worker_of_one_claims_by_name_and_that_of_all_by_priority(
    uri: str, served: list[str], best: Shape, first: Shape
) -> None:
    random = Random(5)
    async with open_queue(uri) as queue:
        await queue.insert_all(
            [
                {"jobName": random.choice(FIFTY), "partition": number % 4, "priority": random.choice([50, 100])}
                for number in range(3_000)
            ]
        )
        measure = by_work(queue, served)
        prober = HintProber(measure, 4, random, lambda: None, first=first)
        await prober.run_once(measure)
    assert prober.shape is best


# What workers do with it


@pytest.fixture
def commands(uri: str) -> Iterator[Commands]:
    """What Gangline sends for the database of the test."""
    with recorded(urlsplit(uri).path.strip("/")) as commands:
        yield commands


def claim_hints(commands: Commands) -> set[str]:
    """The indexes that claims were hinted to so far."""
    ready = {index.name for index in INDEX_OF.values()}
    hints = [command.get("hint") for command in commands.named("find", "findAndModify")]
    return {hint for hint in hints if isinstance(hint, str) and hint in ready}


@pytest.fixture
def by_priority_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every probe comes out in favour of the by-priority shape."""

    async def in_favour(_records: object, shape: Shape, *_: object) -> Sample:
        return FREE_OF_CHARGE if shape is Shape.BY_PRIORITY else DEAR

    monkeypatch.setattr("gangline.worker.services.probe", in_favour)


async def shape_is(raw: Raw, shape: Shape) -> None:
    """Wait until the only worker tells that it prefers `shape`."""
    workers = raw.records.database["gangline.workers"]
    await eventually(lambda: workers.find_one({"shape": shape.value}))


@pytest.mark.usefixtures("by_priority_preferred")
async def test_claims_go_by_name_while_a_name_is_at_its_limit_and_by_priority_else(
    app: Gangline, raw: Raw, commands: Commands
) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    runs: Counter[str] = Counter()

    @app.event(max_parallel=1)
    async def limited() -> None:
        started.set()
        await release.wait()

    @app.event()
    async def work(ctx: Context) -> None:
        runs[ctx.name] += 1

    async with running(app, concurrency=4, poll_interval="10ms"):
        await shape_is(raw, Shape.BY_PRIORITY)
        commands.clear()
        await work.schedule()
        await eventually(raw.finished)
        assert claim_hints(commands) == {READY_BY_PRIORITY.name}

        await limited.schedule()
        await soon(started.wait())
        commands.clear()
        await app.schedule_many([work.call() for _ in range(10)])
        await eventually(lambda: runs["work"] == 11)
        assert claim_hints(commands) == {READY_BY_NAME.name}
        release.set()
        await eventually(raw.finished)
        commands.clear()
        await work.schedule()
        await eventually(raw.finished)
        assert claim_hints(commands) == {READY_BY_PRIORITY.name}


async def test_a_worker_of_many_names_tells_what_it_prefers_without_a_probe(app: Gangline, raw: Raw) -> None:
    async def work() -> None: ...

    for number in range(201):
        app.event(name=f"job{number}")(work)
    with recorded(raw.records.database.name) as commands:
        async with running(app):
            await shape_is(raw, Shape.BY_PRIORITY)
        assert not commands.named("explain")


async def test_a_worker_of_few_names_probes_at_start_and_tells_the_outcome(
    app: Gangline, raw: Raw, commands: Commands
) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app):
        await eventually(lambda: len(commands.named("explain")) == 6)
        await eventually(lambda: raw.records.database["gangline.workers"].find_one())


@pytest.mark.parametrize("concurrency", [1, 8], ids=["find-and-modify", "batch"])
async def test_claims_of_250_names_never_sort_in_memory(
    app: Gangline, raw: Raw, uri: str, commands: Commands, concurrency: int
) -> None:
    """By priority while all have room; by name, in parts, while one is saturated; and no name waits for a poll."""
    started, release = asyncio.Event(), asyncio.Event()
    ran: set[str] = set()

    @app.event(max_parallel=1)
    async def limited() -> None:
        started.set()
        await release.wait()

    async def work(ctx: Context) -> None:
        ran.add(ctx.name)

    others = [app.event(name=f"job{number:03}")(work) for number in range(249)]
    async with running(app, concurrency=concurrency + 1, poll_interval="60s"):
        await others[0].schedule()
        await eventually(raw.finished)
        await limited.schedule()
        await soon(started.wait())
        await app.schedule_many([other.call() for other in others])
        await eventually(lambda: len(ran) == len(others))
        release.set()
        await eventually(raw.finished)
    assert claim_hints(commands) == {READY_BY_NAME.name, READY_BY_PRIORITY.name}
    await assert_none_sorts(uri, commands)


async def assert_none_sorts(uri: str, commands: Commands) -> None:
    """Explain one claim of each kind that was sent."""
    kinds = {}
    for command in commands.named("find", "findAndModify"):
        names = command.get("filter", command.get("query", {})).get("jobName")
        if "sort" in command and isinstance(names, dict):
            kinds[command.get("hint"), len(names["$in"]), "limit" in command] = command
    assert kinds
    async with open_queue(uri) as queue:
        for command in kinds.values():
            plan = await explained(queue.records, command)
            assert "SORT" not in plan.stages
