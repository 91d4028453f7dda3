"""Dropping the Node side's plain indexes once nobody claims over them any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pymongo.errors import OperationFailure

from gangline.store.claims.protocol import is_token
from gangline.store.connection import Connection
from gangline.store.indexes import IndexState, IndexStatus, record_index_status
from gangline.store.schema import FREE, LOCKED, READY_BY_PRIORITY, RECORD_INDEXES

_NO_SUCH_INDEX = 27


class LegacyWatch:
    """Watches the legacy indexes for a while: only what is seen to be unused may go.

    The server counts uses and does not tell when the last one was, so the count is read more than once. A record
    without partition, or a lease that is not Gangline's, betrays a program that a count at rest would hide.
    """

    def __init__(self, connection: Connection, names: Collection[str] = ()) -> None:
        """``names`` are the indexes that are meant; none are all that there are."""
        self._connection = connection
        self._names = names
        self._first: dict[str, IndexStatus] = {}
        self._last: dict[str, IndexStatus] = {}
        self._unpartitioned = False
        self._foreign_lease = False

    @property
    def indexes(self) -> Sequence[IndexStatus]:
        """The legacy indexes as they were last seen."""
        return list(self._last.values())

    async def look(self) -> None:
        """Look once.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked, or an index of Gangline's is missing.
        """
        self._last = {index.name: index for index in await record_index_status(self._connection) if self._meant(index)}
        self._first = self._first or self._last
        self._unpartitioned |= await self._some({"partition": None, **FREE}, hint=READY_BY_PRIORITY.name)
        self._foreign_lease |= await self._some_foreign_lease()

    def reasons(self) -> list[str]:
        """Return what speaks against dropping them; nothing if they are safe to drop."""
        found = [reason for index in self.indexes if (reason := self._why_not(index))]
        if self._unpartitioned:
            found.append(
                "there are records without a partition: a program that knows none still writes. Upgrade it, or let a "
                "worker repair what is left; `gangline stats` counts them"
            )
        if self._foreign_lease:
            found.append("a job runs under a lease that is not Gangline's: a Node worker that will claim again")
        return found

    async def drop(self) -> list[str]:
        """Drop the indexes and return their names; never one that Gangline needs."""
        needed = {index.name for index in RECORD_INDEXES}
        dropped = [index.name for index in self.indexes if index.name not in needed]
        for name in dropped:
            await self._drop(name)
        return dropped

    def _meant(self, index: IndexStatus) -> bool:
        return index.state is IndexState.LEGACY and (not self._names or index.name in self._names)

    def _why_not(self, index: IndexStatus) -> str:
        first = self._first.get(index.name)
        if first is None or first.use is None or index.use is None:
            return f"{index.name}: the server does not tell whether it is in use"
        if index.use != first.use:
            return f"{index.name}: it is in use, {index.note}"
        return ""

    async def _some(self, chosen: dict[str, object], *, hint: str) -> bool:
        return await self._connection.records.find_one(chosen, {"_id": 1}, hint=hint) is not None

    async def _some_foreign_lease(self) -> bool:
        running = {"lockedUntil": {"$gt": self._connection.clock.now()}}
        leases = self._connection.records.find(running, {"lockId": 1}).hint(LOCKED.name)
        return any([not is_token(record.get("lockId")) async for record in leases])

    async def _drop(self, name: str) -> None:
        try:
            await self._connection.records.drop_index(name)
        except OperationFailure as error:
            if error.code != _NO_SUCH_INDEX:  # someone else dropped it
                raise
