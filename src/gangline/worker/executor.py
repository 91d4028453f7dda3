"""One run of a claimed record: fit, check, call, classify. What it came to is a value; nothing here writes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gangline.jobs.context import Context
from gangline.jobs.definition import JobDefinition, is_async
from gangline.jobs.errors import Dismiss, JobTimeout, Retry
from gangline.jobs.outcome import (
    MAX_MESSAGE,
    Dismissed,
    Ending,
    Failed,
    Failure,
    Interrupted,
    OutOfTries,
    RetryAsked,
    Returned,
    Unfit,
    failure_of,
    storable_text,
)
from gangline.jobs.params import to_storable
from gangline.jobs.record import ClaimedRecord, JobType
from gangline.worker.threads import HandlerThreads

logger = logging.getLogger("gangline.executor")

# How long a handler may take to end after it was told to. A thread cannot be told, and some coroutines do not listen.
UNWIND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended.

    ``lingering`` is a handler that went on although its time was over; it keeps its slot until it ends, for it still
    uses a thread or the loop.
    """

    ending: Ending
    error: BaseException | None = None
    lingering: asyncio.Future[Any] | None = None


class Executor:
    """Runs handlers and their hooks."""

    def __init__(self, threads: HandlerThreads) -> None:
        self._threads = threads

    async def run(self, job: JobDefinition, context: Context) -> Run:
        """Run the handler for the record of ``context`` and tell how it ended. Raises nothing, whatever it does."""
        try:
            return await self._run(job, context)
        except asyncio.CancelledError:
            return Run(Interrupted())
        except BaseException as error:  # nothing that the user's code comes up with may leave the record locked
            return Run(_failed(error), error)

    async def _run(self, job: JobDefinition, context: Context) -> Run:
        unfit = _unfit(job, context.record)
        if unfit is not None:
            return Run(unfit)
        try:
            arguments = job.params.decode(context.record.params)
        except Exception as error:  # InvalidParams, or whatever a validator of the user's raises
            return await self._raised(job, context, context.record.params, error)
        run = await self._call(job, context, arguments)
        if run.error is None:
            return run
        raised = await self._raised(job, context, arguments, run.error)
        return Run(raised.ending, raised.error, run.lingering)

    async def tell_stale(self, job: JobDefinition, context: Context) -> None:
        """Call the job's ``on_stale`` hook, if it has one."""
        if job.on_stale is not None:
            await self._hook(context, "on_stale", job.on_stale, context.record.params)

    async def tell_dead(self, job: JobDefinition, context: Context, error: BaseException | None) -> None:
        """Call the job's ``on_max_tries`` hook, if it has one."""
        if job.on_max_tries is not None:
            await self._hook(context, "on_max_tries", job.on_max_tries, error, context.record.params)

    async def _call(self, job: JobDefinition, context: Context, arguments: dict[str, Any]) -> Run:
        positional = (context,) if job.params.takes_context else ()
        if job.timeout is not None or not job.is_async:
            return await self._call_apart(job, context, self._start(job, positional, arguments))
        try:
            return _returned(await job.handler(*positional, **arguments), job)
        except asyncio.CancelledError as error:
            return Run(Interrupted()) if context.holder.should_end else Run(_failed(error), error)
        except BaseException as error:  # SystemExit and KeyboardInterrupt end the job and not the worker
            return Run(_failed(error), error)

    async def _start(self, job: JobDefinition, positional: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        if job.is_async:
            return await job.handler(*positional, **arguments)
        return await self._in_thread(lambda: job.handler(*positional, **arguments))

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        result = await self._threads.run(function)
        # A wrapper around a coroutine function looks like a plain one, and would else be done before it began.
        return await result if inspect.isawaitable(result) else result

    async def _call_apart(self, job: JobDefinition, context: Context, call: Awaitable[Any]) -> Run:
        """Call in a task of its own, so that what outlives its timeout or its worker's grace can be left alone."""
        seconds = job.timeout.total_seconds() if job.timeout is not None else None
        task = asyncio.ensure_future(_guarded(call))
        try:
            await asyncio.wait({task}, timeout=seconds)
            if task.done():
                return _read(task, job)
            context.holder.ask_to_end()
            await _unwind(task, cancel=job.is_async)
        except asyncio.CancelledError:
            await _unwind(task, cancel=job.is_async)
            return _read_unless_cancelled(task, job)
        error = JobTimeout(f"ran longer than {seconds:g} s")
        return Run(_failed(error), error, lingering=_unless_done(task))

    async def _raised(self, job: JobDefinition, context: Context, params: Any, error: BaseException) -> Run:
        """Classify what was raised: an instruction of the handler's, or an error its hook may decide upon."""
        if not isinstance(error, Retry | Dismiss) and job.on_error is not None:
            decision = await self._hook(context, "on_error", job.on_error, error, params)
            if isinstance(decision, Retry | Dismiss):
                return Run(_instructed(decision, failure_of(error)), error)
        if isinstance(error, Retry | Dismiss):
            return Run(_instructed(error, failure_of(error)), error)
        return Run(_failed(error), error)

    async def _hook(self, context: Context, name: str, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a hook; one that raises is logged and decides nothing."""
        try:
            if is_async(hook):
                return await hook(*arguments, context)
            return await self._in_thread(lambda: hook(*arguments, context))
        except asyncio.CancelledError:
            if context.holder.should_end:
                raise
            return None
        except BaseException:
            logger.exception("%s of job %s raised", name, context.name, extra={"event": "hook_failed", "hook": name})
            return None


def _unfit(job: JobDefinition, record: ClaimedRecord) -> Ending | None:
    if record.type != job.type:
        text = f"the record is of type {record.type!r}, its definition is {job.type.value!r}; it was set aside"
        return Unfit(Failure("TypeMismatch", text))
    if record.type == JobType.EVENT and job.max_tries is not None and record.tries > job.max_tries:
        text = f"claimed {record.tries} times, {job.max_tries} allowed; the last execution died or lost its lease"
        return OutOfTries(Failure("OutOfTries", text))
    return None


def _instructed(instruction: Retry | Dismiss, failure: Failure) -> Ending:
    if isinstance(instruction, Dismiss):
        return Dismissed(storable_text(instruction.reason)[:MAX_MESSAGE])
    return RetryAsked(failure, wait=instruction.in_, at=instruction.at)


def _returned(value: Any, job: JobDefinition) -> Run:
    try:
        return Run(Returned(None if value is None else to_storable(value)))
    except Exception as error:  # a value may refuse in ways of its own
        # The work is done: running it again for the sake of its result would be worse.
        logger.warning("the result of job %s is not kept: %s", job.name, error, extra={"event": "result_refused"})
        return Run(Returned({"notKept": failure_of(error).message[:500]}))


def _failed(error: BaseException) -> Failed:
    return Failed(failure_of(error))


async def _guarded(call: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await call, None
    except BaseException as error:  # a task hands SystemExit to the loop, which ends the worker
        return None, error


def _read(task: asyncio.Future[tuple[Any, BaseException | None]], job: JobDefinition) -> Run:
    value, error = task.result()
    return _returned(value, job) if error is None else Run(_failed(error), error)


def _read_unless_cancelled(task: asyncio.Future[tuple[Any, BaseException | None]], job: JobDefinition) -> Run:
    """What the handler of a stopping worker came to, if it still came to an end of its own."""
    if task.done() and not isinstance(task.result()[1], asyncio.CancelledError):
        return _read(task, job)
    return Run(Interrupted(), lingering=_unless_done(task))


async def _unwind(task: asyncio.Future[Any], *, cancel: bool) -> None:
    # A thread cannot be cancelled, only the waiting for it; it may look at `Context.should_end`.
    if cancel:
        task.cancel()
    await asyncio.wait({task}, timeout=UNWIND_SECONDS)


def _unless_done(task: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
    return None if task.done() else task
