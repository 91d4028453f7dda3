"""Renewing leases, from a thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pymongo.collection import Collection

from gangline.jobs.lease import Lease
from gangline.store.connection import Address, Document, open_sync_records


class LeaseRenewals:
    """Renews leases over a synchronous connection of its own, so that nothing on the event loop can delay it."""

    def __init__(self, address: Address) -> None:
        self._records: Collection[Document] = open_sync_records(address)

    def renew(self, leases: Sequence[Lease], length: timedelta) -> list[Lease]:
        """Let ``leases`` end ``length`` from now by the server's clock, never earlier than they did; return the lost.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked; it is not known which leases were renewed.
        """
        lock_ids = [lease.lock_id for lease in leases]
        held = {"_id": {"$in": [lease.record_id for lease in leases]}, "lockId": {"$in": lock_ids}}
        until = {"$add": ["$$NOW", length // timedelta(milliseconds=1)]}
        update = [{"$set": {"lockedUntil": {"$max": ["$lockedUntil", until]}}}]
        if self._records.update_many(held, update, hint="_id_").matched_count == len(leases):
            return []
        found = {document["lockId"] for document in self._records.find(held, {"lockId": 1}, hint="_id_")}
        return [lease for lease in leases if lease.lock_id not in found]

    def close(self) -> None:
        """Close the connection."""
        self._records.database.client.close()
