"""What may be said of a job, and what is refused when it is defined: with the name of the option and the remedy."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any, get_type_hints

import pytest

from gangline import ConfigurationError, Context, Gangline, RetryPolicy
from gangline.jobs.definition import (
    EventOptions,
    JobDefinition,
    RecurrentOptions,
    define_event,
    define_recurrent,
    is_async,
)
from gangline.jobs.record import JobType
from support.naming import plainly


def plain(to: str = "") -> None: ...
async def coroutine(to: str = "") -> None: ...
def tomorrow(after: datetime) -> datetime:
    return after + timedelta(days=1)


def event(**options: Any) -> JobDefinition:
    return define_event(plain, options)  # type: ignore[arg-type] # what a program without a type checker may write


def recurrent(**options: Any) -> JobDefinition:
    return define_recurrent(plain, options)  # type: ignore[arg-type] # the same


NO_DURATIONS = ["x", "", "-5s", "5", True, [], math.nan, math.inf, -1, timedelta(seconds=-1)]
NO_COUNTS = [0, -1, "x", "4", True, 1.5, math.nan, []]
NO_FUNCTIONS = [1, "plain", []]
WRONG: dict[str, list[Any]] = {
    "name": ["", " ", None, 5, b"job", "a\0b", "a\ud800", []],
    "priority": ["x", None, True, math.nan, math.inf, 2**63, -(2**63) - 1, []],
    "retry": [None, 5, "2s", {}],
    "lease": [0, 0.1, "199ms", *NO_DURATIONS],
    "renew": [0, 1, "yes"],
    "timeout": [0, timedelta(microseconds=1), *NO_DURATIONS],
    "max_parallel": NO_COUNTS,
    "on_error": NO_FUNCTIONS,
    "on_stale": NO_FUNCTIONS,
}
WRONG_EVENT: dict[str, list[Any]] = {
    "max_tries": NO_COUNTS,
    "keep_dead": NO_DURATIONS,
    "on_max_tries": NO_FUNCTIONS,
}
WRONG_RECURRENT: dict[str, list[Any]] = {
    "every": [0, None, timedelta(microseconds=1), *NO_DURATIONS],
    "cron": ["", "x", "* * * *", "61 * * * *", "* 25 * * *", "@daily", None, 5, "0 0 30 2 *", "0 0 31 4,6,9,11 *"],
    "next_run": [None, *NO_FUNCTIONS],
}


def each(wrong: dict[str, list[Any]]) -> list[Any]:
    """One parameter set for each option and wrong value."""
    return [pytest.param(name, value, id=f"{name}={value!a}") for name, values in wrong.items() for value in values]


def refused(define: Callable[..., JobDefinition], **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError, match=r"^[\w, ]+: .+\. \w+ .+") as caught:
        define(**options)
    return caught.value


def test_every_option_of_a_job_is_tried_below() -> None:
    assert {*WRONG, *WRONG_EVENT} == set(get_type_hints(EventOptions))
    assert {*WRONG, *WRONG_RECURRENT, "timezone", "run_at_start"} == set(get_type_hints(RecurrentOptions))


@pytest.mark.parametrize(("option", "value"), each({**WRONG, **WRONG_EVENT}))
def test_a_wrong_option_of_an_event_job_is_refused_by_name(option: str, value: Any) -> None:
    """Cases 33 and 61."""
    assert refused(event, **{option: value}).setting == option


@pytest.mark.parametrize(("option", "value"), each(WRONG))
def test_a_wrong_option_of_a_recurrent_job_is_refused_by_name(option: str, value: Any) -> None:
    """Cases 33 and 61."""
    assert refused(recurrent, every="1m", **{option: value}).setting == option


@pytest.mark.parametrize(("rule", "value"), each(WRONG_RECURRENT))
def test_a_rule_that_gives_no_instants_is_refused_by_name(rule: str, value: Any) -> None:
    """Case 61: also a cron expression whose day never comes."""
    assert refused(recurrent, **{rule: value}).setting == rule


@pytest.mark.parametrize("value", [None, 0, 1, "yes"], ids=repr)
def test_run_at_start_is_true_or_false(value: Any) -> None:
    """Case 61."""
    assert refused(recurrent, every="1m", run_at_start=value).setting == "run_at_start"


@pytest.mark.parametrize("zone", ["Nope/Zone", "", "Europe", "../../etc/passwd", "/etc/localtime", None, UTC], ids=repr)
def test_a_time_zone_that_is_unknown_is_refused(zone: Any) -> None:
    assert "Use a name such as 'Europe/Berlin'" in str(refused(recurrent, cron="0 3 * * *", timezone=zone))


@pytest.mark.parametrize("rule", [{"every": "1m"}, {"next_run": tomorrow}], ids=plainly)
def test_only_a_cron_expression_has_a_time_zone(rule: Any) -> None:
    assert refused(recurrent, **rule, timezone="UTC").setting == "timezone"


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ({}, 0),
        ({"timezone": "UTC"}, 0),
        ({"every": "1m", "cron": "* * * * *"}, 2),
        ({"every": "1m", "next_run": tomorrow}, 2),
        ({"cron": "* * * * *", "next_run": tomorrow}, 2),
        ({"every": "1m", "cron": "* * * * *", "next_run": tomorrow}, 3),
    ],
    ids=plainly,
)
def test_a_recurrent_job_has_exactly_one_rule(rules: Any, count: int) -> None:
    text = str(refused(recurrent, **rules))
    assert text == f"every, cron, next_run: {count} of them were given. Give exactly one"


@pytest.mark.parametrize(
    ("define", "unknown", "told"),
    [
        (event, "max_trys", "max_trys: unknown option of an event job. Did you mean 'max_tries'?"),
        (event, "maxTries", "maxTries: unknown option of an event job. Did you mean 'max_tries'?"),
        (event, "every", "every: unknown option of an event job. Known are: keep_dead, lease, max_parallel, max_tr"),
        (event, "run_at_start", "run_at_start: unknown option of an event job. Known are: "),
        (recurrent, "evry", "evry: unknown option of a recurrent job. Did you mean 'every'?"),
        (recurrent, "time_zone", "time_zone: unknown option of a recurrent job. Did you mean 'timezone'?"),
        (recurrent, "keep_dead", "keep_dead: unknown option of a recurrent job. Known are: cron, every, lease, "),
    ],
)
def test_an_unknown_option_suggests_the_nearest(define: Any, unknown: str, told: str) -> None:
    """Case 61."""
    assert str(refused(define, **{unknown: 1})).startswith(told)


def test_a_name_is_given_once_in_an_app_and_again_in_another() -> None:
    app = Gangline()
    app.event(name="job")(plain)
    for again in (app.event(name="job"), app.recurrent(name="job", every="1m")):
        with pytest.raises(
            ConfigurationError, match=r"name: the app has a job 'job' already. Give one of them another"
        ):
            again(coroutine)
    assert app.jobs["job"].handler is plain
    Gangline().event(name="job")(plain)


def test_a_refused_job_leaves_its_name_free() -> None:
    app = Gangline()
    with pytest.raises(ConfigurationError):
        app.event(name="job", max_tries=0)(plain)
    app.event(name="job")(plain)
    assert list(app.jobs) == ["job"]


def test_the_name_of_a_job_is_that_of_its_function_unless_another_is_given() -> None:
    assert event().name == "plain"
    assert event(name="sendWelcomeEmail").name == "sendWelcomeEmail"
    assert refused(partial(define_event, partial(plain), {})).setting == "name"


@pytest.mark.parametrize("handler", [None, 5, "plain", object()], ids=plainly)
def test_what_cannot_be_called_is_no_handler(handler: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"handler: .+ cannot be called. Decorate a function"):
        define_event(handler, {"name": "job"})


def test_a_recurrent_job_needs_a_default_for_each_parameter() -> None:
    def needs(ctx: Context, to: str, copies: int = 1) -> None: ...
    def needs_nothing(ctx: Context, copies: int = 1, **fields: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"needs: a recurrent job has no params, .*to: .*Give defaults"):
        define_recurrent(needs, {"every": "1m"})
    assert define_recurrent(needs_nothing, {"every": "1m"}).params.takes_context


def test_what_is_not_given_has_its_default() -> None:
    job = event()
    assert job.type is JobType.EVENT
    assert (job.priority, job.max_tries, job.keep_dead) == (100, 10, timedelta(weeks=1))
    assert (job.lease, job.renew, job.timeout, job.max_parallel) == (None, None, None, None)
    assert (job.on_error, job.on_stale, job.on_max_tries, job.recurrence) == (None, None, None, None)


def test_none_means_without_end() -> None:
    job = event(max_tries=None, keep_dead=None, timeout=None, lease=None, renew=None, max_parallel=None, on_error=None)
    assert (job.max_tries, job.keep_dead, job.timeout, job.max_parallel) == (None, None, None, None)


def test_an_option_is_kept_as_it_was_meant() -> None:
    """Case 60: a priority of zero is one."""
    retry = RetryPolicy.fixed("5s")
    job = event(priority=0, retry=retry, lease="1m", renew=False, timeout=1.5, max_parallel=1, max_tries=1, keep_dead=0)
    assert (job.priority, job.retry, job.renew, job.max_parallel, job.max_tries) == (0, retry, False, 1, 1)
    assert (job.lease, job.timeout, job.keep_dead) == (timedelta(minutes=1), timedelta(seconds=1.5), timedelta(0))


@pytest.mark.parametrize(
    ("rule", "instant"),
    [
        ({"every": "90s"}, datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)),
        ({"cron": "0 3 * * *", "timezone": "America/Santiago"}, datetime(2026, 1, 1, 6, tzinfo=UTC)),
        ({"cron": "0 3 * * *"}, datetime(2026, 1, 1, 3, tzinfo=UTC)),
        ({"cron": "0 0 29 2 *"}, datetime(2028, 2, 29, tzinfo=UTC)),
        ({"next_run": tomorrow}, datetime(2026, 1, 2, tzinfo=UTC)),
    ],
    ids=plainly,
)
def test_a_recurrent_job_follows_its_rule_and_never_runs_out_of_tries(rule: Any, instant: datetime) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    job = recurrent(**rule)
    assert job.type is JobType.RECURRENT
    assert job.max_tries is None
    assert job.run_at_start is False
    assert job.recurrence is not None
    assert job.recurrence.next_after(start, anchor=start.astimezone(timezone(timedelta(hours=5)))) == instant


class AsyncCallable:
    async def __call__(self) -> None: ...
    async def method(self) -> None: ...


class PlainCallable:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (coroutine, True),
        (partial(partial(coroutine), to="a"), True),
        (AsyncCallable(), True),
        (partial(AsyncCallable()), True),
        (AsyncCallable().method, True),
        (plain, False),
        (partial(plain), False),
        (PlainCallable(), False),
        (AsyncCallable, False),
    ],
    ids=plainly,
)
def test_an_async_handler_is_told_from_a_plain_one(function: Any, expected: bool) -> None:
    assert is_async(function) is expected
