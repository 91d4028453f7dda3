"""The definition of a job: its name, its handler, and everything a user may say about how it runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypedDict, cast, get_type_hints
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gangline.jobs import settings
from gangline.jobs.context import Context
from gangline.jobs.durations import Duration
from gangline.jobs.errors import ConfigurationError, Dismiss, Retry
from gangline.jobs.params import ParamsSchema
from gangline.jobs.record import DEFAULT_PRIORITY, JobType
from gangline.jobs.recurrence import Cron, Every, NextRun, Recurrence
from gangline.jobs.retry import DEFAULT_RETRY, RetryPolicy

Handler = Callable[..., Any]
Decision = Retry | Dismiss | None
OnError = Callable[[BaseException, Any, Context], Decision | Awaitable[Decision]]
OnStale = Callable[[Any, Context], Awaitable[None] | None]
OnMaxTries = Callable[[BaseException | None, Any, Context], Awaitable[None] | None]


class JobOptions(TypedDict, total=False):
    """What may be said of every job; meanings and defaults are those of :class:`JobDefinition`."""

    name: str
    priority: float
    retry: RetryPolicy
    lease: Duration | None
    renew: bool | None
    timeout: Duration | None
    max_parallel: int | None
    on_error: OnError | None
    on_stale: OnStale | None


class EventOptions(JobOptions, total=False):
    """What may be said of an event job."""

    max_tries: int | None
    keep_dead: Duration | None
    on_max_tries: OnMaxTries | None


class RecurrentOptions(JobOptions, total=False):
    """What may be said of a recurrent job: exactly one of ``every``, ``cron`` and ``next_run``."""

    every: Duration
    cron: str
    timezone: str
    next_run: Callable[[datetime], datetime]
    run_at_start: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class JobDefinition:
    """A job as the rooms below the app know it. Frozen; every value is checked.

    Attributes:
        name: the ``jobName`` of its records.
        handler: the user's function; a plain one runs in a thread.
        params: how its parameters become a document and back.
        priority: of records scheduled without one; higher runs first.
        max_tries: claims after which a failing event job is dead; ``None`` is without end.
        retry: how long it waits after a failure.
        lease: how long a claim lasts without renewal; ``None`` is the worker's.
        renew: whether the lease is renewed while the handler runs; ``None`` is the worker's.
        timeout: the longest a run may take; ``None`` is without end.
        max_parallel: how many of it run at once in one worker process; ``None`` is as many as fit.
        keep_dead: how long a dead record stays; ``None`` is for ever.
        on_error: called with (error, params, ctx) when a run failed; may return ``Retry`` or ``Dismiss``, and ``None``
            leaves it to the policy.
        on_stale: called with (params, ctx) when an execution lost its lease.
        on_max_tries: called with (error, params, ctx) once the job is dead; no error if its workers died.
        recurrence: the rule of a recurrent job; ``None`` for an event job.
        run_at_start: whether the first registration of a recurrent job runs at once.
    """

    name: str
    handler: Handler
    params: ParamsSchema
    priority: float = DEFAULT_PRIORITY
    max_tries: int | None = 10
    retry: RetryPolicy = DEFAULT_RETRY
    lease: timedelta | None = None
    renew: bool | None = None
    timeout: timedelta | None = None
    max_parallel: int | None = None
    keep_dead: timedelta | None = timedelta(weeks=1)
    on_error: OnError | None = None
    on_stale: OnStale | None = None
    on_max_tries: OnMaxTries | None = None
    recurrence: Recurrence | None = None
    run_at_start: bool = False

    @property
    def type(self) -> JobType:
        """The type its records must have."""
        return JobType.EVENT if self.recurrence is None else JobType.RECURRENT

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler runs on the event loop; otherwise it runs in a thread."""
        return is_async(self.handler)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` gives a coroutine."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def define_event(handler: Handler, options: EventOptions) -> JobDefinition:
    """Return the definition of an event job.

    Raises:
        ConfigurationError: an option is unknown or wrong; it names the option and the remedy.
    """
    settings.known(options, _all_options(EventOptions), of="an event job")
    checked = _common(handler, options)
    if "max_tries" in options:
        checked["max_tries"] = _optional(settings.whole_number, "max_tries", options["max_tries"])
    if "keep_dead" in options:
        checked["keep_dead"] = _optional(
            settings.duration, "keep_dead", options["keep_dead"], at_most=settings.A_CENTURY
        )
    if "on_max_tries" in options:
        checked["on_max_tries"] = _function("on_max_tries", options["on_max_tries"])
    return JobDefinition(**checked)


def define_recurrent(handler: Handler, options: RecurrentOptions) -> JobDefinition:
    """Return the definition of a recurrent job.

    Raises:
        ConfigurationError: an option is unknown or wrong; it names the option and the remedy.
    """
    settings.known(options, _all_options(RecurrentOptions), of="a recurrent job")
    checked = _common(handler, options)
    checked["recurrence"] = _recurrence(options)
    checked["max_tries"] = None  # it comes back at its next tick, however often it failed
    checked["run_at_start"] = settings.truth("run_at_start", options.get("run_at_start", False))
    _needs_no_params(checked["name"], checked["params"])
    return JobDefinition(**checked)


def _common(handler: Handler, options: JobOptions) -> dict[str, Any]:
    if not callable(handler):
        raise ConfigurationError("handler", f"{handler!r} cannot be called", "Decorate a function")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError("handler", f"{handler!r} yields, so that a call runs none of it", "Use return")
    name = settings.job_name(options.get("name", getattr(handler, "__name__", "")))
    checked: dict[str, Any] = {"name": name, "handler": handler, "params": ParamsSchema(handler, job=name)}
    if "priority" in options:
        checked["priority"] = settings.priority(options["priority"])
    if "retry" in options:
        checked["retry"] = _retry(options["retry"])
    checked["lease"] = _optional(
        settings.duration, "lease", options.get("lease"), at_least=settings.MIN_LEASE, at_most=settings.A_CENTURY
    )
    checked["renew"] = _optional(settings.truth, "renew", options.get("renew"))
    checked["timeout"] = _optional(settings.duration, "timeout", options.get("timeout"), at_least=_SHORTEST_TIMEOUT)
    checked["max_parallel"] = _optional(settings.whole_number, "max_parallel", options.get("max_parallel"))
    checked["on_error"] = _function("on_error", options.get("on_error"))
    checked["on_stale"] = _function("on_stale", options.get("on_stale"))
    return checked


_SHORTEST_TIMEOUT = timedelta(milliseconds=1)


def _optional(check: Callable[..., Any], setting: str, value: Any, **bounds: Any) -> Any:
    return None if value is None else check(setting, value, **bounds)


def _function(setting: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigurationError(setting, f"{value!r} cannot be called", "Give a function or None")
    return value


def _retry(value: Any) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise ConfigurationError("retry", f"{value!r} is no RetryPolicy", "Use RetryPolicy.exponential(…) or .fixed(…)")
    return value


def _recurrence(options: RecurrentOptions) -> Recurrence:
    rules = [rule for rule in ("every", "cron", "next_run") if rule in options]
    if len(rules) != 1:
        raise ConfigurationError("every, cron, next_run", f"{len(rules)} of them were given", "Give exactly one")
    if "timezone" in options and "cron" not in options:
        raise ConfigurationError("timezone", "only a cron expression has one", "Leave it out, or use cron=")
    try:
        if "every" in options:
            return Every(settings.duration("every", options["every"]))
        if "cron" in options:
            return Cron(options["cron"], _zone(options.get("timezone", "UTC")))
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(rules[0], str(error), "Mend the rule") from error
    return NextRun(_next_run(options["next_run"]))


def _next_run(value: Any) -> Callable[[datetime], datetime]:
    if not callable(value) or is_async(value):
        raise ConfigurationError("next_run", f"{value!r} is no plain function", "Give one that returns a datetime")
    return cast("Callable[[datetime], datetime]", value)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ConfigurationError(
            "timezone", f"{name!r} is no time zone", "Use a name such as 'Europe/Berlin'"
        ) from error


def _needs_no_params(name: str, params: ParamsSchema) -> None:
    try:
        params.decode(None)
    except ValueError as error:
        raise ConfigurationError(name, f"a recurrent job has no params, and {error}", "Give defaults") from error


def _all_options(options: type) -> list[str]:
    return sorted(get_type_hints(options))
