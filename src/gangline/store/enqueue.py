"""Scheduling: new records, in bulk, with an outcome for each in its order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import bson
import uuid_utils
from bson import CodecOptions
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from gangline.jobs.errors import AlreadyScheduled, InvalidParams, RecordTooLarge, SchedulingError
from gangline.jobs.outcome import END_OF_TIME
from gangline.jobs.record import JobType
from gangline.jobs.scheduling import JobCall, Scheduled, ScheduleStatus
from gangline.store.connection import CODEC, Connection, Document
from gangline.store.history import DUPLICATE_KEY, MAX_DOCUMENT_BYTES
from gangline.store.schema import DEAD

_MAX_ROUNDS = 10
_RAW: CodecOptions[RawBSONDocument] = CODEC.with_options(document_class=RawBSONDocument)


@dataclass(frozen=True, slots=True)
class _Item:
    """A job on its way: its place in the bulk, its call, and its record in BSON."""

    place: int
    call: JobCall
    id: str
    record: RawBSONDocument


class Enqueuer:
    """Puts jobs into the queue."""

    def __init__(self, connection: Connection, partitions: int) -> None:
        self._connection = connection
        self._records = connection.records
        self._partitions = partitions

    async def schedule(self, calls: Sequence[JobCall]) -> list[Scheduled]:
        """Insert a record for each of ``calls`` in one go and return an outcome for each, in their order.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked; some of the jobs may have been accepted.
        """
        outcomes: dict[int, Scheduled] = {}
        items = list(self._encode(calls, outcomes))
        for _ in range(_MAX_ROUNDS):
            if not items:
                break
            items = await self._insert(items, outcomes)
        for item in items:  # the holder of the identifier came and went each time
            outcomes[item.place] = _refused(SchedulingError(f"{item.call.unique!r} kept changing hands; try again"))
        return [outcomes[place] for place in range(len(calls))]

    def _encode(self, calls: Sequence[JobCall], outcomes: dict[int, Scheduled]) -> Iterable[_Item]:
        now = self._connection.clock.now()
        for place, call in enumerate(calls):
            try:
                yield _encode(place, call, self._partitions, now)
            except SchedulingError as error:
                outcomes[place] = _refused(error)

    async def _insert(self, items: list[_Item], outcomes: dict[int, Scheduled]) -> list[_Item]:
        """Insert ``items``; return those that should be tried again."""
        errors: list[Document] = []
        try:
            await self._records.insert_many([item.record for item in items], ordered=False)
        except BulkWriteError as error:
            errors = _write_errors(error)
        failed = {error["index"]: error for error in errors}
        taken = []
        for index, item in enumerate(items):
            if index not in failed or _is_own_repeat(failed[index]):
                outcomes[item.place] = Scheduled(id=item.id, status=ScheduleStatus.CREATED)
            elif failed[index]["code"] == DUPLICATE_KEY:
                taken.append(item)
            else:
                outcomes[item.place] = _refused(SchedulingError(failed[index].get("errmsg", "the server refused it")))
        return await self._resolve(taken, outcomes) if taken else []

    async def _resolve(self, items: list[_Item], outcomes: dict[int, Scheduled]) -> list[_Item]:
        """Settle what happens to jobs whose unique identifier is taken; return those whose holder is gone or dead."""
        await self._free_dead([item.call.unique for item in items])
        holders = await self._holders(items)
        replaced = await self._replace([item for item in items if item.call.on_conflict == "replace"])
        again = []
        for item in items:
            holder = holders.get(item.call.unique)
            if item.id in replaced:
                outcomes[item.place] = Scheduled(id=replaced[item.id], status=ScheduleStatus.REPLACED)
            elif holder is None:
                again.append(item)
            else:
                outcomes[item.place] = _existing(item.call, holder)
        return again

    async def _free_dead(self, identifiers: Sequence[str | None]) -> None:
        # Gangline's own dead records gave theirs back when they died; the Node side's keep it.
        await self._records.update_many(
            {"uniqueIdentifier": {"$in": list(identifiers)}, "type": JobType.EVENT.value, "status": DEAD},
            [{"$set": {"freedUniqueIdentifier": "$uniqueIdentifier"}}, {"$unset": "uniqueIdentifier"}],
        )

    async def _holders(self, items: Sequence[_Item]) -> dict[str | None, str]:
        identifiers = {item.call.unique for item in items}
        found = self._records.find({"uniqueIdentifier": {"$in": list(identifiers)}}, {"uniqueIdentifier": 1})
        return {document["uniqueIdentifier"]: document["_id"] for document in await found.to_list()}

    async def _replace(self, items: Sequence[_Item]) -> dict[Any, str]:
        """Put ``items`` in the place of waiting records; return by item the id of the record that it replaced."""
        if not items:
            return {}
        await self._records.bulk_write([_replacement(item) for item in items])
        found = self._records.find(_unique_in(items), {"revision": 1})
        return {document.get("revision"): document["_id"] for document in await found.to_list()}


def _unique_in(items: Sequence[_Item]) -> Document:
    return {"uniqueIdentifier": {"$in": [item.call.unique for item in items]}}


def _encode(place: int, call: JobCall, partitions: int, now: datetime) -> _Item:
    job_id = str(uuid_utils.uuid7())
    document = {
        "_id": job_id,
        "jobName": call.name,
        "type": JobType.EVENT.value,
        "priority": call.priority,
        "nextRunAt": _due(call, now),
        "partition": random.randrange(partitions),
        "params": call.params(),
        "tries": 0,
        "createdAt": now,
    }
    if call.unique is not None:
        document["uniqueIdentifier"] = call.unique
    return _Item(place, call, job_id, RawBSONDocument(_bson(document, call.name), _RAW))


def _bson(document: Document, name: str) -> bytes:
    try:
        encoded = bson.encode(document, codec_options=CODEC)
    except (InvalidDocument, OverflowError, UnicodeEncodeError) as error:
        raise InvalidParams(f"job {name!r}: the record cannot be stored ({error})") from error
    if len(encoded) > MAX_DOCUMENT_BYTES:
        raise RecordTooLarge(
            f"job {name!r}: the record has {len(encoded):,} bytes, the server takes {MAX_DOCUMENT_BYTES:,}; "
            "store the payload elsewhere and pass a reference"
        )
    return encoded


def _due(call: JobCall, now: datetime) -> datetime:
    if call.run_at is not None:
        return call.run_at
    try:
        return now if call.run_in is None else now + call.run_in
    except OverflowError:
        return END_OF_TIME


def _replacement(item: _Item) -> UpdateOne:
    """The write that puts ``item`` in the place of a waiting record; ``revision`` tells afterwards that it did."""
    new = bson.decode(item.record.raw, codec_options=CODEC)
    fields = {name: value for name, value in new.items() if name not in ("_id", "uniqueIdentifier", "partition")}
    waiting = {"uniqueIdentifier": item.call.unique, "lockedUntil": None, "type": JobType.EVENT.value}
    return UpdateOne(waiting, {"$set": {**fields, "revision": item.id}, "$unset": {"lastError": ""}})


def _existing(call: JobCall, holder: str) -> Scheduled:
    if call.on_conflict == "raise":
        return _refused(AlreadyScheduled(call.unique or "", holder))
    return Scheduled(id=holder, status=ScheduleStatus.EXISTING)


def _refused(error: SchedulingError) -> Scheduled:
    return Scheduled(id=None, status=ScheduleStatus.REFUSED, error=error)


def _write_errors(error: BulkWriteError) -> list[Document]:
    details = error.details or {}
    if details.get("writeConcernErrors"):
        raise error
    return list(details.get("writeErrors", []))


def _is_own_repeat(error: Document) -> bool:
    # The id is new: only the driver's own repetition of this very insert can have stored it.
    return error["code"] == DUPLICATE_KEY and "_id" in error.get("keyPattern", {})
