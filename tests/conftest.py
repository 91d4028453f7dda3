"""Fixtures for every test. With pytest-xdist each worker process has servers of its own."""

import os
from collections.abc import Iterator

import pytest

from gangline.devserver import DevServer, DevServerError, find_mongod
from support.blocking import no_blocking
from support.processes import children, left_behind
from support.servers import TEST_URI, fresh_database, missing, secantusdb


@pytest.fixture(scope="session")
def mongod() -> Iterator[DevServer]:
    """The session's own MongoDB with fail points. Shared: a test that kills or pauses a server starts its own."""
    try:
        find_mongod()
    except DevServerError as error:
        missing(str(error))
    with DevServer(fail_points=True) as server:
        yield server


@pytest.fixture(scope="session")
def mongo_uri(request: pytest.FixtureRequest) -> str:
    """The URI of the server under test, without a database: GANGLINE_TEST_URI, or the session's own."""
    given = os.environ.get(TEST_URI)
    if given:
        return given
    own: DevServer = request.getfixturevalue("mongod")
    return own.uri


@pytest.fixture
def uri(mongo_uri: str) -> Iterator[str]:
    """The URI of a fresh database on the server under test."""
    with fresh_database(mongo_uri) as database:
        yield database


@pytest.fixture(scope="session")
def sorted_server() -> Iterator[str]:
    """The URI of a server that sorts updates, without a database."""
    with secantusdb() as server:
        yield server


@pytest.fixture
def sorted_uri(sorted_server: str) -> Iterator[str]:
    """The URI of a fresh database on a server that sorts updates."""
    with fresh_database(sorted_server) as database:
        yield database


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    """Session servers are no concern: they are started before this, as the wider scope goes first."""
    before = children()
    yield
    rest = left_behind(before)
    assert not rest, f"the test left processes behind: {rest}"


@pytest.fixture(autouse=True)
def _no_blocked_loop() -> Iterator[None]:
    with no_blocking():
        yield
