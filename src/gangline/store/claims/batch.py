"""Several records in three commands, whatever their number: read candidates, one conditional write, read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pymongo.errors import PyMongoError

from gangline.jobs.record import ClaimedRecord
from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import (
    ClaimRequest,
    Claims,
    LeaseLengths,
    Records,
    new_token,
    read_back,
    read_back_after,
    stamp,
)
from gangline.store.connection import Document
from gangline.store.eligibility import INDEX_OF, ORDER, Filter, ready


class Batch:
    """Claims up to the limit at once.

    Measured on MongoDB 6.0.5, 32 records: the one pipeline update took 6.5 ms where a bulk of 32 single updates took
    13 ms.
    """

    name = "batch"

    def __init__(self, records: Records, hint: Hint = by_name) -> None:
        self._records = records
        self._hint = hint

    async def claim(self, request: ClaimRequest) -> Claims:
        """See :meth:`ClaimProtocol.claim`."""
        eligible = ready(request.partition, request.names, request.now)
        candidates = await self._candidates(eligible, request)
        ids = list(_within_caps(candidates, request))
        if not ids:
            return Claims()
        won = await take(self._records, ids, eligible, request.leases, request.worker, was_stale=False)
        return Claims(won, contended=len(won) < len(ids))

    async def _candidates(self, eligible: Filter, request: ClaimRequest) -> list[Document]:
        cursor = self._records.find(eligible, {"jobName": 1}).sort(list(ORDER))
        cursor.hint(self._hint(INDEX_OF[request.shape]))
        return await cursor.limit(request.limit).batch_size(request.limit).to_list()


def _within_caps(candidates: Sequence[Document], request: ClaimRequest) -> Iterator[Any]:
    taken: Counter[str] = Counter()
    for candidate in candidates:
        name = candidate["jobName"]
        if taken[name] < request.caps.get(name, request.limit):
            taken[name] += 1
            yield candidate["_id"]


async def take(
    records: Records, ids: Sequence[Any], eligible: Filter, leases: LeaseLengths, worker: str, *, was_stale: bool
) -> tuple[ClaimedRecord, ...]:
    """Claim those of ``ids`` that are still ``eligible``, and return them in the order of ``ids``."""
    token = new_token()
    tokens = [f"{token}-{position}" for position in range(len(ids))]
    # Literal: an id of another program's may look like the path of a field.
    position = {"$toString": {"$indexOfArray": [{"$literal": list(ids)}, "$_id"]}}
    update = stamp({"$concat": [f"{token}-", position]}, leases, worker, was_stale=was_stale)
    try:
        result = await records.update_many({**eligible, "_id": {"$in": list(ids)}}, update, hint="_id_")
    except PyMongoError as error:  # the driver does not repeat an update of many
        return await read_back_after(error, records, tokens, was_stale=was_stale)
    return await read_back(records, tokens, was_stale=was_stale) if result.matched_count else ()
