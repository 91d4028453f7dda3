"""How a run ended, and what becomes of its record: two closed sets and the pure step between them."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import TracebackType
from typing import Any

from gangline.jobs.definition import JobDefinition
from gangline.jobs.record import ClaimedRecord, JobType

MAX_MESSAGE = 2_000
MAX_TRACE = 20_000
END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as text. The exception itself is not kept: it may hold anything and need not survive storage."""

    type: str
    message: str
    trace: str | None = None


# How a run ended.


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned ``value``."""

    value: Any


@dataclass(frozen=True, slots=True)
class Dismissed:
    """The handler, or its error hook, ended the job on purpose."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, its params did not fit, or it ran out of time."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RetryAsked:
    """The handler, or its error hook, named the time of the next try."""

    failure: Failure
    wait: timedelta | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OutOfTries:
    """The claim itself was one too many: earlier executions died without an end of their own. Nothing was run."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Unfit:
    """The record does not fit its definition and never will. Nothing was run."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker stopped before the handler ended."""


Ending = Returned | Dismissed | Failed | RetryAsked | OutOfTries | Unfit | Interrupted


# What becomes of the record. The store has one settle clause for each.


@dataclass(frozen=True, slots=True)
class Remove:
    """The record is deleted."""


@dataclass(frozen=True, slots=True)
class RunAgain:
    """The record waits until ``at``; ``fresh`` forgets its tries and its last error."""

    at: datetime
    fresh: bool


@dataclass(frozen=True, slots=True)
class Bury:
    """The record is dead: visible, never claimed, deleted after ``keep`` (``None``: never)."""

    keep: timedelta | None


@dataclass(frozen=True, slots=True)
class HandBack:
    """The record is free at once and the try is not charged."""


Fate = Remove | RunAgain | Bury | HandBack


class Status(StrEnum):
    """The status of an execution in the history."""

    SUCCESS = "success"
    ERROR = "error"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an execution came to, as its history tells it."""

    status: Status
    result: Any = None
    failure: Failure | None = None
    dismissed: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of one execution: what it came to, and the fate of its record."""

    outcome: Outcome
    fate: Fate


def decide(record: ClaimedRecord, job: JobDefinition, ending: Ending, *, now: datetime, chance: float) -> Decision:
    """Return what becomes of a run of ``record`` that ended so; ``chance`` is a random number in [0, 1) for jitter."""
    match ending:
        case Returned(value):
            return _ended_well(record, job, now=now, chance=chance, result=value)
        case Dismissed(reason):
            return _ended_well(record, job, now=now, chance=chance, dismissed=reason)
        case Unfit(failure):
            return _error(failure, Bury(keep=None))
        case OutOfTries(failure):
            return _error(failure, Bury(keep=job.keep_dead))
        case Interrupted():
            failure = Failure("HandedBack", "handed back: its worker stopped before the handler ended")
            return _error(failure, HandBack())
        case RetryAsked(failure):
            return _failed(record, job, failure, now=now, chance=chance, at=_asked(ending, now))
        case Failed(failure):
            return _failed(record, job, failure, now=now, chance=chance, at=None)


def _ended_well(
    record: ClaimedRecord,
    job: JobDefinition,
    *,
    now: datetime,
    chance: float,
    result: Any = None,
    dismissed: str | None = None,
) -> Decision:
    outcome = Outcome(status=Status.SUCCESS, result=result, dismissed=dismissed)
    if record.type == JobType.EVENT:
        return Decision(outcome, Remove())
    try:
        return Decision(outcome, RunAgain(_next_tick(record, job), fresh=True))
    except BaseException as error:  # next_run is the user's
        return _unscheduled(record, job, error, now=now, chance=chance)


def _failed(
    record: ClaimedRecord, job: JobDefinition, failure: Failure, *, now: datetime, chance: float, at: datetime | None
) -> Decision:
    if record.type == JobType.EVENT and job.max_tries is not None and record.tries >= job.max_tries:
        return _error(failure, Bury(keep=job.keep_dead))
    if at is None and record.type == JobType.EVENT:
        at = _after_wait(record, job, now=now, chance=chance)
    if at is None:
        try:
            at = _next_tick(record, job)
        except BaseException as error:  # next_run is the user's
            return _unscheduled(record, job, error, now=now, chance=chance)
    return _error(failure, RunAgain(at, fresh=False))


def _unscheduled(
    record: ClaimedRecord, job: JobDefinition, error: BaseException, *, now: datetime, chance: float
) -> Decision:
    # The rule for the next run failed: the record keeps its error and comes back by the retry policy.
    fate = RunAgain(_after_wait(record, job, now=now, chance=chance), fresh=False)
    return _error(failure_of(error), fate)


def _error(failure: Failure, fate: Fate) -> Decision:
    return Decision(Outcome(status=Status.ERROR, failure=failure), fate)


def _next_tick(record: ClaimedRecord, job: JobDefinition) -> datetime:
    # Every slot up to the claim is covered by this run: ten missed ticks cost one run, and a slot that passed while
    # the handler ran is not skipped. The slot itself is the bound when a clock stepped back.
    covered = max(record.claimed_at, record.next_run_at)
    if job.recurrence is None:
        raise ValueError(f"job {job.name!r} has no recurrence")
    return job.recurrence.next_after(covered, anchor=record.anchor)


def _after_wait(record: ClaimedRecord, job: JobDefinition, *, now: datetime, chance: float) -> datetime:
    return _later(now, job.retry.delay(tries=record.tries, chance=chance))


def _asked(ending: RetryAsked, now: datetime) -> datetime:
    return ending.at or _later(now, ending.wait or timedelta(0))


def _later(now: datetime, wait: timedelta) -> datetime:
    try:
        return min(now + wait, END_OF_TIME)
    except OverflowError:
        return END_OF_TIME


def failure_of(error: BaseException) -> Failure:
    """Return ``error`` as text of bounded length, whatever its ``__str__`` does."""
    return Failure(_type_name(error), _message(error)[:MAX_MESSAGE], _trace(error))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as inner:
        return f"{_type_name(error)} (its text could not be read: {_type_name(inner)})"
    return storable_text(text) or _type_name(error)


def _trace(error: BaseException) -> str | None:
    try:
        text = "".join(traceback.format_exception(type(error), error, _own_frames(error.__traceback__)))
    except BaseException:
        return None
    return storable_text(text)[-MAX_TRACE:]


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the user's first frame on: how Gangline came to call it helps nobody."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("gangline."):
        trace = trace.tb_next
    return trace


def storable_text(text: str) -> str:
    """Return ``text`` with what UTF-8 cannot hold (lone surrogates) replaced."""
    return text.encode("utf-8", "replace").decode()
