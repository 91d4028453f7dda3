"""What a decorated function becomes: callable as it was, and able to schedule itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from typing_extensions import Unpack

from gangline.jobs.context import Context
from gangline.jobs.definition import JobDefinition
from gangline.jobs.scheduling import JobCall, Scheduled, ScheduleOptions

Direct = ParamSpec("Direct")
Params = ParamSpec("Params")
Result_co = TypeVar("Result_co", covariant=True)
Result = TypeVar("Result")

Enqueue = Callable[[JobCall], Awaitable[Scheduled]]


class EventJob(Generic[Direct, Params, Result_co]):
    """An event job. Calling it runs the function here and now, as if it had never been decorated."""

    def __init__(self, function: Callable[Direct, Result_co], definition: JobDefinition, enqueue: Enqueue) -> None:
        # Its attributes stay its own: one named like a method of this class would hide the method.
        functools.update_wrapper(self, function, updated=())
        self.definition = definition
        self._function = function
        self._enqueue = enqueue

    def __call__(self, /, *args: Direct.args, **kwargs: Direct.kwargs) -> Result_co:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    async def schedule(self, /, *args: Params.args, **kwargs: Params.kwargs) -> Scheduled:
        """Schedule a run with these arguments, as soon as a worker is free.

        Raises:
            InvalidParams: the arguments do not fit the function, or would not survive storage.
            RecordTooLarge: the record would exceed 16 MiB.
        """
        return await self._enqueue(self.call(*args, **kwargs))

    def call(self, /, *args: Params.args, **kwargs: Params.kwargs) -> JobCall:
        """Return the job with these arguments, for :meth:`Gangline.schedule_many`."""
        return self.options().call(*args, **kwargs)

    def options(self, **options: Unpack[ScheduleOptions]) -> JobWithOptions[Params]:
        """Return this job with options for scheduling; see :class:`JobCall` for their meanings.

        >>> await job.options(run_in="5m", unique="welcome:42").schedule(to="a@example.org")    # doctest: +SKIP

        Raises:
            ConfigurationError: an option is unknown or wrong.
        """
        return JobWithOptions(self.definition, options, self._enqueue)

    def __repr__(self) -> str:
        return f"<event job {self.definition.name!r}>"


class JobWithOptions(Generic[Params]):
    """An event job together with options for scheduling it."""

    def __init__(self, definition: JobDefinition, options: ScheduleOptions, enqueue: Enqueue) -> None:
        self._definition = definition
        self._template = JobCall.checked(definition.name, dict, options, priority=definition.priority)
        self._enqueue = enqueue

    async def schedule(self, /, *args: Params.args, **kwargs: Params.kwargs) -> Scheduled:
        """Schedule a run with these arguments and the options.

        Raises:
            InvalidParams: the arguments do not fit the function, or would not survive storage.
            RecordTooLarge: the record would exceed 16 MiB.
            AlreadyScheduled: the unique identifier is taken and ``on_conflict`` is ``raise``.
        """
        return await self._enqueue(self.call(*args, **kwargs))

    def call(self, /, *args: Params.args, **kwargs: Params.kwargs) -> JobCall:
        """Return the job with these arguments and the options, for :meth:`Gangline.schedule_many`."""
        params = functools.partial(self._definition.params.encode_call, args, kwargs)
        return dataclasses.replace(self._template, params=params)


class RecurrentJob(Generic[Direct, Result_co]):
    """A recurrent job. Calling it runs the function here and now."""

    def __init__(self, function: Callable[Direct, Result_co], definition: JobDefinition) -> None:
        # Its attributes stay its own: one named like a method of this class would hide the method.
        functools.update_wrapper(self, function, updated=())
        self.definition = definition
        self._function = function

    def __call__(self, /, *args: Direct.args, **kwargs: Direct.kwargs) -> Result_co:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<recurrent job {self.definition.name!r}>"


class EventDecorator(Protocol):
    """Turns a function into an event job, with and without a leading :class:`Context`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Params], Result]
    ) -> EventJob[Concatenate[Context, Params], Params, Result]: ...

    @overload
    def __call__(self, function: Callable[Params, Result]) -> EventJob[Params, Params, Result]: ...


class RecurrentDecorator(Protocol):
    """Turns a function into a recurrent job."""

    def __call__(self, function: Callable[Params, Result]) -> RecurrentJob[Params, Result]: ...
