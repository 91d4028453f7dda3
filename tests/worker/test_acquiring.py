"""How a running worker finds due jobs: at once, in order, within its limits, and cheaply when there are none.

Where a test says that no poll interval may pass, the interval is longer than the deadline of the whole test.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from gangline import Context, Gangline
from gangline.jobs.settings import ClaimMode
from support.apps import DEADLINE, Document, Raw, eventually, named, running, soon
from support.commands import Commands, recorded

NEVER = 2 * DEADLINE
"""A poll interval that no test survives."""

PROTOCOLS: list[ClaimMode] = ["auto", "batch", "find-and-modify"]


@pytest.fixture
def commands(uri: str) -> Iterator[Commands]:
    """What Gangline sends for the database of the test."""
    with recorded(urlsplit(uri).path.strip("/")) as commands:
        yield commands


@pytest.fixture
async def wide_app(uri: str) -> AsyncIterator[Gangline]:
    """An app with many partitions."""
    async with Gangline(named(uri), partitions=128) as app:
        yield app


async def idle(commands: Commands) -> None:
    """Wait until a worker has looked, found nothing, and sleeps."""
    await eventually(lambda: commands.named("aggregate"))
    seen = -1
    while seen != len(commands.sent):
        seen = len(commands.sent)
        await asyncio.sleep(0.05)


def due(**fields: Any) -> Document:
    """A record that has been due for years."""
    return {
        "jobName": "work",
        "type": "event",
        "priority": 100,
        "nextRunAt": datetime(2020, 1, 1, tzinfo=UTC),
        "params": {},
        **fields,
    }


# No poll interval while something is due


async def test_many_due_records_in_one_partition_of_many_do_not_wait(
    wide_app: Gangline, raw: Raw, commands: Commands
) -> None:
    """Case 64."""
    runs: list[str] = []

    @wide_app.event()
    async def work(ctx: Context) -> None:
        runs.append(ctx.id)

    async with running(wide_app, concurrency=4, poll_interval=NEVER) as worker:
        await idle(commands)
        raw.records.insert_many([due(_id=f"job {number}", partition=77) for number in range(30)])
        worker.wake("work")
        await eventually(raw.finished)
    assert len(runs) == len(set(runs)) == 30


async def test_a_bulk_on_an_idle_worker_does_not_wait(wide_app: Gangline, raw: Raw, commands: Commands) -> None:
    """Case 65."""
    runs: list[int] = []

    @wide_app.event()
    async def work(number: int) -> None:
        runs.append(number)

    async with running(wide_app, concurrency=8, poll_interval=NEVER):
        await idle(commands)
        await wide_app.schedule_many([work.call(number) for number in range(200)])
        await eventually(raw.finished)
    assert sorted(runs) == list(range(200))


async def test_each_single_record_on_an_idle_queue_does_not_wait(
    wide_app: Gangline, raw: Raw, commands: Commands
) -> None:
    """Case 66, wherever the record lies: it costs a look and a claim, and a look that finds the queue empty again."""
    ran = asyncio.Event()

    @wide_app.event()
    async def work() -> None:
        ran.set()

    async with running(wide_app, poll_interval=NEVER):
        await idle(commands)
        commands.clear()
        for _ in range(40):
            await work.schedule()
            await soon(ran.wait())
            ran.clear()
        await eventually(raw.finished)
    assert len(commands.named("aggregate")) <= 40 * 4
    assert len([command for command in commands.named("find") if "sort" in command]) <= 40 * 3


async def test_a_delayed_job_runs_at_its_instant(wide_app: Gangline, raw: Raw, commands: Commands) -> None:
    @wide_app.event()
    async def work() -> None: ...

    async with running(wide_app, poll_interval=NEVER):
        await idle(commands)
        await work.options(run_in="300ms").schedule()
        due_at = raw.record()["nextRunAt"]
        await eventually(raw.finished)
    assert raw.entries()[0]["startedAt"] >= due_at
    assert len(commands.named("aggregate")) < 20


async def test_a_job_that_schedules_another_does_not_wait_for_it(wide_app: Gangline, raw: Raw) -> None:
    seen: list[int] = []
    over = asyncio.Event()

    @wide_app.event()
    async def chain(number: int) -> None:
        seen.append(number)
        if number:
            await chain.schedule(number - 1)
        else:
            over.set()

    async with running(wide_app, concurrency=1, poll_interval=NEVER):
        await chain.schedule(20)
        await soon(over.wait())
    assert seen == list(range(20, -1, -1))


# Idle


def acquiring(commands: Commands) -> list[str]:
    """The names of the commands by which a scheduler looks and claims."""
    looks_and_claims = ("aggregate", "find", "findAndModify")
    return [name for name, command in commands.sent if name in looks_and_claims and not opens_a_stream(command)]


def opens_a_stream(command: Document) -> bool:
    """Whether it is no look."""
    return "$changeStream" in command.get("pipeline", [{}])[0]


async def looks(commands: Commands, number: int) -> None:
    """Wait until so many more looks were made."""
    before = len(commands.named("aggregate"))
    await eventually(lambda: len(commands.named("aggregate")) >= before + number)


async def test_an_idle_worker_sends_one_command_per_poll_interval(wide_app: Gangline, commands: Commands) -> None:
    """Case 39."""

    @wide_app.event()
    async def work() -> None: ...

    async with running(wide_app, poll_interval="100ms"):
        await idle(commands)
        commands.clear()
        start = time.monotonic()
        await looks(commands, 10)
        intervals = (time.monotonic() - start) / 0.1
        assert len(acquiring(commands)) <= intervals + 1
        explained = len(commands.named("explain"))  # the adaptive hint samples once, soon after the start
        assert len(commands.sent) - explained <= intervals + 3


async def test_a_worker_without_a_free_slot_sends_nothing(app: Gangline, raw: Raw, commands: Commands) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await release.wait()

    async with running(app, concurrency=1, poll_interval="10ms"):
        await app.schedule_many([work.call(), work.call()])
        await soon(started.wait())
        commands.clear()
        await asyncio.sleep(0.2)  # twenty poll intervals, in which nothing may happen
        assert acquiring(commands) == []
        release.set()
        await eventually(raw.finished)


ODD_RECORDS = {
    "partition out of range": due(_id="odd", partition=128),
    "partition negative": due(_id="odd", partition=-1),
    "partition missing": due(_id="odd"),
    "partition a text": due(_id="odd", partition="3"),
    "partition a fraction": due(_id="odd", partition=3.5),
    "partition an array": due(_id="odd", partition=[3]),
    "no instant": due(_id="odd", partition=3, nextRunAt=None),
    "an instant as text": due(_id="odd", partition=3, nextRunAt="2020-01-01"),
    "priority a text": due(_id="odd", partition=3, priority="high"),
    "tries infinite": due(_id="odd", partition=3, tries=float("inf")),
    "tries not a number": due(_id="odd", partition=3, tries=float("nan")),
}


@pytest.mark.parametrize("odd", ODD_RECORDS)
async def test_an_odd_record_neither_stops_a_worker_nor_makes_it_spin(
    wide_app: Gangline, raw: Raw, commands: Commands, odd: str
) -> None:
    @wide_app.event(max_tries=1)
    async def work() -> None: ...

    raw.records.insert_one(ODD_RECORDS[odd])
    async with running(wide_app, poll_interval="100ms"):
        await work.schedule()
        await eventually(lambda: raw.history.find_one({"jobId": {"$ne": "odd"}}))
        await looks(commands, 2)  # let what a start brings with it pass
        commands.clear()
        start = time.monotonic()
        await looks(commands, 4)
        intervals = (time.monotonic() - start) / 0.1
        assert len(commands.named("aggregate", "findAndModify", "update")) <= 3 * (intervals + 1)


# Limits


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_no_more_of_a_name_run_at_once_than_it_allows_and_others_go_on(
    app: Gangline, raw: Raw, protocol: ClaimMode
) -> None:
    release = asyncio.Event()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.event(max_parallel=2)
    async def limited() -> None:
        now["limited"] += 1
        most["limited"] = max(most["limited"], now["limited"])
        await release.wait()
        now["limited"] -= 1

    @app.event(priority=1)
    async def free() -> None: ...

    await app.schedule_many([limited.call() for _ in range(20)] + [free.call() for _ in range(20)])
    async with running(app, concurrency=8, claim=protocol):
        await eventually(lambda: raw.history.count_documents({"jobName": "free"}) == 20)
        await eventually(lambda: now["limited"] == 2)
        assert raw.records.count_documents({"jobName": "limited", "lockId": {"$ne": None}}) == 2
        release.set()
        await eventually(raw.finished)
    assert most["limited"] == 2


async def test_sorted_updates_keep_to_the_limit_of_a_name(sorted_uri: str) -> None:
    now: list[int] = []
    most: list[int] = []
    async with Gangline(sorted_uri, partitions=2) as app:

        @app.event(max_parallel=2)
        async def limited(number: int) -> None:
            now.append(number)
            most.append(len(now))
            await asyncio.sleep(0.01)
            now.remove(number)

        await app.schedule_many([limited.call(number) for number in range(12)])
        with Raw(sorted_uri) as raw:
            async with running(app, concurrency=8):
                await eventually(raw.finished)
    assert max(most) <= 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_no_more_is_claimed_than_there_are_free_slots(
    app: Gangline, raw: Raw, protocol: ClaimMode, commands: Commands
) -> None:
    started: list[int] = []
    release = asyncio.Event()

    @app.event()
    async def work(number: int) -> None:
        started.append(number)
        await release.wait()

    await app.schedule_many([work.call(number) for number in range(20)])
    async with running(app, concurrency=3, claim=protocol) as worker:
        await eventually(lambda: len(started) == 3)
        await idle(commands)
        assert raw.records.count_documents({"lockId": {"$ne": None}}) == 3
        assert len(worker.running_executions) == 3
        release.set()
        await eventually(raw.finished)
    assert sorted(started) == list(range(20))
    limits = [command["limit"] for command in commands.named("find") if "limit" in command and "sort" in command]
    assert all(limit <= 3 for limit in limits)


async def test_two_workers_share_the_jobs(app: Gangline, raw: Raw) -> None:
    started: list[int] = []
    release = asyncio.Event()

    @app.event()
    async def work(number: int) -> None:
        started.append(number)
        await release.wait()

    async with running(app, concurrency=2) as one, running(app, concurrency=2) as other:
        await app.schedule_many([work.call(number) for number in range(10)])
        await eventually(lambda: len(started) == 4)
        owners = Counter(record["lockedBy"] for record in raw.records.find({"lockId": {"$ne": None}}))
        release.set()
        await eventually(raw.finished)
    assert owners == {one.name: 2, other.name: 2}
    assert sorted(started) == list(range(10))


async def test_higher_priorities_run_first_and_equals_in_the_order_of_scheduling(uri: str, raw: Raw) -> None:
    """Case 30: one slot, one partition."""
    order: list[tuple[int, int]] = []
    async with Gangline(named(uri), partitions=1) as app:

        @app.event()
        async def work(priority: int, number: int) -> None:
            order.append((priority, number))

        wanted = [(priority, number) for number in range(3) for priority in (0, 10, 5)]
        for priority, number in wanted:
            await work.options(priority=priority).schedule(priority, number)
        async with running(app, concurrency=1):
            await eventually(raw.finished)
    assert order == sorted(wanted, key=lambda item: (-item[0], item[1]))


@pytest.mark.parametrize("limited", [False, True], ids=["by priority", "by name"])
async def test_more_names_than_a_sorted_query_takes_work(
    app: Gangline, raw: Raw, commands: Commands, limited: bool
) -> None:
    """201 names and more, with both shapes of a claim."""
    runs: list[str] = []

    async def work(ctx: Context) -> None:
        runs.append(ctx.name)

    names = [f"job-{number}" for number in range(205)]
    jobs = [app.event(name=name, max_parallel=1 if limited else None)(work) for name in names]
    async with running(app, concurrency=16, poll_interval=NEVER):
        await idle(commands)
        await app.schedule_many([job.call() for job in jobs])
        await eventually(raw.finished)
    assert sorted(runs) == sorted(names)
