"""A claimed record, as an execution sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gangline.jobs.lease import Lease

DEFAULT_PRIORITY = 100


class JobType(StrEnum):
    """``event`` runs once and is deleted; ``recurrent`` is one record that runs for ever."""

    EVENT = "event"
    RECURRENT = "recurrent"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedRecord:
    """One record together with the lease that an execution holds on it.

    ``claimed_at`` is the server's instant of the claim, ``tries`` counts it in, ``schedule`` and ``anchor`` tell which
    rule a recurrent record follows and from where its intervals count.
    """

    id: str
    name: str
    type: str
    priority: float
    next_run_at: datetime
    params: Any
    unique: str | None
    tries: int
    was_stale: bool
    claimed_at: datetime
    lease: Lease
    anchor: datetime
