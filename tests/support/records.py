"""Records made as another program would make them, connections to them, and collections that misbehave on demand."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure

from gangline.jobs.hint import Shape
from gangline.jobs.outcome import Failure, Outcome, Status
from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.expired import ExpiredLeases, TakenOver
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import ClaimRequest, LeaseLengths, Records
from gangline.store.connection import Address, Connection, Document
from gangline.store.history import Execution
from gangline.store.indexes import ensure_indexes
from gangline.store.schema import DEFAULT_PREFIX

T = TypeVar("T")

JOB = "resizeImage"
WORKER = "host:1:test"
LEASES = LeaseLengths(default=timedelta(seconds=30))
_NO_SUCH_COMMAND = 59


def due_record(now: datetime, **fields: Any) -> Document:
    """An event record that has been due for a minute, with `fields` in place of its own."""
    record: Document = {
        "_id": str(uuid.uuid4()),
        "jobName": JOB,
        "type": "event",
        "priority": 100,
        "nextRunAt": now - timedelta(minutes=1),
        "partition": 0,
        "params": {},
    }
    return {**record, **fields}


def locked_until(end: datetime, **fields: Any) -> Document:
    """The fields of a record that an execution of Gangline's owns until `end`."""
    claimed = {"lastRunAt": end - LEASES.default, "lockedBy": "host:9:gone", "claimWasStale": False, "tries": 1}
    return {"lockId": uuid.uuid4().hex, "lockedUntil": end, **claimed, **fields}


@dataclass(frozen=True)
class Queue:
    """A connection to a queue of its own, with shortcuts to put records there and to look at them."""

    connection: Connection

    @property
    def records(self) -> Records:
        return self.connection.records

    @property
    def uri(self) -> str:
        return self.connection.address.uri

    @property
    def now(self) -> datetime:
        """The server's time."""
        return self.connection.clock.now()

    async def insert(self, **fields: Any) -> Any:
        """Insert one record, see `due_record`, and return its id."""
        record = due_record(self.now, **fields)
        await self.records.insert_one(record)
        return record["_id"]

    async def insert_all(self, documents: list[Document]) -> list[Any]:
        """Insert one record for each of `documents`, which give the fields, and return the ids."""
        records = [due_record(self.now, **fields) for fields in documents]
        await self.records.insert_many(records)
        return [record["_id"] for record in records]

    async def insert_expired(self, *, ago: timedelta = timedelta(seconds=1), **fields: Any) -> Any:
        """Insert a record whose lease ended `ago` and return its id."""
        return await self.insert(**locked_until(self.now - ago, **fields))

    async def stored(self, record_id: Any) -> Document:
        """The document as it is stored now."""
        document = await self.records.find_one({"_id": record_id})
        assert document is not None, f"the record {record_id!r} is gone"
        return document

    async def exists(self, record_id: Any) -> bool:
        return await self.records.find_one({"_id": record_id}, {"_id": 1}) is not None

    def request(self, **changes: Any) -> ClaimRequest:
        """A request for one record of `JOB` in partition 0, with `changes`."""
        plain = ClaimRequest(
            partition=0, names=[JOB], limit=1, shape=Shape.BY_NAME, now=self.now, leases=LEASES, worker=WORKER
        )
        return replace(plain, **changes)

    async def claim(self, **fields: Any) -> ClaimedRecord:
        """Insert a record and claim it."""
        record_id = await self.insert(**fields)
        request = self.request(names=[fields.get("jobName", JOB)], partition=fields.get("partition", 0))
        [record] = (await FindAndModify(self.records).claim(request)).records
        assert record.id == record_id, "another due record was in front"
        return record

    async def claim_next(self) -> Any:
        """Claim the best due record and return its id; `None` if there is none."""
        claims = await FindAndModify(self.records).claim(self.request())
        return claims.records[0].id if claims.records else None

    async def let_expire(self, *records: ClaimedRecord) -> None:
        """Let the leases on `records` end a second ago."""
        ids = [record.id for record in records]
        end = self.now - timedelta(seconds=1)
        await self.records.update_many({"_id": {"$in": ids}}, {"$set": {"lockedUntil": end}})

    async def take_over(
        self,
        limit: int = 10,
        *,
        names: tuple[str, ...] = (JOB,),
        leases: LeaseLengths = LEASES,
        worker: str = WORKER,
        records: Records | None = None,
    ) -> TakenOver:
        """Take over expired records."""
        expired = ExpiredLeases(self.records if records is None else records)
        return await expired.take_over(names, limit, now=self.now, leases=leases, worker=worker)

    async def steal(self, record: ClaimedRecord) -> ClaimedRecord:
        """End the lease on `record` and take it over: the execution that held it is lost."""
        await self.let_expire(record)
        [taken] = (await self.take_over(1)).records
        assert taken.id == record.id, "another expired record was in front"
        return taken


def execution(
    record: ClaimedRecord,
    *,
    result: Any = None,
    failure: Failure | None = None,
    dismissed: str | None = None,
    status: Status | None = None,
    seconds: float = 1.5,
) -> Execution:
    """An execution of `record` that ended after `seconds`: well, or with `failure`."""
    told = status or (Status.SUCCESS if failure is None else Status.ERROR)
    return Execution(
        record=record,
        outcome=Outcome(status=told, result=result, failure=failure, dismissed=dismissed),
        started_at=record.claimed_at,
        ended_at=record.claimed_at + timedelta(seconds=seconds),
        worker=WORKER,
    )


@asynccontextmanager
async def open_connection(uri: str) -> AsyncIterator[Connection]:
    """A connection that knows the server's time."""
    connection = Connection(Address.parse(uri, prefix=DEFAULT_PREFIX))
    try:
        await connection.capabilities()
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def open_queue(uri: str, *, emptied: bool = False) -> AsyncIterator[Queue]:
    """A queue with its indexes; `emptied` of what an earlier test left in the database."""
    async with open_connection(uri) as connection:
        await ensure_indexes(connection)
        if emptied:
            await connection.records.delete_many({})
            await connection.history.delete_many({})
        yield Queue(connection)


async def until(condition: Callable[[], Awaitable[T]], *, seconds: float = 10) -> T:
    """Ask for `condition` until it holds, and return what it gave; the deadline is only there to end a broken test."""
    async with asyncio.timeout(seconds):
        while not (held := await condition()):  # noqa: ASYNC110 - a server is asked, which signals nothing
            await asyncio.sleep(0.005)
    return held


class _Wrapped:
    def __init__(self, records: Records, replacements: dict[str, Callable[..., Any]]) -> None:
        self._records = records
        self._replacements = replacements

    def __getattr__(self, name: str) -> Any:
        return self._replacements.get(name) or getattr(self._records, name)


def wrapped(records: Records, replacements: dict[str, Callable[..., Any]]) -> Records:
    """`records` with some of its methods replaced; the caller may change which while it goes."""
    return cast("Records", _Wrapped(records, replacements))


def preceded(method: Callable[..., Awaitable[Any]], by: Callable[[], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`method`, but `by` happens between the caller's decision and its effect."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        await by()
        return await method(*args, **kwargs)

    return call


def losing_the_answer(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`method` takes effect, and its answer never arrives."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        await method(*args, **kwargs)
        raise AutoReconnect("the answer was lost")

    return call


async def never_sent(*_args: Any, **_kwargs: Any) -> Any:
    """A method whose command never reaches the server."""
    raise AutoReconnect("it was never sent")


@contextmanager
def fail_command(uri: str, **data: Any) -> Iterator[None]:
    """Let the server itself fail the next command that `data` describes; skips where it has no fail points."""
    client: MongoClient[Document]
    with MongoClient(uri) as client:
        configure = {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
        try:
            client.admin.command(configure)
        except OperationFailure as error:
            if error.code != _NO_SUCH_COMMAND:
                raise
            pytest.skip("the server runs without enableTestCommands")
        try:
            yield
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
