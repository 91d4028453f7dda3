"""What the tests of the running worker share: an app with no jobs yet, and its queue seen from outside."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import TypeAdapter

from gangline import Gangline
from support.apps import Raw, named

TypeAdapter(int)  # Pydantic looks for its plugins on the disk once per process; here no event loop runs


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    """The queue of `app`, without Gangline."""
    with Raw(uri) as raw:
        yield raw


@pytest.fixture
async def app(uri: str) -> AsyncIterator[Gangline]:
    """An app on a fresh database; its tests stop their workers."""
    async with Gangline(named(uri), partitions=4) as app:
        yield app


@pytest.fixture
async def impatient_app(uri: str) -> AsyncIterator[Gangline]:
    """The same, but the driver does not hide a failure from Gangline for long."""
    async with Gangline(named(uri, timeoutMS="500"), partitions=4) as app:
        yield app
