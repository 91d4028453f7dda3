"""An app on a fresh database with a running worker, raw access to what it stores, and waiting for what it does."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import OperationFailure
from typing_extensions import Unpack

from gangline import Gangline, RetryPolicy, Worker
from gangline.jobs.settings import WorkerOptions
from support.servers import missing

Document = dict[str, Any]
Result = TypeVar("Result")

DEADLINE = 30.0
"""Seconds after which a test that waits gives up: safety only, nothing is measured by it."""

AT_ONCE = RetryPolicy.fixed("1ms")
"""For jobs that fail on purpose."""


class Raw:
    """What the queue holds, read and changed without Gangline, as another program would."""

    def __init__(self, uri: str) -> None:
        client: MongoClient[Document] = MongoClient(uri, tz_aware=True)
        self.client = client
        database = client.get_default_database()
        self.records: Collection[Document] = database["gangline.records"]
        self.history: Collection[Document] = database["gangline.history"]
        self.runs: Collection[Document] = database["runs"]  # what the programs in `support.programs` note

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()

    def record(self, **fields: Any) -> Document:
        """The one record with these fields."""
        [record] = self.records.find(fields)
        return record

    def entries(self, **fields: Any) -> list[Document]:
        """The history with these fields, in the order of the starts."""
        return list(self.history.find(fields).sort([("startedAt", 1), ("_id", 1)]))

    def statuses(self, **fields: Any) -> list[str]:
        """What the executions with these fields came to."""
        return [entry["status"] for entry in self.entries(**fields)]

    def empty(self) -> bool:
        """Whether no record is left."""
        return self.records.find_one({}, {"_id": 1}) is None

    def finished(self) -> list[Document] | None:
        """The history once no record is left."""
        return self.entries() if self.empty() else None


@asynccontextmanager
async def running(app: Gangline, **options: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
    """A worker that runs until the block is left; unless told otherwise it polls often and does not wait long."""
    worker = app.worker(**cast("WorkerOptions", {"poll_interval": "30ms", "grace": "10s", **options}))
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await worker.stop()
        await asyncio.wait_for(run, DEADLINE)


async def eventually(condition: Callable[[], Result | None], *, deadline: float = DEADLINE) -> Result:
    """Ask `condition` until it is true, and return what it gave."""
    ends = time.monotonic() + deadline
    while not (result := condition()):
        assert time.monotonic() < ends, f"still not so after {deadline} s: {inspect.getsource(condition)}"
        await asyncio.sleep(0.005)
    return result


async def soon(awaitable: Awaitable[Result]) -> Result:
    """Wait for `awaitable`, but not for ever."""
    return await asyncio.wait_for(awaitable, DEADLINE)


APP_NAME = "under-test"


def named(uri: str, **options: str) -> str:
    """`uri` with an application name, by which fail points can tell Gangline's commands from those of the test.

    The driver repeats by itself what can be repeated, until its time is over: with `timeoutMS="500"` a failure that
    stays reaches Gangline soon.
    """
    parts = urlsplit(uri)
    query = {**dict(parse_qsl(parts.query)), "appName": APP_NAME, **options}
    return urlunsplit(parts._replace(query=urlencode(query)))


class FailPoint:
    """A fail point that is set; `entered` is how often it was met before."""

    def __init__(self, raw: Raw, entered: int) -> None:
        self._admin = raw.client.admin
        self._entered = entered

    async def met(self, times: int = 1) -> None:
        """Wait until commands met it so often; one that is to be blocked is then blocked."""
        wait = {"waitForFailPoint": "failCommand", "timesEntered": self._entered + times, "maxTimeMS": DEADLINE * 1000}
        await asyncio.to_thread(self._admin.command, wait)

    def off(self) -> None:
        """Fail nothing more."""
        self._admin.command("configureFailPoint", "failCommand", mode="off")


@contextmanager
def failing(raw: Raw, *commands: str, mode: Mapping[str, int] | str = "alwaysOn", **how: Any) -> Iterator[FailPoint]:
    """Let the server fail `commands` of clients that are `named`; `how` is `errorCode`, `closeConnection`, ..."""
    admin = raw.client.admin
    data = {"failCommands": list(commands), "appName": APP_NAME, **how}
    try:
        before = admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    except OperationFailure as error:
        missing(f"the server has no fail points: {error}")
    point = FailPoint(raw, before["count"])
    try:
        yield point
    finally:
        point.off()


def take_over(raw: Raw, job_id: str, *, lock_id: str = "somebody-else") -> Document:
    """Give the record to another owner for an hour, as if its lease had ended; return it as it is now."""
    [update] = [{"$set": {"lockId": lock_id, "lockedUntil": {"$add": ["$$NOW", 3_600_000]}}}]
    raw.records.update_one({"_id": job_id}, [update])
    return raw.record(_id=job_id)
