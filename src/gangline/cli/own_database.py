"""A database of a command's own, on the embedded server or on one that was given."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from gangline.cli.output import console, text
from gangline.devserver import DevServer
from gangline.store.database import drop_database, in_database


@contextmanager
def own_database(purpose: str, uri: str | None, mongod: str | None) -> Iterator[str]:
    """Give the URI of an empty database that is gone afterwards; ``purpose`` is a word for its name."""
    name = f"gangline_{purpose}_{secrets.token_hex(4)}"
    err = console(err=True)
    if uri:
        err.print(text(f"Using the database {name} on the server that was given."))
        own = in_database(uri, name)
        try:
            yield own
        finally:
            asyncio.run(drop_database(own))
        return
    err.print(f"Starting a MongoDB for the {purpose}.")
    with DevServer(binary=mongod) as server:
        yield server.uri_for(name)
