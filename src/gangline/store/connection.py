"""One connection to the queue: the client, its two collections, and the server's clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

import pymongo
from bson import CodecOptions
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collection import Collection
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.errors import InvalidURI
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import parse_uri

from gangline.jobs.errors import ConfigurationError
from gangline.store.capabilities import Capabilities, capabilities_of
from gangline.store.clock import ServerClock
from gangline.store.schema import HISTORY, RECORDS, WORKERS

Document = dict[str, Any]

DEFAULT_DATABASE = "gangline"
SERVER_SELECTION_SECONDS = 10
OPERATION_SECONDS = 20  # nothing waits for ever: a server that hangs, a majority that is gone

# Lenient on purpose: what another program wrote must never make a whole batch unreadable.
CODEC: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)


@dataclass(frozen=True)
class Address:
    """Where the queue is: the server's URI, the database, and the prefix of the two collections."""

    uri: str = field(repr=False)  # it may hold a password
    database: str
    prefix: str

    @classmethod
    def parse(cls, uri: str, *, prefix: str) -> Self:
        """Read ``uri``; a URI without a database means ``gangline``.

        Raises:
            ConfigurationError: it is not a MongoDB URI.
        """
        try:
            parsed = parse_uri(uri, validate=True, warn=False)
        except (InvalidURI, DriverConfigurationError, ValueError, TypeError, AttributeError) as error:
            # The URI itself stays out of the text: it may hold a password.
            raise ConfigurationError(
                "uri", f"it cannot be read ({error})", "Give one such as mongodb://localhost:27017/shop"
            ) from error
        return cls(uri, parsed["database"] or DEFAULT_DATABASE, prefix)

    @property
    def records(self) -> str:
        """The name of the collection of records."""
        return self.prefix + RECORDS

    @property
    def history(self) -> str:
        """The name of the collection of executions."""
        return self.prefix + HISTORY

    @property
    def workers(self) -> str:
        """The name of the collection of workers, which is Gangline's own."""
        return self.prefix + WORKERS


class Connection:
    """An asynchronous connection. It belongs to the event loop it is first used in; :meth:`close` ends it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.clock = ServerClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.identifiers_are_unique = False  # until the index for it was seen
        self._client: AsyncMongoClient[Document] = AsyncMongoClient(
            address.uri, event_listeners=[self.clock], **_client_options(address)
        )
        database = self._client.get_database(
            address.database, codec_options=CODEC, read_preference=ReadPreference.PRIMARY
        )
        self.records: AsyncCollection[Document] = database.get_collection(address.records)
        self.history: AsyncCollection[Document] = database.get_collection(address.history)
        self.workers: AsyncCollection[Document] = database.get_collection(address.workers)

    async def capabilities(self) -> Capabilities:
        """Ask the server what it can do, and take its time.

        Raises:
            ServerUnsuitable: it is too old.
            pymongo.errors.PyMongoError: it could not be reached.
        """
        self._belong()
        # An operation's own timeout replaces that of server selection, which is shorter: it is what a user waits when
        # there is no server.
        with pymongo.timeout(self._client.options.server_selection_timeout):
            found = capabilities_of(await self._client.admin.command("hello"))
        self.clock.take(found.server_time)
        return found

    async def ensure_server_time(self) -> None:
        """Ask the server for its time unless an answer to some heartbeat gave it already.

        Raises:
            ConfigurationError: the connection is in use in another event loop.
        """
        self._belong()
        if not self.clock.known:
            await self.capabilities()

    @property
    def max_sockets(self) -> float:
        """How many sockets the connection may have to a server; infinite if the URI sets no bound."""
        return self._client.options.pool_options.max_pool_size

    @property
    def loop_ended(self) -> bool:
        """Whether its event loop is closed: the connection can be neither used nor closed then."""
        return self._loop is not None and self._loop.is_closed()

    async def close(self) -> None:
        """Close the client's sockets and stop its monitors."""
        if not self.loop_ended:
            await self._client.close()

    def _belong(self) -> None:
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise ConfigurationError(
                "app",
                "it is in use in another event loop",
                "Use an app in one loop at a time: make another one here, or close it there first",
            )


def open_sync_records(address: Address) -> Collection[Document]:
    """Return the records over a synchronous client of its own, for a thread; close it by ``.database.client``."""
    # Not before the first renewal: most jobs need none, and a monitor that is just starting outlives a quick close.
    client: MongoClient[Document] = MongoClient(address.uri, connect=False, **_client_options(address))
    return client.get_database(address.database, codec_options=CODEC).get_collection(address.records)


def _client_options(address: Address) -> dict[str, Any]:
    """Options that the URI does not set. A claim or an outcome that a fail-over can undo is none: majority."""
    given = {name.lower() for name in parse_uri(address.uri, validate=True, warn=False)["options"]}
    options: dict[str, Any] = {"driver": DriverInfo("gangline")}
    if "serverselectiontimeoutms" not in given:
        options["serverSelectionTimeoutMS"] = SERVER_SELECTION_SECONDS * 1000
    if not given & {"timeoutms", "sockettimeoutms"}:
        options["timeoutMS"] = OPERATION_SECONDS * 1000
    if "w" not in given:
        options["w"] = "majority"
    return options
