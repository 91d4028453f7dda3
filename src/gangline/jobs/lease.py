"""Proof of ownership."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one execution to write its record: every write it makes carries this and matches both parts.

    ``lock_id`` is unique to the execution. The end of the lease is kept by the server (``lockedUntil``); a worker's own
    idea of it is only good for deciding when to renew.
    """

    record_id: str
    lock_id: str
