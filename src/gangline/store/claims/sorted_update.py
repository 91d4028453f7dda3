"""Each record by an ``updateOne`` with a sort, read back by its lock id: MongoDB 8 and later."""

from __future__ import annotations

from pymongo import UpdateOne
from pymongo.errors import PyMongoError

from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import (
    ClaimRequest,
    Claims,
    Records,
    new_token,
    read_back,
    read_back_after,
    stamp,
)
from gangline.store.eligibility import INDEX_OF, ORDER, ready


class SortedUpdate:
    """Claims with one command of as many statements as records are wanted, and reads them back in one more."""

    name = "sorted-update"

    def __init__(self, records: Records, hint: Hint = by_name) -> None:
        self._records = records
        self._hint = hint

    async def claim(self, request: ClaimRequest) -> Claims:
        """See :meth:`ClaimProtocol.claim`."""
        # The statements cannot know how many of a capped name the earlier ones took: the smallest cap bounds all.
        tokens = [new_token() for _ in range(min([request.limit, *request.caps.values()]))]
        try:
            statements = [self._statement(request, token) for token in tokens]
            result = await self._records.bulk_write(statements, ordered=False)
        except PyMongoError as error:
            return Claims(await read_back_after(error, self._records, tokens))
        return Claims(await read_back(self._records, tokens)) if result.matched_count else Claims()

    def _statement(self, request: ClaimRequest, token: str) -> UpdateOne:
        return UpdateOne(
            ready(request.partition, request.names, request.now),
            stamp(token, request.leases, request.worker, was_stale=False),
            sort=dict(ORDER),
            hint=self._hint(INDEX_OF[request.shape]),
        )
