"""One record by one ``findAndModify``: servers before MongoDB 8 and a limit of one."""

from __future__ import annotations

from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import (
    ClaimRequest,
    Claims,
    Records,
    new_token,
    read_back_after,
    stamp,
)
from gangline.store.codec import claimed_record
from gangline.store.eligibility import INDEX_OF, ORDER, ready


class FindAndModify:
    """Claims the best due record of the partition; a limit above one still gives one."""

    name = "find-and-modify"

    def __init__(self, records: Records, hint: Hint = by_name) -> None:
        self._records = records
        self._hint = hint

    async def claim(self, request: ClaimRequest) -> Claims:
        """See :meth:`ClaimProtocol.claim`."""
        token = new_token()
        try:
            document = await self._records.find_one_and_update(
                ready(request.partition, request.names, request.now),
                stamp(token, request.leases, request.worker, was_stale=False),
                sort=list(ORDER),
                hint=self._hint(INDEX_OF[request.shape]),
                return_document=ReturnDocument.AFTER,
            )
        except PyMongoError as error:
            return Claims(await read_back_after(error, self._records, [token]))
        return Claims((claimed_record(document),)) if document else Claims()
