import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

import pytest

from gangline.jobs.definition import EventOptions, JobDefinition, RecurrentOptions, define_event, define_recurrent
from gangline.jobs.lease import Lease
from gangline.jobs.outcome import (
    END_OF_TIME,
    MAX_MESSAGE,
    MAX_TRACE,
    Bury,
    Decision,
    Dismissed,
    Ending,
    Failed,
    Failure,
    HandBack,
    Interrupted,
    Outcome,
    OutOfTries,
    Remove,
    RetryAsked,
    Returned,
    RunAgain,
    Status,
    Unfit,
    decide,
    failure_of,
)
from gangline.jobs.record import ClaimedRecord
from gangline.jobs.retry import RetryPolicy

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
WEEK = timedelta(weeks=1)

ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)
SLOT = ANCHOR + 10 * MINUTE
CLAIMED = SLOT + 5 * SECOND
NOW = SLOT + 8 * SECOND

BOOM = Failure("ValueError", "boom")
TEN_SECONDS = RetryPolicy.fixed("10s")


def _handler() -> None: ...


def _event(**options: Unpack[EventOptions]) -> JobDefinition:
    return define_event(_handler, {"name": "job", "retry": TEN_SECONDS, **options})


def _recurrent(**options: Unpack[RecurrentOptions]) -> JobDefinition:
    return define_recurrent(_handler, {"name": "job", "retry": TEN_SECONDS, **options})


EVENT = _event(max_tries=3)
RECURRENT = _recurrent(every="1m")


def _record(job: JobDefinition, **fields: Any) -> ClaimedRecord:
    record = ClaimedRecord(
        id="id",
        name=job.name,
        type=job.type,
        priority=100,
        next_run_at=SLOT,
        params={},
        unique=None,
        tries=1,
        was_stale=False,
        claimed_at=CLAIMED,
        lease=Lease("id", "lock"),
        anchor=ANCHOR,
    )
    return replace(record, **fields)


def _decide(job: JobDefinition, ending: Ending, *, now: datetime = NOW, **fields: Any) -> Decision:
    return decide(_record(job, **fields), job, ending, now=now, chance=0.0)


def _error(failure: Failure = BOOM) -> Outcome:
    return Outcome(status=Status.ERROR, failure=failure)


# Every ending, for both types of job


@pytest.mark.parametrize("tries", [1, 3, 4])
@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Returned({"sent": 1}), Outcome(status=Status.SUCCESS, result={"sent": 1})),
        (Returned(None), Outcome(status=Status.SUCCESS)),
        (Dismissed("cancelled"), Outcome(status=Status.SUCCESS, dismissed="cancelled")),
    ],
)
def test_an_event_job_that_ended_well_is_gone(ending: Ending, outcome: Outcome, tries: int) -> None:
    """Case 59."""
    assert _decide(EVENT, ending, tries=tries) == Decision(outcome, Remove())


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Returned(7), Outcome(status=Status.SUCCESS, result=7)),
        (Dismissed(""), Outcome(status=Status.SUCCESS, dismissed="")),
    ],
)
def test_a_recurrent_job_that_ended_well_starts_afresh_at_its_next_tick(ending: Ending, outcome: Outcome) -> None:
    assert _decide(RECURRENT, ending, tries=9) == Decision(outcome, RunAgain(SLOT + MINUTE, fresh=True))


@pytest.mark.parametrize("tries", [1, 2])
def test_a_failed_event_job_waits_by_its_policy(tries: int) -> None:
    assert _decide(EVENT, Failed(BOOM), tries=tries) == Decision(_error(), RunAgain(NOW + 10 * SECOND, fresh=False))


def test_the_wait_grows_with_the_tries() -> None:
    job = _event(retry=RetryPolicy.exponential(first="1s", jitter=False))
    assert _decide(job, Failed(BOOM), tries=4).fate == RunAgain(NOW + 8 * SECOND, fresh=False)


def test_chance_moves_the_wait_of_a_policy_with_jitter() -> None:
    job = _event(retry=RetryPolicy.fixed("10s", jitter=True))
    fates = [decide(_record(job), job, Failed(BOOM), now=NOW, chance=chance).fate for chance in (0.0, 0.5)]
    assert fates == [RunAgain(NOW + 5 * SECOND, fresh=False), RunAgain(NOW + 7.5 * SECOND, fresh=False)]


@pytest.mark.parametrize("tries", [3, 4, 1_000])
@pytest.mark.parametrize(
    "ending", [Failed(BOOM), RetryAsked(BOOM, wait=MINUTE), RetryAsked(BOOM, at=NOW + MINUTE)], ids=type
)
def test_an_event_job_out_of_tries_is_dead_whatever_it_asked_for(ending: Ending, tries: int) -> None:
    """Case 2: a handler that names its next try does not run for ever either."""
    assert _decide(EVENT, ending, tries=tries) == Decision(_error(), Bury(keep=WEEK))


def test_an_event_job_without_a_limit_is_tried_for_ever() -> None:
    fate = _decide(_event(max_tries=None), Failed(BOOM), tries=10**9).fate
    assert fate == RunAgain(NOW + 10 * SECOND, fresh=False)


@pytest.mark.parametrize("job", [EVENT, RECURRENT], ids=["event", "recurrent"])
@pytest.mark.parametrize(
    ("asked", "at"),
    [
        (RetryAsked(BOOM, wait=MINUTE), NOW + MINUTE),
        (RetryAsked(BOOM, wait=timedelta(0)), NOW),
        (RetryAsked(BOOM, at=NOW + 3 * MINUTE), NOW + 3 * MINUTE),
    ],
)
def test_a_handler_that_names_its_next_try_gets_it(job: JobDefinition, asked: RetryAsked, at: datetime) -> None:
    assert _decide(job, asked, tries=2) == Decision(_error(), RunAgain(at, fresh=False))


@pytest.mark.parametrize("tries", [1, 10, 10**6])
def test_a_failed_recurrent_job_keeps_its_cadence_however_often_it_failed(tries: int) -> None:
    decision = _decide(RECURRENT, Failed(BOOM), tries=tries)
    assert decision == Decision(_error(), RunAgain(SLOT + MINUTE, fresh=False))


@pytest.mark.parametrize("keep", [timedelta(days=2), None])
def test_a_job_whose_executions_died_is_dead_as_long_as_it_says(keep: timedelta | None) -> None:
    """Case 2."""
    assert _decide(_event(keep_dead=keep), OutOfTries(BOOM), tries=11) == Decision(_error(), Bury(keep=keep))


@pytest.mark.parametrize("job", [EVENT, RECURRENT], ids=["event", "recurrent"])
def test_a_record_that_does_not_fit_is_set_aside_for_ever(job: JobDefinition) -> None:
    """Cases 57 and 72."""
    assert _decide(job, Unfit(BOOM)) == Decision(_error(), Bury(keep=None))


@pytest.mark.parametrize("job", [EVENT, RECURRENT], ids=["event", "recurrent"])
@pytest.mark.parametrize("tries", [1, 3])
def test_an_interrupted_run_is_handed_back_and_says_so(job: JobDefinition, tries: int) -> None:
    """Case 51: even at the last try, for the try is not charged."""
    decision = _decide(job, Interrupted(), tries=tries)
    assert decision.fate == HandBack()
    assert decision.outcome.status == Status.ERROR
    assert decision.outcome.failure is not None
    assert "handed back" in decision.outcome.failure.message


@pytest.mark.parametrize("ending", [Failed(BOOM), RetryAsked(BOOM, wait=timedelta.max)], ids=["policy", "asked"])
def test_a_wait_beyond_the_calendar_ends_with_it(ending: Ending) -> None:
    """Cases 22 and 53."""
    job = _event(retry=RetryPolicy.fixed(timedelta.max))
    assert _decide(job, ending).fate == RunAgain(END_OF_TIME, fresh=False)


# The cadence of recurrent jobs


def _at(fate: object) -> datetime:
    assert isinstance(fate, RunAgain)
    return fate.at


@pytest.mark.parametrize("ending", [Returned(None), Failed(BOOM)], ids=["returned", "failed"])
def test_a_run_longer_than_its_interval_does_not_skip_the_slot_that_passed(ending: Ending) -> None:
    """Case 18: the slot that came while the handler ran is overdue and runs at once; the slot itself never again."""
    fate = _decide(RECURRENT, ending, now=CLAIMED + 90 * SECOND).fate
    assert _at(fate) == SLOT + MINUTE


@pytest.mark.parametrize("back", [SECOND, 6 * SECOND, timedelta(hours=1)])
def test_a_clock_that_stepped_back_does_not_bring_a_slot_again(back: timedelta) -> None:
    """Case 18."""
    fate = _decide(RECURRENT, Returned(None), claimed_at=SLOT - back, now=SLOT - back).fate
    assert _at(fate) == SLOT + MINUTE


def test_a_claim_right_at_the_next_slot_covers_both() -> None:
    """Case 18."""
    assert _at(_decide(RECURRENT, Returned(None), claimed_at=SLOT + MINUTE).fate) == SLOT + 2 * MINUTE


def test_ten_missed_ticks_cost_one_run_and_the_cadence_stays() -> None:
    """Case 20."""
    fate = _decide(RECURRENT, Returned(None), claimed_at=SLOT + 10 * MINUTE + 30 * SECOND).fate
    assert _at(fate) == SLOT + 11 * MINUTE


def test_missed_ticks_of_a_cron_expression_cost_one_run() -> None:
    """Case 20."""
    job = _recurrent(cron="0 3 * * *")
    slot = datetime(2024, 1, 1, 3, tzinfo=UTC)
    fate = _decide(job, Returned(None), next_run_at=slot, claimed_at=slot + timedelta(days=10, hours=1)).fate
    assert _at(fate) == slot + timedelta(days=11)


def test_slots_run_one_after_another_exactly_once_although_every_run_is_late_and_long() -> None:
    """Case 18: each claim comes when the one before has ended, 80 s after its own."""
    slots, claimed_at = [SLOT], SLOT
    for _ in range(12):
        claimed_at = max(claimed_at + 80 * SECOND, slots[-1])
        fate = _decide(RECURRENT, Returned(None), next_run_at=slots[-1], claimed_at=claimed_at).fate
        slots.append(_at(fate))
    assert slots == sorted(set(slots))
    assert all((slot - ANCHOR) % MINUTE == timedelta(0) for slot in slots)


def _raises_value_error(_after: datetime) -> datetime:
    raise ValueError("no calendar")


def _raises_system_exit(_after: datetime) -> datetime:
    raise SystemExit(3)


def _returns_the_past(after: datetime) -> datetime:
    return after - MINUTE


def _returns_a_naive_datetime(after: datetime) -> datetime:
    return (after + MINUTE).replace(tzinfo=None)


@pytest.mark.parametrize("ending", [Returned(7), Dismissed("why"), Failed(BOOM)], ids=type)
@pytest.mark.parametrize(
    ("next_run", "kind", "text"),
    [
        (_raises_value_error, "ValueError", "no calendar"),
        (_raises_system_exit, "SystemExit", "3"),
        (_returns_the_past, "ValueError", "not after"),
        (_returns_a_naive_datetime, "ValueError", "no time zone"),
    ],
)
def test_a_rule_that_fails_is_recorded_and_tried_again_by_the_policy(
    next_run: Callable[[datetime], datetime], kind: str, text: str, ending: Ending
) -> None:
    """Case 69."""
    decision = _decide(_recurrent(next_run=next_run), ending)
    assert decision.fate == RunAgain(NOW + 10 * SECOND, fresh=False)
    assert decision.outcome.status == Status.ERROR
    assert decision.outcome.failure is not None
    assert decision.outcome.failure.type == kind
    assert text in decision.outcome.failure.message


def test_a_rule_that_keeps_failing_is_tried_less_and_less_often() -> None:
    """Case 69."""
    retry = RetryPolicy.exponential(first="1s", maximum="1m", jitter=False)
    job = _recurrent(next_run=_raises_value_error, retry=retry)
    waits = [_at(_decide(job, Returned(None), tries=tries).fate) - NOW for tries in (1, 2, 3, 1_100)]
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, MINUTE]


def test_a_handler_that_names_its_next_try_needs_no_rule() -> None:
    """Case 69."""
    job = _recurrent(next_run=_raises_value_error)
    assert _decide(job, RetryAsked(BOOM, wait=MINUTE)) == Decision(_error(), RunAgain(NOW + MINUTE, fresh=False))


# Errors as text


class _NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _ExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class _LockedError(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_is_kept_as_its_type_message_and_trace() -> None:
    failure = failure_of(_raised(ValueError("boom")))
    assert (failure.type, failure.message) == ("ValueError", "boom")
    assert failure.trace is not None
    assert "in _raised" in failure.trace
    assert failure.trace.endswith("ValueError: boom\n")


def test_the_cause_of_an_error_is_in_its_trace() -> None:
    error = RuntimeError("outer")
    error.__cause__ = _raised(KeyError("inner"))
    assert "KeyError: 'inner'" in (failure_of(_raised(error)).trace or "")


def test_the_type_of_a_users_error_is_named_with_its_module() -> None:
    assert failure_of(_LockedError()).type == f"{__name__}._LockedError"


@pytest.mark.parametrize(("error", "inner"), [(_NoTextError(), "RuntimeError"), (_ExitsError(), "SystemExit")])
def test_an_error_whose_text_raises_still_has_a_usable_text(error: Exception, inner: str) -> None:
    """Case 56."""
    failure = failure_of(_raised(error))
    assert type(error).__name__ in failure.message
    assert f"could not be read: {inner}" in failure.message
    assert "in _raised" in (failure.trace or "")


def test_an_error_that_cannot_be_pickled_is_text_like_any_other() -> None:
    """Case 56."""
    assert failure_of(_raised(_LockedError())).message == "locked"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (SystemExit(2), "SystemExit", "2"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
        (ValueError(), "ValueError", "ValueError"),
    ],
)
def test_an_error_always_has_a_message(error: BaseException, kind: str, message: str) -> None:
    """Case 56."""
    failure = failure_of(_raised(error))
    assert (failure.type, failure.message) == (kind, message)


def test_huge_texts_are_bounded() -> None:
    """Case 35."""
    failure = failure_of(_raised(ValueError("x" * 17_000_000)))
    assert len(failure.message) == MAX_MESSAGE
    assert len(failure.trace or "") == MAX_TRACE


def test_text_that_utf_8_cannot_hold_is_replaced() -> None:
    """Case 56."""
    failure = failure_of(_raised(ValueError("before \ud800 after")))
    assert failure.message == "before ? after"
    assert (failure.trace or "").encode().endswith(b"before ? after\n")


def test_an_error_that_was_never_raised_has_a_trace_of_one_line() -> None:
    assert failure_of(ValueError("boom")) == Failure("ValueError", "boom", "ValueError: boom\n")
