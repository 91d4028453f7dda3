"""Making the indexes."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from pymongo import IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from gangline.store.connection import Connection, Document
from gangline.store.schema import HISTORY_INDEXES, LOCK_ID, RECORD_INDEXES, UNIQUE_IDENTIFIER, WORKER_INDEXES, Index

logger = logging.getLogger("gangline.indexes")

UNAUTHORIZED = 13


async def ensure_indexes(connection: Connection) -> None:
    """Make the indexes that are missing; many processes may do so at once.

    A user without the right to make indexes gets a warning that tells what is missing, and the worker goes on: someone
    else may make them.
    """
    await _ensure(connection.records, RECORD_INDEXES)
    await _ensure(connection.history, HISTORY_INDEXES)
    await _ensure(connection.workers, WORKER_INDEXES)


async def ensure_unique_identifiers(connection: Connection) -> None:
    """Make the index that unique identifiers rest on, once per connection: no worker may have run on this queue yet."""
    if not connection.identifiers_are_unique:
        await _ensure(connection.records, [UNIQUE_IDENTIFIER])
        connection.identifiers_are_unique = True


async def _ensure(collection: AsyncCollection[Document], indexes: Iterable[Index]) -> None:
    missing = await _missing(collection, indexes)
    if not missing:
        return
    try:
        await collection.create_indexes([IndexModel(list(index.keys), **index.options) for index in missing])
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        logger.warning(
            "no right to make the indexes %s of %s; have someone with that right run a worker once",
            ", ".join(index.name for index in missing),
            collection.full_name,
            extra={"event": "indexes_unauthorized"},
        )


async def _missing(collection: AsyncCollection[Document], indexes: Iterable[Index]) -> list[Index]:
    present = await _present(collection)
    return [index for index in indexes if index.name not in present]


async def _present(collection: AsyncCollection[Document]) -> Container[str]:
    try:
        return await collection.index_information()
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return ()  # who may not even look is told so when it comes to making them


async def has_lock_id_index(connection: Connection) -> bool:
    """Whether a record can be read back by its lock id without a scan."""
    return not await _missing(connection.records, [LOCK_ID])
