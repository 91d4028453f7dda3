"""Settings of a worker, and the checks that every setting and option of the project goes through.

A wrong value is refused at start with the name of the setting and the remedy; a worker that starts has values that
mean something.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict, cast, get_args

from gangline.jobs.durations import Duration, parse_duration
from gangline.jobs.errors import ConfigurationError

ClaimMode = Literal["auto", "sorted-update", "find-and-modify", "batch"]
MAX_PARTITIONS = 1024
MIN_LEASE = timedelta(milliseconds=200)
SHORTEST_POLL = timedelta(milliseconds=10)
A_CENTURY = timedelta(days=36_525)  # more, counted from now, may lie beyond what a date can hold
_INT64 = range(-(2**63), 2**63)


def duration(
    setting: str, value: Duration, *, at_least: timedelta = timedelta(0), at_most: timedelta = timedelta.max
) -> timedelta:
    """Return ``value`` as a ``timedelta`` within the bounds, or raise :class:`ConfigurationError`."""
    try:
        length = parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(setting, str(error), "Give a duration of zero or more") from error
    if length < at_least:
        raise ConfigurationError(setting, f"{value!r} is too short", f"Give at least {at_least.total_seconds()} s")
    if length > at_most:
        raise ConfigurationError(setting, f"{value!r} is too long", f"Give at most {at_most.total_seconds()} s")
    return length


def whole_number(setting: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Return ``value`` if it is a whole number within the bounds, or raise :class:`ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigurationError(setting, f"{value!r} is not a whole number >= {at_least}", "Give such a number")
    if at_most is not None and value > at_most:
        raise ConfigurationError(setting, f"{value!r} is too large", f"Give at most {at_most}")
    return value


def priority(value: Any) -> float:
    """Return ``value`` if records can be sorted by it, or raise :class:`ConfigurationError`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and value not in _INT64) or not math.isfinite(value):
        raise ConfigurationError(
            "priority", f"{value!r} is not a finite number of 64 bits", "Higher runs first; the default is 100"
        )
    return cast("float", value)


def job_name(value: Any) -> str:
    """Return ``value`` if it can name a job, or raise :class:`ConfigurationError`."""
    if not isinstance(value, str) or not value.strip() or "\0" in value or not _is_unicode(value):
        raise ConfigurationError("name", f"{value!r} cannot name a job", "Give a text that is not empty")
    return value


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def collection_prefix(value: Any) -> str:
    """Return ``value`` if collections' names can begin with it, or raise :class:`ConfigurationError`."""
    wrong = not isinstance(value, str) or any(part in value for part in ("$", "\0", ".."))
    if wrong or value.startswith((".", "system.")):
        raise ConfigurationError("prefix", f"{value!r} cannot begin a collection's name", "Give one like 'gangline.'")
    return str(value)


def known(options: Iterable[str], allowed: Iterable[str], *, of: str) -> None:
    """Raise :class:`ConfigurationError` for the first option that is not allowed, and suggest the nearest one."""
    names = sorted(allowed)
    for option in options:
        if option not in names:
            near = difflib.get_close_matches(option, names, n=1, cutoff=0.7)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(names)}"
            raise ConfigurationError(option, f"unknown option of {of}", remedy)


class WorkerOptions(TypedDict, total=False):
    """What a user may say of a worker; the defaults and meanings are those of :class:`WorkerSettings`."""

    concurrency: int
    poll_interval: Duration
    lease: Duration
    renew: bool
    grace: Duration
    keep_history: Duration
    claim: ClaimMode
    max_batch: int
    change_stream: bool


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Checked settings of one worker.

    Attributes:
        concurrency: how many executions run at once in this process.
        poll_interval: how long an idle worker waits before it looks again; what it waits for wakes it earlier.
        lease: how long a claimed record stays owned without a renewal, unless its job says otherwise. A killed worker
            costs its jobs at most this long.
        renew: whether leases are renewed while handlers run, unless the job says otherwise.
        grace: how long :meth:`stop` lets running jobs end before it hands them back.
        keep_history: how long history documents live; zero writes none.
        claim: the claim protocol, or ``auto`` to let the server's version decide.
        max_batch: the most records taken from one partition in one go. A job of higher priority in another partition
            is overtaken by at most this many records for each claim that is under way.
        change_stream: whether an idle worker is told of new records by the server, where it can; otherwise it finds
            what other processes schedule when it looks, once a poll interval.
    """

    concurrency: int = 32
    poll_interval: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=30)
    renew: bool = True
    grace: timedelta = timedelta(seconds=30)
    keep_history: timedelta = timedelta(weeks=1)
    claim: ClaimMode = "auto"
    max_batch: int = 32
    change_stream: bool = True

    @classmethod
    def checked(cls, options: WorkerOptions) -> WorkerSettings:
        """Return the settings that ``options`` mean.

        Raises:
            ConfigurationError: one of them is unknown or out of bounds; it names the setting and the remedy.
        """
        known(options, WorkerOptions.__annotations__, of="a worker")
        default = cls()
        return cls(
            concurrency=whole_number("concurrency", options.get("concurrency", default.concurrency), at_most=10_000),
            poll_interval=duration(
                "poll_interval",
                options.get("poll_interval", default.poll_interval),
                at_least=SHORTEST_POLL,
                at_most=A_CENTURY,
            ),
            lease=duration("lease", options.get("lease", default.lease), at_least=MIN_LEASE, at_most=A_CENTURY),
            renew=truth("renew", options.get("renew", default.renew)),
            grace=duration("grace", options.get("grace", default.grace), at_most=A_CENTURY),
            keep_history=duration("keep_history", options.get("keep_history", default.keep_history), at_most=A_CENTURY),
            claim=_claim_mode(options.get("claim", default.claim)),
            max_batch=whole_number("max_batch", options.get("max_batch", default.max_batch), at_most=1_000),
            change_stream=truth("change_stream", options.get("change_stream", default.change_stream)),
        )


def truth(setting: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, or raise :class:`ConfigurationError`."""
    if not isinstance(value, bool):
        raise ConfigurationError(setting, f"{value!r} is neither True nor False", "Give one of them")
    return value


def _claim_mode(value: ClaimMode) -> ClaimMode:
    if value not in get_args(ClaimMode):
        raise ConfigurationError("claim", f"{value!r} is no claim protocol", f"Use one of {get_args(ClaimMode)}")
    return value
