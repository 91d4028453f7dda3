"""Making the indexes, and telling how they stand."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import pymongo
from pymongo import IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from gangline.store.connection import Connection, Document
from gangline.store.schema import HISTORY_INDEXES, LOCK_ID, RECORD_INDEXES, UNIQUE_IDENTIFIER, WORKER_INDEXES, Index

logger = logging.getLogger("gangline.indexes")

UNAUTHORIZED = 13

# An index over a queue of millions takes longer than an operation may otherwise: given up and begun again with each
# start it would never be there.
BUILD_SECONDS = 3600.0

Keys = tuple[tuple[str, Any], ...]

# What the Node side claims over, by its age: it hints by these patterns, so they stay until the last of it is gone.
_PARTITIONED = "Node 4.6.5 and later"
_UNPARTITIONED = "Node before 4.6.5"
LEGACY: Mapping[Keys, str] = {
    (("partition", 1), ("jobName", 1), ("priority", -1), ("nextRunAt", 1)): _PARTITIONED,
    (("partition", 1), ("priority", -1), ("nextRunAt", 1)): _PARTITIONED,
    (("jobName", 1), ("priority", -1), ("nextRunAt", 1)): _UNPARTITIONED,
    (("priority", -1), ("nextRunAt", 1)): _UNPARTITIONED,
}


# Making them


async def ensure_indexes(connection: Connection) -> None:
    """Make the indexes that are missing; many processes may do so at once.

    A user without the right to make indexes gets a warning that tells what to run, and the worker goes on: someone
    else may make them.
    """
    for collection, indexes in _needed(connection):
        await _ensure(collection, indexes)


async def ensure_unique_identifiers(connection: Connection) -> None:
    """Make the index that unique identifiers rest on, once per connection: no worker may have run on this queue yet."""
    if not connection.identifiers_are_unique:
        await _ensure(connection.records, [UNIQUE_IDENTIFIER])
        connection.identifiers_are_unique = True


async def make_indexes(connection: Connection) -> list[str]:
    """Make the indexes that are missing and that nothing is in the way of; return their names.

    Raises:
        pymongo.errors.OperationFailure: there is no right to, or the records contradict a unique index.
    """
    made: list[str] = []
    for collection, indexes in _needed(connection):
        states = compare(indexes, await _listed(collection))
        missing = {index.name for index in states if index.state is IndexState.MISSING}
        await _make(collection, [index for index in indexes if index.name in missing])
        made += sorted(missing)
    return made


def _needed(connection: Connection) -> list[tuple[AsyncCollection[Document], Sequence[Index]]]:
    return [
        (connection.records, RECORD_INDEXES),
        (connection.history, HISTORY_INDEXES),
        (connection.workers, WORKER_INDEXES),
    ]


async def _ensure(collection: AsyncCollection[Document], indexes: Iterable[Index]) -> None:
    missing = await _missing(collection, indexes)
    try:
        await _make(collection, missing)
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        logger.warning(
            "no right to make the indexes %s of %s; run `gangline indexes ensure` as a user who has it",
            ", ".join(index.name for index in missing),
            collection.full_name,
            extra={"event": "indexes_unauthorized"},
        )


async def _make(collection: AsyncCollection[Document], indexes: Sequence[Index]) -> None:
    if indexes:
        with pymongo.timeout(BUILD_SECONDS):
            await collection.create_indexes([IndexModel(list(index.keys), **index.options) for index in indexes])


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


# How they stand


class IndexState(StrEnum):
    """How an index of the server compares with what Gangline needs."""

    PRESENT = "present"
    MISSING = "missing"
    DIFFERING = "differing"
    LEGACY = "legacy"
    FOREIGN = "foreign"


@dataclass(frozen=True, kw_only=True)
class IndexUse:
    """How often an index was used, over all hosts that told, and since when all of them have counted."""

    ops: int
    since: datetime


@dataclass(frozen=True, kw_only=True)
class IndexStatus:
    """One index, needed or found.

    Attributes:
        note: what is different about it, or whose it is.
        remedy: what to do about it, if something is to be done.
        size: in bytes, if it exists and the server tells.
        use: if it exists and the server tells.
    """

    collection: str = ""
    name: str
    state: IndexState
    keys: Keys
    note: str = ""
    remedy: str = ""
    size: int | None = None
    use: IndexUse | None = None


async def index_status(connection: Connection) -> list[IndexStatus]:
    """Return how the indexes of all three collections stand: those that are needed, then what else is there."""
    return [index for collection, needed in _needed(connection) for index in await _status(collection, needed)]


async def record_index_status(connection: Connection) -> list[IndexStatus]:
    """Return how the indexes of the records stand."""
    return await _status(connection.records, RECORD_INDEXES)


async def _status(collection: AsyncCollection[Document], needed: Sequence[Index]) -> list[IndexStatus]:
    states = compare(needed, await _listed(collection), collection=collection.name)
    sizes, uses = await _sizes(collection), await _uses(collection)
    return [replace(index, size=sizes.get(index.name), use=uses.get(index.name)) for index in states]


def compare(needed: Sequence[Index], listed: Sequence[Document], *, collection: str = "") -> list[IndexStatus]:
    """Return how ``listed``, the server's descriptions of its indexes, compare with what is ``needed``."""
    by_name = {str(found["name"]): found for found in listed}
    names = {index.name for index in needed}
    rest = [found for name, found in by_name.items() if name not in names and name != "_id_"]
    states = [_compared(index, by_name.get(index.name), rest) for index in needed]
    return [replace(state, collection=collection) for state in [*states, *map(_beside, rest)]]


def _compared(index: Index, found: Document | None, rest: Iterable[Document]) -> IndexStatus:
    wanted = {"key": dict(index.keys), **index.options}
    if found is None:
        return _absent(index, wanted, rest)
    differences = [name for name in (*_SIGNATURE, *_CHANGEABLE) if _option(found, name) != _option(wanted, name)]
    if not differences:
        return IndexStatus(name=index.name, state=IndexState.PRESENT, keys=index.keys)
    return IndexStatus(
        name=index.name,
        state=IndexState.DIFFERING,
        keys=_keys(found),
        note=f"not as needed: {', '.join(differences)}",
        remedy=_drop_first(index.name),
    )


def _absent(index: Index, wanted: Document, rest: Iterable[Document]) -> IndexStatus:
    # The server refuses a second index of one signature, and a hint by name does not find the first.
    twin = next((str(found["name"]) for found in rest if _signature(found) == _signature(wanted)), None)
    if twin is None:
        return IndexStatus(
            name=index.name, state=IndexState.MISSING, keys=index.keys, remedy="Run `gangline indexes ensure`"
        )
    return IndexStatus(
        name=index.name,
        state=IndexState.DIFFERING,
        keys=index.keys,
        note=f"its keys are there under another name, {twin}",
        remedy=_drop_first(twin),
    )


def _beside(found: Document) -> IndexStatus:
    keys, name = _keys(found), str(found["name"])
    plain = all(_option(found, option) is None for option in (*_SIGNATURE[1:], *_CHANGEABLE))
    side = LEGACY.get(keys) if plain else None
    if side is None:
        return IndexStatus(name=name, state=IndexState.FOREIGN, keys=keys)
    return IndexStatus(name=name, state=IndexState.LEGACY, keys=keys, note=f"for {side}")


_SIGNATURE = ("key", "unique", "sparse", "partialFilterExpression", "collation")  # what the server tells indexes by
_CHANGEABLE = ("expireAfterSeconds", "hidden")


def _signature(found: Document) -> list[Any]:
    return [_option(found, name) for name in _SIGNATURE]


def _option(found: Document, name: str) -> Any:
    """The value of an option; one that is off is as good as none. 0 is a time to live."""
    if name == "key":
        return _keys(found)
    value = found.get(name)
    return None if value is False or value == {} else value


def _keys(found: Document) -> Keys:
    return tuple(found["key"].items())


def _drop_first(name: str) -> str:
    return f"Stop the workers, drop {name} with the mongo shell, and run `gangline indexes ensure`"


async def _listed(collection: AsyncCollection[Document]) -> list[Document]:
    return [dict(found) async for found in await collection.list_indexes()]


async def _sizes(collection: AsyncCollection[Document]) -> dict[str, int]:
    """The sizes by name, summed over shards; nothing if the server does not tell."""
    sizes: dict[str, int] = {}
    for shard in await _told(collection, {"$collStats": {"storageStats": {}}}):
        for name, size in shard["storageStats"].get("indexSizes", {}).items():
            sizes[name] = sizes.get(name, 0) + int(size)
    return sizes


async def _uses(collection: AsyncCollection[Document]) -> dict[str, IndexUse]:
    """The uses by name, summed over shards; nothing if the server does not tell."""
    uses: dict[str, IndexUse] = {}
    for name, ops, since in _accesses(await _told(collection, {"$indexStats": {}})):
        before = uses.get(name, IndexUse(ops=0, since=since))
        uses[name] = IndexUse(ops=before.ops + ops, since=max(before.since, since))
    return uses


def _accesses(told: Iterable[Document]) -> Iterator[tuple[str, int, datetime]]:
    for entry in told:
        accesses = entry["accesses"]
        if isinstance(accesses["since"], datetime):  # a count from nobody knows when tells nothing
            yield entry["name"], int(accesses["ops"]), accesses["since"]


async def _told(collection: AsyncCollection[Document], stage: Document) -> list[Document]:
    """What a stage of statistics gives; nothing without the right to ask, without the collection, or unknown to it."""
    try:
        return await (await collection.aggregate([stage])).to_list()
    except OperationFailure:
        return []
