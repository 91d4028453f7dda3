"""What the tests of the shared queue have in common: a Node program and an app of Gangline's on one database."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import TypeAdapter

from gangline import Gangline
from support.apps import named
from support.node_side import NodeSide
from support.queues import NODE_PREFIX

TypeAdapter(int)  # Pydantic looks for its plugins on the disk once per process; here no event loop runs


@pytest.fixture
def node(uri: str) -> Iterator[NodeSide]:
    """A Node program of 4.6 with as many partitions as `app`."""
    with NodeSide(uri) as node:
        yield node


@pytest.fixture
async def app(uri: str) -> AsyncIterator[Gangline]:
    """An app that joins the Node queue."""
    async with Gangline(named(uri), prefix=NODE_PREFIX, partitions=4) as app:
        yield app
