"""An idle worker is told of what other programs schedule, by a change stream that costs next to nothing.

Where a test says that no poll interval may pass, the interval is longer than the deadline of the whole test.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from gangline import Context, Gangline, Retry
from gangline.store.changes import AWAIT_SECONDS, Change
from gangline.store.errors import StoreError
from gangline.worker.wake_ups import WakeUps
from support.apps import DEADLINE, Document, Raw, eventually, failing, named, running, soon
from support.commands import Commands, recorded
from support.servers import standalone

NEVER = 2 * DEADLINE
"""A poll interval that no test survives."""

LONG_DUE = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def commands(uri: str) -> Iterator[Commands]:
    """What Gangline sends for the database of the test."""
    with recorded(urlsplit(uri).path.strip("/")) as commands:
        yield commands


def streams(commands: Commands) -> list[Document]:
    """The commands that opened a stream."""
    return [each for each in commands.named("aggregate") if "$changeStream" in each["pipeline"][0]]


def looks(commands: Commands) -> int:
    """How often the queue was looked at."""
    return len(commands.named("aggregate")) - len(streams(commands))


async def listening(commands: Commands) -> None:
    """Wait until a worker has opened its stream and waits for changes, having looked once more."""
    await eventually(lambda: commands.named("getMore"))
    seen = -1
    while seen != len(commands.sent):
        seen = len(commands.sent)
        await asyncio.sleep(0.05)


def record(**fields: Any) -> Document:
    """A record as another program writes it."""
    return {
        "_id": "foreign",
        "jobName": "work",
        "type": "event",
        "priority": 100,
        "nextRunAt": LONG_DUE,
        "partition": 1,
        "params": {},
        **fields,
    }


async def test_what_another_program_inserts_is_run_at_once(app: Gangline, raw: Raw, commands: Commands) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
        raw.records.insert_one(record())
        assert [entry["jobId"] for entry in await eventually(raw.finished)] == ["foreign"]


@pytest.mark.parametrize(
    ("waiting", "change"),
    [
        ({"lockId": "other", "lockedUntil": datetime(2100, 1, 1, tzinfo=UTC)}, {"$unset": {"lockedUntil": ""}}),
        ({"nextRunAt": datetime(2100, 1, 1, tzinfo=UTC)}, {"$set": {"nextRunAt": LONG_DUE}}),
        (
            {"status": "maxTriesReached", "maxTriesReachedAt": LONG_DUE},
            {"$unset": {"maxTriesReachedAt": "", "status": ""}},
        ),
    ],
    ids=["handed back", "due earlier", "no longer dead"],
)
async def test_what_another_program_frees_is_run_at_once(
    app: Gangline, raw: Raw, commands: Commands, waiting: Document, change: Mapping[str, Any]
) -> None:
    @app.event()
    async def work() -> None: ...

    raw.records.insert_one(record(**waiting))
    async with running(app, poll_interval=NEVER):
        await listening(commands)
        raw.records.update_one({"_id": "foreign"}, change)
        await eventually(raw.finished)


async def test_a_delayed_job_of_another_program_runs_at_its_instant(
    app: Gangline, raw: Raw, commands: Commands
) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
        due_at = datetime.now(UTC) + timedelta(milliseconds=400)
        raw.records.insert_one(record(nextRunAt=due_at))
        [entry] = await eventually(raw.finished)
    assert entry["startedAt"] >= due_at.replace(microsecond=due_at.microsecond // 1000 * 1000)


async def test_what_came_before_the_stream_was_open_is_seen(app: Gangline, raw: Raw) -> None:
    """The stream tells nothing of what came between the last look and its opening."""

    @app.event()
    async def work() -> None: ...

    with failing(raw, "getMore", mode={"times": 1}, blockConnection=True, blockTimeMS=2_000):
        async with running(app, poll_interval=NEVER):
            await eventually(lambda: stream_cursors(raw))
            raw.records.insert_one(record())
            await eventually(raw.finished)


def stream_cursors(raw: Raw) -> list[Any]:
    """The open streams, as the server sees them."""
    idle = raw.client.admin.aggregate(
        [
            {"$currentOp": {"idleCursors": True}},
            {
                "$match": {
                    "ns": raw.records.full_name,
                    "cursor.originatingCommand.pipeline.$changeStream": {"$exists": 1},
                }
            },
        ]
    )
    return list(idle)


# Cost


async def test_what_a_worker_does_not_run_does_not_wake_it(app: Gangline, raw: Raw, commands: Commands) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
        commands.clear()
        for number in range(50):  # one after another: what comes at once is one look
            raw.records.insert_one(record(_id=f"{number}", jobName="other"))
            await asyncio.sleep(0.01)
        raw.records.update_many({}, {"$set": {"lockedUntil": datetime(2100, 1, 1, tzinfo=UTC)}})
        await asyncio.sleep(0.01)
        raw.records.delete_many({})
        await asyncio.sleep(0.01)
        raw.records.insert_one(record())
        await eventually(raw.finished)
        assert looks(commands) <= 4


async def test_records_that_are_due_later_than_the_next_look_do_not_cause_one(
    app: Gangline, raw: Raw, commands: Commands
) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
        commands.clear()
        later = datetime.now(UTC) + timedelta(days=1)
        for number in range(50):
            raw.records.insert_one(record(_id=f"{number}", nextRunAt=later))
            await asyncio.sleep(0.01)
        raw.records.insert_one(record())
        await eventually(lambda: raw.history.find_one({"jobId": "foreign"}))
        assert looks(commands) <= 4


async def test_a_thousand_records_at_once_are_no_thousand_looks(app: Gangline, raw: Raw, commands: Commands) -> None:
    """Case 46."""

    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
        commands.clear()
        raw.records.insert_many([record(_id=f"{number}", partition=number % 4) for number in range(1_000)])
        await eventually(raw.finished)
    assert raw.history.count_documents({}) == 1_000
    assert looks(commands) < 100


async def test_a_stream_stays_open_while_jobs_trickle_in(app: Gangline, raw: Raw, commands: Commands) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
        for number in range(20):
            raw.records.insert_one(record(_id=f"{number}"))
            await eventually(raw.finished)
    assert len(streams(commands)) == 1


async def test_a_busy_worker_has_no_stream(app: Gangline, raw: Raw, commands: Commands) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await release.wait()

    async with running(app, concurrency=1, poll_interval="50ms"):
        await listening(commands)
        assert stream_cursors(raw)
        raw.records.insert_one(record())
        await soon(started.wait())
        await eventually(lambda: not stream_cursors(raw))
        commands.clear()
        release.set()
        await eventually(lambda: streams(commands))


def test_with_the_looks_it_is_one_command_a_poll_interval() -> None:
    """At the default interval a look comes every 1.025 s on average."""
    assert 1 / 1.025 + 1 / AWAIT_SECONDS <= 1


# Where there is none, and where it breaks


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """What was logged under this event."""
    return [each.getMessage() for each in caplog.records if getattr(each, "event", None) == event]


async def test_notifications_that_are_lost_cost_a_poll_interval(app: Gangline, raw: Raw, commands: Commands) -> None:
    """Case 46: the stream is deaf, and polling goes on."""

    @app.event()
    async def work() -> None: ...

    with failing(raw, "getMore", blockConnection=True, blockTimeMS=5_000):
        async with running(app, poll_interval="50ms"):
            await eventually(lambda: looks(commands) > 2)
            for number in range(100):
                raw.records.insert_one(record(_id=f"{number}"))
            await eventually(raw.finished)


async def test_on_a_standalone_server_a_worker_polls_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Case 45."""
    caplog.set_level(logging.INFO, "gangline")
    server = ExitStack()
    uri = await asyncio.to_thread(server.enter_context, standalone())
    try:
        async with Gangline(uri) as app:

            @app.event()
            async def work() -> None: ...

            async with running(app):
                await eventually(lambda: said(caplog, "wake_ups_unavailable"))
                with Raw(uri) as raw:
                    raw.records.insert_one(record())
                    await eventually(raw.finished)
    finally:
        await asyncio.to_thread(server.close)
    assert said(caplog, "wake_ups_unavailable") == ["new jobs are found by polling: the server is no replica set"]


async def test_with_a_single_socket_a_worker_polls(uri: str, raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gangline")
    async with Gangline(named(uri, maxPoolSize="1")) as app:

        @app.event()
        async def work() -> None: ...

        async with running(app):
            await eventually(lambda: said(caplog, "wake_ups_unavailable"))
            raw.records.insert_one(record())
            await eventually(raw.finished)


async def test_a_stream_that_breaks_is_opened_again_and_nothing_is_missed(
    app: Gangline, raw: Raw, commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gangline")

    @app.event()
    async def work() -> None: ...

    with failing(raw, "getMore", mode={"times": 3}, errorCode=280):  # what no driver resumes
        async with running(app, poll_interval=NEVER):
            await eventually(lambda: len(streams(commands)) >= 4)
            raw.records.insert_one(record())
            await eventually(raw.finished)
    assert len(said(caplog, "wake_ups_interrupted")) == 1


async def test_without_streams_a_worker_only_polls(app: Gangline, raw: Raw, commands: Commands) -> None:
    @app.event()
    async def work() -> None: ...

    async with running(app, change_stream=False):
        await eventually(lambda: looks(commands) > 3)
        raw.records.insert_one(record())
        await eventually(raw.finished)
    assert not streams(commands)


async def test_stopping_waits_for_no_answer_of_the_stream(app: Gangline, raw: Raw, commands: Commands) -> None:
    """It would come after a minute."""

    @app.event()
    async def work() -> None: ...

    async with running(app, poll_interval=NEVER):
        await listening(commands)
    await eventually(lambda: not stream_cursors(raw))


async def test_a_chain_of_retries_is_not_held_up(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def work(ctx: Context) -> None:
        if ctx.tries < 5:
            raise Retry(in_="1ms")

    async with running(app, poll_interval=NEVER):
        await work.schedule()
        await eventually(raw.finished)
    assert len(raw.entries()) == 5


# The service by itself


class Streams:
    """Streams that end as told."""

    def __init__(self, *errors: StoreError) -> None:
        self.errors = list(errors)
        self.opened = self.closed = 0
        self.changes: asyncio.Queue[Change | None] = asyncio.Queue()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Streams"]:
        """Open one, or fail."""
        if self.errors:
            raise self.errors.pop(0)
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1

    async def next(self) -> Change | None:
        """The next change."""
        return await self.changes.get()


@asynccontextmanager
async def service(streams: Streams, woken: list[datetime | None], *, patience: float = 0.0) -> AsyncIterator[WakeUps]:
    """The service, until the block is left."""
    wake_ups = WakeUps(streams.open, woken.append, Random(1), patience=patience)
    task = asyncio.create_task(wake_ups.run())
    try:
        yield wake_ups
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=DEADLINE)
    assert streams.opened == streams.closed


async def test_it_opens_nothing_before_the_worker_rests() -> None:
    streams, woken = Streams(), list[datetime | None]()
    async with service(streams, woken) as wake_ups:
        wake_ups.resting(False)
        await asyncio.sleep(0.01)
        assert streams.opened == 0
        wake_ups.resting(True)
        await eventually(lambda: woken == [None])
        streams.changes.put_nowait(None)
        streams.changes.put_nowait(Change(LONG_DUE))
        await eventually(lambda: woken == [None, LONG_DUE])


async def test_it_closes_when_the_worker_stays_busy_and_not_when_it_rests_again() -> None:
    streams, woken = Streams(), list[datetime | None]()
    async with service(streams, woken, patience=0.02) as wake_ups:
        wake_ups.resting(True)
        await eventually(lambda: streams.opened)
        wake_ups.resting(False)
        wake_ups.resting(True)
        await asyncio.sleep(0.1)
        assert streams.closed == 0
        wake_ups.resting(False)
        await eventually(lambda: streams.closed)
        wake_ups.resting(True)
        await eventually(lambda: streams.opened == 2)


async def test_it_comes_back_after_an_error_and_not_where_there_are_no_streams() -> None:
    woken: list[datetime | None] = []
    streams = Streams(AutoReconnect("gone"), OperationFailure("no right", 13))
    wake_ups = WakeUps(streams.open, woken.append, Random(1), patience=0.0)
    wake_ups.resting(True)
    await soon(wake_ups.run())
    assert streams.errors == []
    assert streams.opened == 0
