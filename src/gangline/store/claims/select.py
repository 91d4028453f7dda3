"""Which protocol claims."""

from __future__ import annotations

from gangline.jobs.errors import ConfigurationError
from gangline.jobs.settings import ClaimMode
from gangline.store.capabilities import Capabilities
from gangline.store.claims.batch import Batch
from gangline.store.claims.find_and_modify import FindAndModify
from gangline.store.claims.hints import Hint, by_name
from gangline.store.claims.protocol import ClaimProtocol, ClaimRequest, Claims, Records
from gangline.store.claims.sorted_update import SortedUpdate


class ByLimit:
    """Servers before MongoDB 8: one record in one command, several in three.

    A batch of one is no substitute: 32 claimers with a limit of 1 needed 4,600 batches for 400 records, since they read
    the same candidate, and 405 times find-and-modify (MongoDB 6.0.5).
    """

    name = "batch"

    def __init__(self, records: Records, hint: Hint = by_name) -> None:
        self._one = FindAndModify(records, hint)
        self._several = Batch(records, hint)

    async def claim(self, request: ClaimRequest) -> Claims:
        """See :meth:`ClaimProtocol.claim`."""
        return await (self._one if request.limit == 1 else self._several).claim(request)


def select_protocol(
    mode: ClaimMode,
    records: Records,
    capabilities: Capabilities,
    *,
    lock_id_index: bool,
    hint: Hint = by_name,
) -> ClaimProtocol:
    """Return the protocol that ``mode`` asks for, or for ``auto`` the best that the server can do.

    Raises:
        ConfigurationError: the server cannot do what was asked for.
    """
    if mode == "sorted-update" and not capabilities.sorted_update:
        raise ConfigurationError(
            "claim",
            f"'sorted-update' needs MongoDB 8.0 (wire version 25); the server speaks {capabilities.wire_version}",
            "Use 'auto'",
        )
    if mode == "sorted-update" or (mode == "auto" and capabilities.sorted_update and lock_id_index):
        return SortedUpdate(records, hint)
    if mode == "find-and-modify":
        return FindAndModify(records, hint)
    return ByLimit(records, hint)
