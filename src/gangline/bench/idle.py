"""``bench idle``: what workers cost that have nothing to do."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

from gangline.app import Gangline
from gangline.bench.crew import run_together, signals
from gangline.bench.load import server_load
from gangline.bench.queue import opened, start_over
from gangline.bench.report import Progress, Row
from gangline.store.connection import Connection, Document
from gangline.worker.loop import run
from gangline.worker.worker import Worker

SCHEDULER, STREAM, OTHER = "scheduler", "stream", "other"

_WINDOWS = 3
_SETTLE = 1.0  # seconds on top of two polls: what workers do once, at their start, is over by then
_PROFILE = "system.profile"
_PROFILE_ROOM = 64 * 1024  # bytes for what one scheduler does in one poll; a survey's entry has 3 KB
_NAME = "gangline-bench-idle-"


@dataclass(frozen=True, kw_only=True)
class Rest:
    """One row to measure.

    Attributes:
        schedulers: how many workers rest, all in one process, each with a connection of its own.
        polls: how many poll intervals each of the three windows lasts: without workers, with them, and counted.
    """

    partitions: int
    schedulers: int
    poll_interval: float
    polls: int


@dataclass(frozen=True, kw_only=True)
class IdleRow(Row):
    """What rest costs. Commands are those of the queue's database; the driver's heartbeats are not among them.

    Attributes:
        seconds: how long commands were counted.
        commands_per_scheduler_and_poll: whatever touches the records, but for change streams.
        stream_commands_per_scheduler_and_poll: of change streams.
        other_commands_per_scheduler_and_poll: of presence and the like.
        server_cpu_percent: of one core, on top of ``server_cpu_percent_before``; measured while nothing is counted.
        server_cpu_percent_before: without any worker.
        client_cpu_percent: of one core, by the process of all workers, the driver's heartbeats included.
    """

    partitions: int
    schedulers: int
    poll_interval: float
    polls: int
    seconds: float
    commands_per_scheduler_and_poll: float
    stream_commands_per_scheduler_and_poll: float
    other_commands_per_scheduler_and_poll: float
    server_cpu_percent: float
    server_cpu_percent_before: float
    client_cpu_percent: float


@dataclass(frozen=True, kw_only=True)
class _Share:
    uri: str
    rest: Rest


@dataclass(frozen=True, kw_only=True)
class _Cpu:
    """In percent of one core."""

    server: float
    client: float


@dataclass(frozen=True, kw_only=True)
class _Commands:
    seconds: float
    kinds: Mapping[str, int]
    lookers: int
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    before: _Cpu
    working: _Cpu
    commands: _Commands
    records: int


def measure(uri: str, rest: Rest, progress: Progress) -> IdleRow:
    """Measure ``rest`` in the database of ``uri``, which is emptied for it.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked.
    """
    asyncio.run(_empty(uri))
    progress.begin(f"{rest.schedulers} schedulers, {rest.partitions} partitions", _WINDOWS * rest.polls)

    def watch(done: int) -> bool:
        progress.reach(done)
        return False

    [seen] = run_together(_rest, [_Share(uri=uri, rest=rest)], watch=watch)
    return _row(rest, seen)


def _row(rest: Rest, seen: _Seen) -> IdleRow:
    commands = seen.commands
    looks = rest.schedulers * commands.seconds / rest.poll_interval
    rates = {kind: commands.kinds.get(kind, 0) / looks if looks else 0.0 for kind in (SCHEDULER, STREAM, OTHER)}
    return IdleRow(
        partitions=rest.partitions,
        schedulers=rest.schedulers,
        poll_interval=rest.poll_interval,
        polls=rest.polls,
        seconds=commands.seconds,
        commands_per_scheduler_and_poll=rates[SCHEDULER],
        stream_commands_per_scheduler_and_poll=rates[STREAM],
        other_commands_per_scheduler_and_poll=rates[OTHER],
        server_cpu_percent=max(0.0, seen.working.server - seen.before.server),
        server_cpu_percent_before=seen.before.server,
        client_cpu_percent=seen.working.client,
        problems=_problems(rest, seen),
    )


def _problems(rest: Rest, seen: _Seen) -> list[str]:
    problems = []
    if seen.commands.refused:
        problems.append(f"commands could not be counted: the server refused its profiler ({seen.commands.refused})")
    elif seen.commands.lookers != rest.schedulers:
        problems.append(f"{rest.schedulers} schedulers rested, {seen.commands.lookers} of them looked at the queue")
    if seen.records:
        problems.append(f"the queue was not empty: it has {seen.records} records")
    return problems


async def _empty(uri: str) -> None:
    async with opened(uri) as connection:
        await start_over(connection, plain=False)


# In the workers' process


def _rest(share: _Share) -> _Seen:
    return run(_rest_together(share))


async def _rest_together(share: _Share) -> _Seen:
    rest = share.rest
    async with opened(share.uri) as connection:
        signals().ready()
        before = await _cpu(connection, rest)
        async with _workers(share):
            await asyncio.sleep(2 * rest.poll_interval + _SETTLE)
            working = await _cpu(connection, rest)
            commands = await _commands(connection, rest)
        records = await connection.records.count_documents({})
    return _Seen(before=before, working=working, commands=commands, records=records)


@asynccontextmanager
async def _workers(share: _Share) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        workers = [await _worker(stack, share, number) for number in range(share.rest.schedulers)]
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            yield
        finally:
            await asyncio.gather(*(worker.stop() for worker in workers))


async def _worker(stack: AsyncExitStack, share: _Share, number: int) -> Worker:
    app = await stack.enter_async_context(Gangline(_named(share.uri, number), partitions=share.rest.partitions))

    @app.event(name="bench")
    async def nothing() -> None:
        """Never scheduled."""

    return app.worker(poll_interval=share.rest.poll_interval)


def _named(uri: str, number: int) -> str:
    """Let the client give the server a name, so that its commands are known from all others."""
    parts = urlsplit(uri)
    options = [(key, value) for key, value in parse_qsl(parts.query) if key.lower() != "appname"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("appname", f"{_NAME}{number}")])))


async def _window(rest: Rest) -> None:
    for _ in range(rest.polls):
        if signals().stopping:
            return
        await asyncio.sleep(rest.poll_interval)
        signals().add(1)


async def _cpu(connection: Connection, rest: Rest) -> _Cpu:
    database = connection.records.database
    before, client, started = await server_load(database), time.process_time(), time.monotonic()
    await _window(rest)
    seconds, spent = time.monotonic() - started, time.process_time() - client
    load = (await server_load(database)).since(before)
    return _Cpu(server=100 * load.cpu_seconds / seconds, client=100 * spent / seconds)


async def _commands(connection: Connection, rest: Rest) -> _Commands:
    database = connection.records.database
    try:
        async with _profiled(database, rest.schedulers * rest.polls * _PROFILE_ROOM):
            started = time.monotonic()
            await _window(rest)
            seconds = time.monotonic() - started
    except OperationFailure as error:
        return _Commands(seconds=0.0, kinds={}, lookers=0, refused=str(error.details or error))
    entries = await database[_PROFILE].find({"appName": {"$regex": f"^{_NAME}"}}).to_list()
    await database[_PROFILE].drop()
    return _counted(entries, f"{database.name}.{connection.records.name}", seconds)


@asynccontextmanager
async def _profiled(database: AsyncDatabase[dict[str, Any]], size: int) -> AsyncIterator[None]:
    """Have the server write down every operation of the database."""
    await database.command("profile", 0)
    await database[_PROFILE].drop()
    await database.create_collection(_PROFILE, capped=True, size=size)  # by itself it would hold 1 MB
    try:
        await database.command("profile", 2)
        yield
    finally:
        await database.command("profile", 0)


def _counted(entries: Sequence[Document], records: str, seconds: float) -> _Commands:
    kinds = [_kind(entry, records) for entry in entries]
    lookers = {entry["appName"] for entry, kind in zip(entries, kinds, strict=True) if kind == SCHEDULER}
    return _Commands(seconds=seconds, kinds=Counter(kinds), lookers=len(lookers))


def _kind(entry: Document, records: str) -> str:
    command: Document = entry.get("originatingCommand") or entry["command"]  # the first is that of a getMore's cursor
    if "killCursors" in command or any("$changeStream" in stage for stage in command.get("pipeline", ())):
        return STREAM  # surveys are read to their end, so only a stream leaves a cursor to kill
    # The hint prober explains claims, at start and every half hour.
    return SCHEDULER if entry["ns"] == records and "explain" not in command else OTHER
