"""The server's clock: a lower bound that no clock of the host can move."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import monitoring
from pymongo.hello import Hello

from gangline.store.clock import ServerClock
from gangline.store.connection import Address, Connection
from support.records import until

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CONNECTION = ("localhost", 27017)


@dataclass
class Host:
    """A host with a wall clock that may jump and a monotonic one that never does, and its view of the server's."""

    wall: float = NOON.timestamp()
    monotonic: float = 1_000.0
    clock: ServerClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = ServerClock(monotonic=lambda: self.monotonic, wall=lambda: self.wall)

    def wait(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


def beat(**fields: Any) -> monitoring.ServerHeartbeatSucceededEvent:
    """The driver's event for the answer of a server with `fields`."""
    reply: dict[str, Any] = {"ok": 1, "maxWireVersion": 17, **fields}
    return monitoring.ServerHeartbeatSucceededEvent(0.001, Hello(reply), CONNECTION)


PRIMARY = {"setName": "r", "isWritablePrimary": True, "hosts": ["localhost:27017"]}
SECONDARY = {"setName": "r", "secondary": True, "hosts": ["localhost:27017"]}
NAIVE_NOON = NOON.replace(tzinfo=None)


def test_before_any_answer_it_is_the_hosts_own_time() -> None:
    host = Host()
    assert not host.clock.known
    assert host.clock.now() == NOON
    host.wall += 5
    assert host.clock.now() == NOON + 5 * SECOND


def test_an_answer_is_carried_on_by_the_monotonic_clock() -> None:
    host = Host()
    host.clock.take(NAIVE_NOON)
    host.wait(7.5)
    assert host.clock.known
    assert host.clock.now() == NOON + 7.5 * SECOND


@pytest.mark.parametrize("delay", [0.0, 0.3, 9.0])
def test_it_never_runs_ahead_of_the_server(delay: float) -> None:
    """An answer says what the server's clock showed when it was sent; it shows at least that when it is here."""
    host = Host()
    for elapsed in range(0, 100, 10):
        host.clock.take(NOON + elapsed * SECOND)  # sent then, and read `delay` later
        server = NOON + (elapsed + delay) * SECOND
        for _ in range(10):
            assert timedelta(0) <= server - host.clock.now() <= delay * SECOND
            host.wait(1)
            server += SECOND


@pytest.mark.parametrize("jump", [-600, -120, 120, 600])
def test_a_jump_of_the_hosts_clock_changes_nothing(jump: float) -> None:
    """Case 23."""
    host = Host()
    host.clock.take(NOON)
    host.wait(1)
    host.wall += jump
    assert host.clock.now() == NOON + SECOND


@pytest.mark.parametrize("ahead", [-120, 120])
def test_a_wrong_clock_of_the_host_is_known_and_told_once(ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    """Case 23."""
    host = Host(wall=NOON.timestamp() + ahead)
    with caplog.at_level(logging.WARNING, "gangline.clock"):
        for _ in range(5):
            host.clock.take(NOON)
    assert host.clock.skew == ahead * SECOND
    [record] = caplog.records
    assert record.__dict__["event"] == "clock_skew"
    assert f"{ahead}.0 s" in record.getMessage()


def test_a_clock_that_goes_wrong_later_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    with caplog.at_level(logging.WARNING, "gangline.clock"):
        host.clock.take(NOON)
        assert caplog.records == []
        host.wall += 300
        host.clock.take(NOON)
    assert len(caplog.records) == 1


def test_a_small_difference_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(wall=NOON.timestamp() + 0.9)
    with caplog.at_level(logging.WARNING, "gangline.clock"):
        host.clock.take(NOON)
    assert caplog.records == []


def test_the_last_answer_counts() -> None:
    """Also when it is earlier: another primary's clock may be behind, and a lower bound must not stay above it."""
    host = Host()
    host.clock.take(NOON + 60 * SECOND)
    host.wait(1)
    host.clock.take(NOON)
    assert host.clock.now() == NOON


@pytest.mark.parametrize(
    "server",
    [PRIMARY, {}, {"msg": "isdbgrid"}],
    ids=["primary", "standalone", "router"],
)
def test_a_heartbeat_of_a_server_that_accepts_writes_sets_it(server: dict[str, Any]) -> None:
    host = Host()
    host.clock.succeeded(beat(**{"isWritablePrimary": True, **server}, localTime=NAIVE_NOON + 5 * SECOND))
    assert host.clock.now() == NOON + 5 * SECOND


@pytest.mark.parametrize(
    "server",
    [SECONDARY, {"setName": "r", "arbiterOnly": True}, {"isreplicaset": True}, {"setName": "r", "hidden": True}],
    ids=["secondary", "arbiter", "not yet initiated", "hidden"],
)
def test_a_heartbeat_of_any_other_server_is_ignored(server: dict[str, Any]) -> None:
    host = Host()
    host.clock.succeeded(beat(**server, localTime=NAIVE_NOON + 5 * SECOND))
    assert not host.clock.known


@pytest.mark.parametrize("fields", [{}, {"localTime": None}, {"localTime": "noon"}], ids=str)
def test_an_answer_without_a_time_is_ignored(fields: dict[str, Any]) -> None:
    host = Host()
    host.clock.succeeded(beat(**PRIMARY, **fields))
    assert not host.clock.known


def test_a_failed_heartbeat_changes_nothing() -> None:
    host = Host()
    host.clock.take(NOON)
    host.wait(30)
    host.clock.started(monitoring.ServerHeartbeatStartedEvent(CONNECTION))
    host.clock.failed(monitoring.ServerHeartbeatFailedEvent(1.0, OSError("away"), CONNECTION))
    assert host.clock.now() == NOON + 30 * SECOND


# On a real connection


@pytest.fixture
def address(uri: str) -> Address:
    return Address.parse(uri, prefix="gangline.")


async def with_connection(address: Address, use: Callable[[Connection], Any]) -> None:
    connection = Connection(address)
    try:
        await use(connection)
    finally:
        await connection.close()


async def test_the_drivers_own_heartbeats_set_it(address: Address) -> None:
    async def use(connection: Connection) -> None:
        async def known() -> bool:
            return connection.clock.known

        assert not connection.clock.known
        await connection.records.find_one()
        await until(known)

    await with_connection(address, use)


async def test_the_server_is_asked_for_its_time_only_while_it_is_unknown(address: Address) -> None:
    async def use(connection: Connection) -> None:
        await connection.ensure_server_time()
        assert connection.clock.known
        connection.clock.take(NOON)
        await connection.ensure_server_time()
        assert connection.clock.now() - NOON < timedelta(days=1)

    await with_connection(address, use)


async def test_it_is_behind_the_servers_clock_by_no_more_than_the_way(address: Address) -> None:
    async def use(connection: Connection) -> None:
        await connection.capabilities()
        before = connection.clock.now()
        answer = await connection.records.database.command("hello")
        assert before <= answer["localTime"].replace(tzinfo=UTC) + timedelta(milliseconds=1)

    await with_connection(address, use)
