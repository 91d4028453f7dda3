"""What follows from the server's version: whether it will do at all, and which claim protocol is used."""

from datetime import datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from gangline.jobs.errors import ConfigurationError, ServerUnsuitable
from gangline.jobs.settings import ClaimMode
from gangline.store.capabilities import Capabilities, capabilities_of
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.protocol import ClaimProtocol
from gangline.store.claims.select import ByLimit, select_protocol
from gangline.store.claims.sorted_update import SortedUpdate
from gangline.store.connection import Document
from support.records import open_connection

NOON = datetime(2026, 6, 1, 12)  # noqa: DTZ001 - as the driver gives it
MONGODB_5, MONGODB_6, MONGODB_7, MONGODB_8, SINCE = 13, 17, 21, 25, 27


def hello(wire_version: int, **fields: Any) -> dict[str, Any]:
    return {"maxWireVersion": wire_version, "localTime": NOON, **fields}


@pytest.mark.parametrize("wire_version", [0, 8, MONGODB_5, MONGODB_6 - 1])
def test_a_server_that_is_too_old_is_refused_with_the_remedy(wire_version: int) -> None:
    """Case 47."""
    with pytest.raises(ServerUnsuitable, match=rf"wire version {wire_version};.* 6\.0 or later\. Upgrade"):
        capabilities_of(hello(wire_version))


def test_an_answer_without_a_version_is_too_old() -> None:
    """Case 47."""
    with pytest.raises(ServerUnsuitable):
        capabilities_of({"localTime": NOON})


@pytest.mark.parametrize(
    ("wire_version", "sorted_update"),
    [(MONGODB_6, False), (MONGODB_7, False), (MONGODB_8 - 1, False), (MONGODB_8, True), (SINCE, True)],
)
def test_updates_are_sorted_from_mongodb_8_on(wire_version: int, sorted_update: bool) -> None:
    found = capabilities_of(hello(wire_version))
    assert (found.wire_version, found.sorted_update, found.server_time) == (wire_version, sorted_update, NOON)


@pytest.mark.parametrize(
    ("fields", "replicated"), [({}, False), ({"setName": "r"}, True), ({"msg": "isdbgrid"}, True)], ids=str
)
def test_it_is_known_whether_the_server_is_replicated(fields: dict[str, str], replicated: bool) -> None:
    """Case 45."""
    assert capabilities_of(hello(MONGODB_6, **fields)).replicated is replicated


async def test_the_server_under_test_is_suitable(uri: str) -> None:
    async with open_connection(uri) as connection:
        found = await connection.capabilities()
        assert found.wire_version >= MONGODB_6
        assert connection.clock.known


async def test_the_stand_in_sorts_updates(sorted_uri: str) -> None:
    async with open_connection(sorted_uri) as connection:
        assert (await connection.capabilities()).sorted_update


# Which protocol


def choose(mode: ClaimMode, wire_version: int, *, lock_id_index: bool = True) -> ClaimProtocol:
    """The protocol for a server of that version; nothing is asked of one."""
    client: AsyncMongoClient[Document] = AsyncMongoClient(connect=False)
    records = client["nowhere"]["records"]
    capabilities = Capabilities(wire_version=wire_version, replicated=True, server_time=NOON)
    return select_protocol(mode, records, capabilities, lock_id_index=lock_id_index)


@pytest.mark.parametrize("wire_version", [MONGODB_6, MONGODB_7, MONGODB_8 - 1])
@pytest.mark.parametrize(
    ("mode", "protocol"), [("auto", ByLimit), ("find-and-modify", FindAndModify), ("batch", ByLimit)]
)
def test_before_mongodb_8(mode: ClaimMode, protocol: type, wire_version: int) -> None:
    assert type(choose(mode, wire_version)) is protocol


@pytest.mark.parametrize("wire_version", [MONGODB_8, SINCE])
@pytest.mark.parametrize(
    ("mode", "protocol"),
    [("auto", SortedUpdate), ("sorted-update", SortedUpdate), ("find-and-modify", FindAndModify), ("batch", ByLimit)],
)
def test_from_mongodb_8_on(mode: ClaimMode, protocol: type, wire_version: int) -> None:
    assert type(choose(mode, wire_version)) is protocol


def test_without_the_index_of_lock_ids_nothing_is_read_back_by_choice() -> None:
    assert isinstance(choose("auto", MONGODB_8, lock_id_index=False), ByLimit)
    assert isinstance(choose("sorted-update", MONGODB_8, lock_id_index=False), SortedUpdate)


@pytest.mark.parametrize("wire_version", [MONGODB_6, MONGODB_8 - 1])
def test_a_protocol_that_the_server_lacks_is_refused_with_the_remedy(wire_version: int) -> None:
    """Case 61."""
    with pytest.raises(ConfigurationError, match=rf"claim: .*MongoDB 8\.0 .*speaks {wire_version}\. Use 'auto'"):
        choose("sorted-update", wire_version)


@pytest.mark.parametrize("mode", ["find-and-modify", "batch", "sorted-update"])
def test_a_protocol_is_named_as_it_is_asked_for(mode: ClaimMode) -> None:
    assert choose(mode, MONGODB_8).name == mode
