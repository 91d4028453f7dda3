"""What the tests of scheduling share: an app on a fresh database, and its queue seen from outside."""

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
    """An app on a fresh database."""
    async with Gangline(named(uri), partitions=16) as app:
        yield app
