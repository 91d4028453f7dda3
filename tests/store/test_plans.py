"""Query plans: every command of the hot paths uses its index by name and looks at a handful of entries.

The commands are those that the code really sends, seen by a listener and then explained, so that the tests cannot
drift from it. In front of what they look for stands a crowd of records that must not be walked over. The indexes of the
Node side, old and new, are there too: a command that is not hinted must not fall for one of them.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient, monitoring
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError
from pymongo.synchronous.collection import Collection

from gangline.jobs.hint import Shape
from gangline.jobs.lease import Lease
from gangline.jobs.outcome import END_OF_TIME, Bury, Fate, HandBack, Outcome, Remove, RunAgain, Status
from gangline.jobs.record import ClaimedRecord
from gangline.store import leases
from gangline.store.claims.batch import Batch
from gangline.store.claims.expired import ExpiredLeases
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import ClaimRequest, read_back_after
from gangline.store.connection import CODEC, Address, Document
from gangline.store.eligibility import INDEX_OF
from gangline.store.history import Execution, History
from gangline.store.leases import LeaseRenewals
from gangline.store.schema import DUE, LOCK_ID, LOCKED, READY_BY_NAME, READY_BY_PRIORITY, RECORD_INDEXES
from gangline.store.settle import Settlement, Settler
from gangline.store.survey import survey
from support.records import LEASES, WORKER, due_record, locked_until
from support.servers import fresh_database

CROWD = 10_000
PARTITIONS = 8
NAMES = [f"job{number:03}" for number in range(260)]
NODE_INDEXES: list[list[tuple[str, int]]] = [
    [("partition", 1), ("jobName", 1), ("priority", -1), ("nextRunAt", 1)],
    [("partition", 1), ("priority", -1), ("nextRunAt", 1)],
    [("jobName", 1), ("priority", -1), ("nextRunAt", 1)],
    [("priority", -1), ("nextRunAt", 1)],
]
WITH_FOREIGN, WITHOUT_FOREIGN = 0, 1
HANDFUL = 10


class Listener(monitoring.CommandListener):
    """Keeps the commands that were sent."""

    def __init__(self) -> None:
        self.commands: list[Document] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.commands.append(deepcopy(dict(event.command)))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Of no interest."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Of no interest."""


@dataclass(frozen=True)
class Plan:
    """What the server did for one statement."""

    stages: frozenset[str]
    indexes: frozenset[str]
    keys: int
    documents: int


@dataclass(frozen=True)
class Crowded:
    """A queue with a crowd in front, and what was sent to it."""

    records: AsyncCollection[Document]
    history: AsyncCollection[Document]
    listener: Listener
    address: Address
    now: datetime

    async def plans(self, act: Callable[[], Awaitable[Any]]) -> list[Plan]:
        """Let `act` send its commands, and return how the server executes each statement on the records."""
        self.listener.commands.clear()
        await act()
        sent = [statement for command in self.listener.commands for statement in self._statements(command)]
        return [await self._plan(statement) for statement in sent]

    def _statements(self, command: Document) -> Iterator[Document]:
        """The explainable statements of `command`; a bulk is explained one by one."""
        name = next(iter(command))
        parts = {"update": "updates", "delete": "deletes"}.get(name)
        if command[name] != self.records.name or name == "explain":
            return
        envelope = {"lsid", "$db", "$clusterTime", "txnNumber", "writeConcern", "readConcern", "maxTimeMS"}
        bare = {key: value for key, value in command.items() if key not in envelope}
        if parts is None:
            yield bare
        else:
            yield from ({**bare, parts: [part]} for part in bare[parts])

    async def _plan(self, statement: Document) -> Plan:
        explained = await self.records.database.command("explain", statement, verbosity="executionStats")
        parts = list(_find(explained, "winningPlan"))
        stats = list(_find(explained, "executionStats"))
        return Plan(
            stages=frozenset(stage for part in parts for stage in _find(part, "stage")),
            indexes=frozenset(index for part in parts for index in _find(part, "indexName")),
            keys=sum(part["totalKeysExamined"] for part in stats),
            documents=sum(part["totalDocsExamined"] for part in stats),
        )


def _find(tree: Any, key: str) -> Iterator[Any]:
    """Every value under `key` at any depth."""
    if isinstance(tree, dict):
        if key in tree:
            yield tree[key]
        for value in tree.values():
            yield from _find(value, key)
    elif isinstance(tree, list):
        for item in tree:
            yield from _find(item, key)


@pytest.fixture(scope="module")
def crowded_uri(mongo_uri: str) -> Iterator[str]:
    """A database with the crowd, made once: indexes after the records, which is quicker."""
    client: MongoClient[Document]
    with fresh_database(mongo_uri) as uri, MongoClient(uri, tz_aware=True) as client:
        records: Collection[Document] = client.get_default_database()["gangline.records"]
        records.insert_many(list(_crowd(client.admin.command("hello")["localTime"])))
        for keys in NODE_INDEXES:
            records.create_index(keys)
        for index in RECORD_INDEXES:
            records.create_index(list(index.keys), **index.options)
        yield uri


def _crowd(now: datetime) -> Iterator[Document]:
    first = {"priority": 1_000, "partition": WITHOUT_FOREIGN}
    for number in range(CROWD):
        own = {**first, "jobName": NAMES[number % len(NAMES)]}
        end = now + timedelta(hours=1, milliseconds=number)
        yield due_record(now, **own, **locked_until(end))
        yield due_record(now, **own, status="maxTriesReached", maxTriesReachedAt=now, expiresAt=end)
        yield due_record(now, **{**own, "nextRunAt": end})
        yield due_record(now, **{**first, "jobName": f"foreign{number % 7}", "partition": WITH_FOREIGN})
    for number in range(40 * PARTITIONS):
        yield due_record(now, jobName=NAMES[number % len(NAMES)], partition=number % PARTITIONS)
    for _ in range(40):
        yield due_record(now, jobName=NAMES[0], partition=WITH_FOREIGN)


@pytest.fixture
async def crowded(crowded_uri: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crowded]:
    """The crowded queue over a connection that is listened to; for the lease keeper's own connection too."""
    listener = Listener()
    address = Address.parse(crowded_uri, prefix="gangline.")
    own: MongoClient[Document] = MongoClient(crowded_uri, event_listeners=[listener])

    def listened(given: Address) -> Collection[Document]:
        return own.get_database(given.database, codec_options=CODEC)[given.records]

    monkeypatch.setattr(leases, "open_sync_records", listened)
    client: AsyncMongoClient[Document]
    with own:
        async with AsyncMongoClient(crowded_uri, event_listeners=[listener]) as client:
            now = (await client.admin.command("hello"))["localTime"].replace(tzinfo=UTC)
            database: AsyncDatabase[Document] = client.get_database(address.database, codec_options=CODEC)
            yield Crowded(database[address.records], database[address.history], listener, address, now)


def request(crowded: Crowded, names: int, shape: Shape, partition: int, limit: int = 1) -> ClaimRequest:
    return ClaimRequest(
        partition=partition, names=NAMES[:names], limit=limit, shape=shape, now=crowded.now, leases=LEASES, worker="w"
    )


async def lock(crowded: Crowded, end: timedelta, *, name: str = NAMES[0]) -> ClaimedRecord:
    """Put a locked record into the crowd and return it as its execution knows it."""
    record = due_record(crowded.now, jobName=name, **locked_until(crowded.now + end))
    await crowded.records.insert_one(record)
    return ClaimedRecord(
        id=record["_id"],
        name=name,
        type="event",
        priority=100,
        next_run_at=crowded.now,
        params={},
        unique=None,
        tries=1,
        was_stale=False,
        claimed_at=crowded.now,
        lease=Lease(record["_id"], record["lockId"]),
        anchor=crowded.now,
    )


def assert_lean(plan: Plan, index: str, *, entries: int = HANDFUL) -> None:
    """The plan uses `index`, does not sort, and looks at no more than a handful of entries."""
    assert plan.indexes == {index}
    assert not plan.stages & {"COLLSCAN", "SORT"}
    assert plan.keys <= entries
    assert plan.documents <= entries


# Claims: what is merged from n names costs one key for each of them.


@pytest.mark.parametrize("partition", [WITH_FOREIGN, WITHOUT_FOREIGN, 2])
@pytest.mark.parametrize("names", [1, 3, 200])
async def test_a_claim_by_name_walks_over_nobody(crowded: Crowded, names: int, partition: int) -> None:
    """Case 63, and the same for locked, future and foreign records."""
    protocol = FindAndModify(crowded.records)
    [plan] = await crowded.plans(lambda: protocol.claim(request(crowded, names, Shape.BY_NAME, partition)))
    assert_lean(plan, READY_BY_NAME.name, entries=HANDFUL + 2 * names)
    assert plan.documents <= names


@pytest.mark.parametrize("partition", [WITHOUT_FOREIGN, 2])
async def test_a_claim_by_priority_walks_over_nobody(crowded: Crowded, partition: int) -> None:
    """Case 63, and the same for locked and future records. Foreign ones it does walk over."""
    protocol = FindAndModify(crowded.records)
    claim = request(crowded, len(NAMES), Shape.BY_PRIORITY, partition)
    [plan] = await crowded.plans(lambda: protocol.claim(claim))
    assert_lean(plan, READY_BY_PRIORITY.name)


@pytest.mark.parametrize("shape", Shape)
async def test_a_batch_reads_its_candidates_and_writes_by_id(crowded: Crowded, shape: Shape) -> None:
    batch = Batch(crowded.records)
    claim = request(crowded, 200, shape, WITHOUT_FOREIGN, limit=8)
    candidates, write, back = await crowded.plans(lambda: batch.claim(claim))
    assert_lean(candidates, INDEX_OF[shape].name, entries=HANDFUL + 2 * 200)
    assert_lean(write, "_id_", entries=2 * 8)
    assert_lean(back, LOCK_ID.name, entries=2 * 8)


async def test_a_read_back_of_tokens_that_nobody_has_reads_nothing(crowded: Crowded) -> None:
    async def lost() -> None:
        with pytest.raises(PyMongoError):
            await read_back_after(PyMongoError(), crowded.records, [uuid.uuid4().hex for _ in range(8)])

    [plan] = await crowded.plans(lost)
    assert_lean(plan, LOCK_ID.name)


async def test_recovery_reads_expired_leases_only(crowded: Crowded) -> None:
    for _ in range(2):
        await lock(crowded, timedelta(seconds=-1))
    expired = ExpiredLeases(crowded.records)
    find, write, back = await crowded.plans(
        lambda: expired.take_over(NAMES, 8, now=crowded.now, leases=LEASES, worker=WORKER)
    )
    assert_lean(find, LOCKED.name)
    assert_lean(write, "_id_")
    assert_lean(back, LOCK_ID.name)


# The look of an idle scheduler


@pytest.mark.parametrize("names", [1, 3, 200, 201, 260])
async def test_a_survey_walks_over_nobody(crowded: Crowded, names: int) -> None:
    """Both branches: what is due, and what expired. More than 200 names are looked up in parts. Behind a backlog it
    looks for records without a partition too."""
    plan, unplaced = await crowded.plans(lambda: survey(crowded.records, NAMES[:names], PARTITIONS, now=crowded.now))
    assert plan.indexes == {DUE.name, LOCKED.name}
    assert not plan.stages & {"COLLSCAN", "SORT"}
    assert plan.keys <= HANDFUL + 2 * names + 4 * 16
    assert plan.documents <= HANDFUL + names + 4 * 16
    assert_lean(unplaced, READY_BY_NAME.name, entries=HANDFUL + 2 * names)


@pytest.mark.parametrize("count", [1, 200, 450])
async def test_a_survey_of_idle_names_reads_one_key_for_each(crowded: Crowded, count: int) -> None:
    """Case 39. Only the first 200 are hinted: for names without a record the server may take any index, all cost the
    same."""
    names = [f"idle{number}" for number in range(count)]
    [plan] = await crowded.plans(lambda: survey(crowded.records, names, PARTITIONS, now=crowded.now))
    assert {DUE.name, LOCKED.name} <= plan.indexes
    assert "COLLSCAN" not in plan.stages
    assert plan.keys <= HANDFUL + count
    assert plan.documents <= HANDFUL


# What executions write


async def test_a_renewal_goes_by_id(crowded: Crowded) -> None:
    held = [(await lock(crowded, timedelta(hours=1))).lease for _ in range(3)]
    gone = Lease(str(uuid.uuid4()), "gone")
    renewals = LeaseRenewals(crowded.address)
    write, look = await crowded.plans(lambda: asyncio.to_thread(renewals.renew, [*held, gone], timedelta(hours=1)))
    assert_lean(write, "_id_")
    assert_lean(look, "_id_")


@pytest.mark.parametrize(
    "fate",
    [Remove(), RunAgain(END_OF_TIME, fresh=True), RunAgain(END_OF_TIME, fresh=False), Bury(None), HandBack()],
    ids=lambda fate: type(fate).__name__,
)
async def test_a_settling_write_goes_by_id(crowded: Crowded, fate: Fate) -> None:
    held, lost = await lock(crowded, timedelta(hours=1)), await lock(crowded, timedelta(hours=1))
    await crowded.records.update_one({"_id": lost.id}, {"$set": {"lockId": uuid.uuid4().hex}})
    settler = Settler(crowded.records, History(crowded.history, timedelta(0)))
    settlements = [
        Settlement(
            Execution(
                record=record,
                outcome=Outcome(status=Status.SUCCESS),
                started_at=crowded.now,
                ended_at=crowded.now,
                worker=WORKER,
            ),
            fate,
        )
        for record in (held, lost)
    ]
    plans = await crowded.plans(lambda: settler.settle(settlements))
    assert len(plans) >= 2, "writes, and a look at which of them was lost"
    for plan in plans:
        assert plan.stages.isdisjoint({"COLLSCAN", "SORT"})
        assert plan.indexes <= {"_id_"}  # IDHACK names none
        assert plan.stages & {"IDHACK", "IXSCAN"}
        assert max(plan.keys, plan.documents) <= 2 * len(settlements)
