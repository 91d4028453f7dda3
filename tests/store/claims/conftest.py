"""The protocols under contract, each on the server that runs it."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import pytest
from pymongo import MongoClient

from gangline.store.capabilities import SORTED_UPDATE_WIRE_VERSION
from gangline.store.claims.batch import Batch
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import ClaimProtocol, Claims, Records
from gangline.store.claims.select import ByLimit
from gangline.store.claims.sorted_update import SortedUpdate
from gangline.store.connection import Document
from support.records import Queue, open_queue
from support.servers import TEST_URI, fresh_database

MAKERS: dict[str, Callable[[Records], ClaimProtocol]] = {
    "find-and-modify": FindAndModify,
    "batch": Batch,
    "by-limit": ByLimit,
    "sorted-update": SortedUpdate,
}


@dataclass(frozen=True)
class Subject(Queue):
    """A queue and the protocol that claims from it."""

    name: str

    @property
    def one_at_a_time(self) -> bool:
        return self.name == "find-and-modify"

    def write(self, limit: int) -> str:
        """The collection's method by which a claim of up to `limit` records takes effect."""
        if self.name == "sorted-update":
            return "bulk_write"
        by_one = self.one_at_a_time or (self.name == "by-limit" and limit == 1)
        return "find_one_and_update" if by_one else "update_many"

    def protocol(self, records: Records | None = None) -> ClaimProtocol:
        return MAKERS[self.name](self.records if records is None else records)

    async def take(self, **changes: object) -> Claims:
        """Claim with the protocol; see `Queue.request`."""
        return await self.protocol().claim(self.request(**changes))

    async def take_all(self, limit: int, **changes: object) -> list[str]:
        """Claim up to `limit` records, in as many claims as the protocol needs, and return their ids in that order."""
        taken: list[str] = []
        while len(taken) < limit:
            claims = await self.take(limit=limit - len(taken), **changes)
            if not claims.records:
                break
            taken += [record.id for record in claims.records]
        return taken


@pytest.fixture(scope="session")
def given_server_sorts() -> bool:
    """Whether GANGLINE_TEST_URI names a server that sorts updates: a real MongoDB 8 or later."""
    given = os.environ.get(TEST_URI)
    if not given:
        return False
    client: MongoClient[Document]
    with MongoClient(given) as client:
        return int(client.admin.command("hello")["maxWireVersion"]) >= SORTED_UPDATE_WIRE_VERSION


@pytest.fixture(scope="session", params=MAKERS)
def protocol_name(request: pytest.FixtureRequest) -> str:
    """Each protocol in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def protocol_server(protocol_name: str, given_server_sorts: bool, request: pytest.FixtureRequest) -> str:
    """A server that runs the protocol. Session-wide, so that it does not count as left behind by a test."""
    stand_in = protocol_name == "sorted-update" and not given_server_sorts
    uri: str = request.getfixturevalue("sorted_server" if stand_in else "mongo_uri")
    return uri


@pytest.fixture(scope="session")
def protocol_uri(protocol_server: str) -> Iterator[str]:
    """A database on that server, which the tests of the protocol share: making the indexes takes the longest."""
    with fresh_database(protocol_server) as uri:
        yield uri


@pytest.fixture
async def subject(protocol_name: str, protocol_uri: str) -> AsyncIterator[Subject]:
    """Each protocol in turn, on an empty queue."""
    async with open_queue(protocol_uri, emptied=True) as queue:
        yield Subject(queue.connection, protocol_name)


@pytest.fixture(scope="session")
def queue_uri(mongo_uri: str) -> Iterator[str]:
    """A database that the tests of `queue` share."""
    with fresh_database(mongo_uri) as uri:
        yield uri


@pytest.fixture
async def queue(queue_uri: str) -> AsyncIterator[Queue]:
    """An empty queue on the server under test."""
    async with open_queue(queue_uri, emptied=True) as empty:
        yield empty
