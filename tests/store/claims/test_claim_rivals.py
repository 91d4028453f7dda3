"""What every claim protocol promises to claimers that want the same records."""

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.batch import Batch
from gangline.store.claims.protocol import ClaimProtocol, Claims, Records
from gangline.store.claims.select import ByLimit
from gangline.store.connection import Document
from store.claims.claimers import Task, Won
from support.records import Queue, due_record, preceded, wrapped

TESTS = Path(__file__).parents[2]
PROCESSES = 4
CLAIMERS = 32


class Claimers:
    """Processes of claimers, which stay for all tests here: starting them takes the longest."""

    def __init__(self) -> None:
        program = [sys.executable, str(Path(__file__).with_name("claimers.py"))]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        pipe = subprocess.PIPE
        self.processes = [
            subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=environment) for _ in range(PROCESSES)
        ]

    def perform(self, task: Task) -> list[Won]:
        """Let each process perform `task`, all from the same moment; return what they won together."""
        for process in self.processes:
            self._tell(process, json.dumps(task))
        for process in self.processes:
            assert self._line(process) == "ready"
        for process in self.processes:
            self._tell(process, "go")
        return [won for process in self.processes for won in json.loads(self._line(process))]

    def stop(self) -> None:
        """End them."""
        with ExitStack() as stack:
            for process in self.processes:
                stack.enter_context(process)  # closes the pipes, which ends it, and waits
                process.terminate()

    @staticmethod
    def _tell(process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    @staticmethod
    def _line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def claimers() -> Iterator[Claimers]:
    processes = Claimers()
    yield processes
    processes.stop()


def fill(uri: str, count: int) -> None:
    """Put `count` due records into one partition."""
    client: MongoClient[Document]
    with MongoClient(uri, tz_aware=True) as client:
        now = client.admin.command("hello")["localTime"]
        records: Collection[Document] = client.get_default_database()["gangline.records"]
        records.delete_many({})
        records.insert_many([due_record(now) for _ in range(count)])


def stored(uri: str) -> list[Document]:
    client: MongoClient[Document]
    with MongoClient(uri) as client:
        return list(client.get_default_database()["gangline.records"].find())


@pytest.mark.parametrize(("limit", "count"), [(1, 40), (8, 400)])
def test_each_record_has_one_owner_among_many_claimers(
    claimers: Claimers, protocol_name: str, protocol_uri: str, given_server_sorts: bool, limit: int, count: int
) -> None:
    if protocol_name == "sorted-update" and not given_server_sorts:
        pytest.skip("a sorted update of the stand-in is not atomic: GANGLINE_TEST_URI must name a MongoDB 8 or later")
    fill(protocol_uri, count)
    task = Task(uri=protocol_uri, protocol=protocol_name, claimers=CLAIMERS // PROCESSES, limit=limit)
    won = claimers.perform(task)
    owners = {item["id"]: item["lock_id"] for item in won}
    assert len(won) == len(owners) == count, "an id was claimed twice, or never"
    assert len(set(owners.values())) == count, "a lock id was given twice"
    assert {item["tries"] for item in won} == {1}
    documents = stored(protocol_uri)
    assert {document["_id"]: document["lockId"] for document in documents} == owners
    assert {document["tries"] for document in documents} == {1}


# The protocols that read candidates before they write: what a rival does in between.

MakeBatching = Callable[[Records], ClaimProtocol]
batching = pytest.mark.parametrize("make", [Batch, ByLimit])


def interrupted(make: MakeBatching, queue: Queue, rival: Callable[[], Awaitable[object]]) -> ClaimProtocol:
    """The protocol, with `rival` acting between the reading of the candidates and the write."""
    return make(wrapped(queue.records, {"update_many": preceded(queue.records.update_many, rival)}))


@batching
async def test_what_a_rival_took_in_between_is_left_to_it(queue: Queue, make: MakeBatching) -> None:
    ids = await queue.insert_all([{"_id": name} for name in "abcdef"])

    async def rival() -> None:
        theirs.extend((await make(queue.records).claim(queue.request(limit=2))).records)

    theirs: list[ClaimedRecord] = []
    ours = await interrupted(make, queue, rival).claim(queue.request(limit=4))
    assert [record.id for record in theirs] == ids[:2]
    assert [record.id for record in ours.records] == ids[2:4]
    assert ours.contended
    for record in [*theirs, *ours.records]:
        document = await queue.stored(record.id)
        assert (document["lockId"], document["tries"]) == (record.lease.lock_id, 1)


@batching
async def test_a_claim_that_lost_everything_to_a_rival_says_so(queue: Queue, make: MakeBatching) -> None:
    await queue.insert_all([{}] * 3)

    async def rival() -> None:
        await make(queue.records).claim(queue.request(limit=3))

    assert await interrupted(make, queue, rival).claim(queue.request(limit=3)) == Claims((), contended=True)


@batching
@pytest.mark.parametrize(
    "change",
    [
        {"status": "maxTriesReached", "maxTriesReachedAt": datetime(2026, 1, 1, tzinfo=UTC)},
        {"status": "maxTriesReached"},
        {"partition": 1},
        {"jobName": "foreign"},
        {"nextRunAt": datetime(2100, 1, 1, tzinfo=UTC)},
        {"lockId": "theirs", "lockedUntil": datetime(2100, 1, 1, tzinfo=UTC)},
    ],
    ids=lambda change: "+".join(change),
)
async def test_the_write_repeats_the_whole_condition(queue: Queue, make: MakeBatching, change: dict[str, Any]) -> None:
    await queue.insert_all([{"_id": "changed"}, {"_id": "same"}])

    async def rival() -> None:
        await queue.records.update_one({"_id": "changed"}, {"$set": change})

    claims = await interrupted(make, queue, rival).claim(queue.request(limit=2))
    assert [record.id for record in claims.records] == ["same"]
    assert claims.contended
    assert "tries" not in await queue.stored("changed")


@batching
async def test_a_record_removed_in_between_is_not_claimed(queue: Queue, make: MakeBatching) -> None:
    await queue.insert_all([{"_id": "gone"}, {"_id": "same"}])

    async def rival() -> None:
        await queue.records.delete_one({"_id": "gone"})

    claims = await interrupted(make, queue, rival).claim(queue.request(limit=2))
    assert [record.id for record in claims.records] == ["same"]
    assert claims.contended


@batching
async def test_a_claim_without_a_rival_is_not_contended(queue: Queue, make: MakeBatching) -> None:
    await queue.insert_all([{}] * 3)
    claims = await make(queue.records).claim(queue.request(limit=2))
    assert (len(claims.records), claims.contended) == (2, False)
