"""What a worker costs must not grow with what lies in its queue and history: counts, never seconds.

The counts are the whole server's, on which only this test works meanwhile. It looks for expired documents by itself, so
the bounds allow some; what they are there for would cost hundreds of times more.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo.collection import Collection

from gangline import Context, Gangline
from gangline.bench import claims
from gangline.bench.claims import Contest
from gangline.store.indexes import ensure_indexes
from support.apps import Document, Raw, eventually, running, soon
from support.commands import Commands, recorded
from support.progress import Recorded
from support.records import open_connection

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AWAY = datetime(2200, 1, 1, tzinfo=UTC)
DEAD: Document = {"status": "maxTriesReached", "maxTriesReachedAt": LONG_AGO, "expiresAt": FAR_AWAY}


@pytest.fixture
def commands(uri: str) -> Iterator[Commands]:
    """What Gangline sends for the database of the test."""
    with recorded(urlsplit(uri).path.strip("/")) as commands:
        yield commands


@dataclass(frozen=True)
class Counted:
    """What the server did, since it started or since an earlier count."""

    examined: int
    written: int

    def since(self, before: "Counted") -> "Counted":
        return Counted(self.examined - before.examined, self.written - before.written)


def counted(raw: Raw) -> Counted:
    """Keys and documents that were looked at, and documents that were changed or deleted."""
    metrics = raw.client.admin.command("serverStatus")["metrics"]
    queries, documents = metrics["queryExecutor"], metrics["document"]
    return Counted(queries["scanned"] + queries["scannedObjects"], documents["updated"] + documents["deleted"])


async def fill(collection: Collection[Document], uri: str, count: int, **fields: Any) -> None:
    """Insert so many records, with the indexes that Gangline makes."""
    async with open_connection(uri) as connection:
        await ensure_indexes(connection)
    each = ({**_record(number), **fields} for number in range(count))
    while portion := list(islice(each, 10_000)):
        await asyncio.to_thread(collection.insert_many, portion, ordered=False)


def _record(number: int) -> Document:
    return {
        "jobName": "work",
        "type": "event",
        "priority": 100,
        "nextRunAt": LONG_AGO + timedelta(milliseconds=number),
        "partition": number % 4,
        "params": {},
    }


async def test_one_job_behind_a_hundred_thousand_of_a_name_with_a_limit_is_run(
    app: Gangline, uri: str, raw: Raw
) -> None:
    """Case 32: the job starts while the others are still at their first two."""
    started: list[str] = []
    release = asyncio.Event()

    @app.event(name="work", max_parallel=2)
    async def many(ctx: Context) -> None:
        started.append(ctx.name)
        await release.wait()

    @app.event()
    async def single(ctx: Context) -> None:
        started.append(ctx.name)
        release.set()

    await fill(raw.records, uri, 100_000)
    await single.schedule()
    before = counted(raw)
    async with running(app, concurrency=8):
        await soon(release.wait())
        seen = counted(raw).since(before)
        raw.records.delete_many({"lockId": None})
    assert started[:3].count("work") <= 2
    assert "single" in started[:3]
    assert seen.examined < 2_000


@pytest.mark.parametrize(("future", "bound"), [(0, 2), (20_000, 40)], ids=["nothing", "later"])
async def test_a_look_at_an_idle_queue_reads_nothing_of_what_ended(
    app: Gangline, uri: str, raw: Raw, commands: Commands, future: int, bound: int
) -> None:
    """Case 39: nothing is due, the history is long, and dead records are many. Of future records a look reads the
    first 16, to know when to wake up."""

    @app.event()
    async def work() -> None: ...

    entry = {"jobName": "work", "status": "success", "startedAt": LONG_AGO, "endedAt": LONG_AGO, "expiresAt": FAR_AWAY}
    await fill(raw.history, uri, 100_000, **entry)
    await fill(raw.records, uri, 20_000, **DEAD)
    await fill(raw.records, uri, future, nextRunAt=FAR_AWAY)
    async with running(app, change_stream=False):
        await looks(commands, 2)
        before = counted(raw)
        await looks(commands, 20)
        seen = counted(raw).since(before)
    assert seen.examined < 20 * bound
    assert seen.written == 0


async def looks(commands: Commands, number: int) -> None:
    """Wait until so many more looks were made."""
    before = len(commands.named("aggregate"))
    await eventually(lambda: len(commands.named("aggregate")) >= before + number)


async def test_among_many_indexes_every_command_names_the_one_it_means(
    app: Gangline, raw: Raw, commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 40: no plan that the server chooses, and may choose differently tomorrow."""
    caplog.set_level(logging.INFO, "gangline.hint")
    runs: list[int] = []

    @app.event()
    async def work() -> None:
        runs.append(1)

    @app.recurrent(every="20ms")
    async def tick() -> None: ...

    async with running(app, change_stream=False):
        for keys in ("jobName", "priority", "nextRunAt", "partition"):
            raw.records.create_index([(keys, 1), ("nextRunAt", 1)])
        # The first probe may change the plan, once; the next one is half an hour away.
        await eventually(lambda: any(record.__dict__.get("event") == "hint_chosen" for record in caplog.records))
        await looks(commands, 2)
        commands.clear()  # what registers a recurrent job, once
        await app.schedule_many([work.call() for _ in range(300)])
        await eventually(lambda: len(runs) == 300)
    sent = [(name, command) for name, command in commands.sent if command.get(name) == raw.records.name]
    reads = [command for name, command in sent if name in ("aggregate", "find", "findAndModify")]
    free = [command for command in reads if "hint" not in command and not _by_key(command)]
    assert free == []
    writes = [part for _, command in sent for part in (*command.get("updates", ()), *command.get("deletes", ()))]
    assert [part for part in writes if "_id" not in part["q"]] == []
    claims_by = [command["hint"] for command in reads if "sort" in command and not _by_key(command)]
    assert len(claims_by) > 1
    assert len(set(claims_by)) == 1, "one plan, and a stable one"


def _by_key(command: Document) -> bool:
    """Whether it finds by an id or a lock id: then there is but one index to take."""
    query: Document = command.get("filter") or command.get("query") or {}
    return "_id" in query or "lockId" in query


@pytest.mark.parametrize("claimers", [64, 256])
@pytest.mark.parametrize("jobs", [1, 2, 10_000])
def test_many_claimers_do_not_fight_each_other(uri: str, jobs: int, claimers: int) -> None:
    """Case 41. A conflict is a claim that the server tries once more: they stay fewer than the claims and claimers."""
    contest = Contest(
        strategy="find-and-modify", jobs=jobs, claimers=claimers, partitions=32, batch=1, processes=2, seconds=300.0
    )
    row = claims.measure(uri, contest, Recorded())
    assert row.verified, row.problems
    assert row.claims == jobs
    assert row.conflicts <= jobs + claimers
    # An empty partition costs nothing to look at, a full one a record and what rivals took of it meanwhile.
    assert row.docs_examined_per_claim * jobs <= 2 * jobs + claimers


async def test_a_start_on_a_long_history_reads_and_changes_nothing_of_it(app: Gangline, uri: str, raw: Raw) -> None:
    """Case 50: ready with the first few commands, whatever lies there from years before."""
    ran = asyncio.Event()

    @app.event()
    async def work() -> None:
        ran.set()

    await fill(raw.records, uri, 100_000, **DEAD)
    await fill(raw.records, uri, 100_000, nextRunAt=FAR_AWAY)
    await work.schedule()
    before = counted(raw)
    async with running(app):
        await soon(ran.wait())
        await eventually(lambda: raw.history.find_one({}))
    seen = counted(raw).since(before)
    assert seen.examined < 500
    assert seen.written < 20
