"""The app: it owns the jobs of a program, schedules them, and puts the rooms together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self, cast

from typing_extensions import Unpack

from gangline.handles import EventDecorator, EventJob, RecurrentDecorator, RecurrentJob
from gangline.jobs.definition import EventOptions, JobDefinition, RecurrentOptions, define_event, define_recurrent
from gangline.jobs.errors import ConfigurationError, InvalidParams
from gangline.jobs.params import to_storable
from gangline.jobs.record import DEFAULT_PRIORITY
from gangline.jobs.scheduling import JobCall, Scheduled, ScheduleOptions
from gangline.jobs.settings import (
    MAX_PARTITIONS,
    WorkerOptions,
    WorkerSettings,
    collection_prefix,
    job_name,
    whole_number,
)
from gangline.store.connection import Address, Connection
from gangline.store.enqueue import Enqueuer
from gangline.store.insights import Insights
from gangline.store.schema import DEFAULT_PREFIX
from gangline.worker.worker import Worker


class Gangline:
    """A queue of background jobs in a MongoDB database, and the jobs that this program defines.

    >>> app = Gangline("mongodb://localhost:27017/shop", partitions=16)      # doctest: +SKIP
    """

    def __init__(self, uri: str | None = None, *, partitions: int = 16, prefix: str = DEFAULT_PREFIX) -> None:
        """Nothing is opened yet.

        Args:
            uri: of the server and the database; the command line's ``--uri`` can give it too, see :meth:`configure`.
            partitions: over how many regions claims are spread, 1 to 1024; the same in all programs of a queue.
            prefix: in front of the collections' names; ``orionjs.jobs_dogs_`` joins a Node queue.

        Raises:
            ConfigurationError: a value is out of bounds, or the URI cannot be read.
        """
        self.partitions = whole_number("partitions", partitions, at_most=MAX_PARTITIONS)
        self._prefix = collection_prefix(prefix)
        self._address = Address.parse(uri, prefix=prefix) if uri is not None else None
        self._jobs: dict[str, JobDefinition] = {}
        self._connection: Connection | None = None
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    def configure(self, *, uri: str) -> None:
        """Use the queue at ``uri``; only before anything was scheduled and before a worker was made.

        Raises:
            ConfigurationError: the URI cannot be read, or a connection is open already.
        """
        if self._connection is not None:
            raise ConfigurationError("uri", "a connection is open already", "Configure the app before it is used")
        self._address = Address.parse(uri, prefix=self._prefix)

    @property
    def address(self) -> Address | None:
        """Where the queue is, if a URI was given."""
        return self._address

    @property
    def jobs(self) -> Mapping[str, JobDefinition]:
        """The jobs that this program defines, by name."""
        return MappingProxyType(self._jobs)

    @property
    def insights(self) -> Insights:
        """Questions about the queue: counts, records, executions."""
        return Insights(self._connected())

    # Defining jobs

    def event(self, **options: Unpack[EventOptions]) -> EventDecorator:
        """Decorate a function that runs whenever it is scheduled; see :class:`JobDefinition` for the options.

        >>> @app.event(max_tries=5)                                           # doctest: +SKIP
        ... async def send_welcome_email(ctx: Context, to: str) -> None: ...

        Raises:
            ConfigurationError: an option is wrong, the parameters cannot be a document, or the name is taken.
        """

        def decorate(function: Callable[..., Any]) -> EventJob[..., ..., Any]:
            return EventJob(function, self._add(define_event(function, options)), self._schedule_one)

        return cast("EventDecorator", decorate)

    def recurrent(self, **options: Unpack[RecurrentOptions]) -> RecurrentDecorator:
        """Decorate a function that runs for ever, by ``every``, ``cron`` (with ``timezone``) or ``next_run``.

        >>> @app.recurrent(cron="0 3 * * *", timezone="America/Santiago")     # doctest: +SKIP
        ... def clean_up() -> None: ...

        Raises:
            ConfigurationError: an option or the rule is wrong, a parameter has no default, or the name is taken.
        """

        def decorate(function: Callable[..., Any]) -> RecurrentJob[..., Any]:
            return RecurrentJob(function, self._add(define_recurrent(function, options)))

        return cast("RecurrentDecorator", decorate)

    # Scheduling

    async def schedule_many(self, calls: Iterable[JobCall]) -> list[Scheduled]:
        """Schedule many jobs in one go and return an outcome for each, in their order.

        >>> await app.schedule_many([job.call(to=to) for to in people])       # doctest: +SKIP

        A job that is refused has status ``refused`` and its error in the outcome; the others are scheduled.

        Raises:
            ConfigurationError: one of ``calls`` is none.
            pymongo.errors.PyMongoError: the server could not be asked; some of the jobs may have been accepted.
        """
        connection = self._connected()
        await connection.ensure_server_time()
        wanted = [_checked(call) for call in calls]
        outcomes = await Enqueuer(connection, self.partitions).schedule(wanted)
        self._wake_workers({call.name for call in wanted})
        return outcomes

    async def schedule_by_name(self, name: str, params: Any = None, **options: Unpack[ScheduleOptions]) -> Scheduled:
        """Schedule a job that another program may define. If this one does, ``params`` are checked by it.

        Raises:
            ConfigurationError: an option or the name is wrong.
            InvalidParams: the params cannot be stored, or do not fit the job of this program.
            RecordTooLarge: the record would exceed 16 MiB.
            AlreadyScheduled: the unique identifier is taken and ``on_conflict`` is ``raise``.
        """
        job = self._jobs.get(job_name(name))
        priority = DEFAULT_PRIORITY if job is None else job.priority
        call = JobCall.checked(name, lambda: _document(name, job, params), options, priority=priority)
        return await self._schedule_one(call)

    async def _schedule_one(self, call: JobCall) -> Scheduled:
        [outcome] = await self.schedule_many([call])
        if outcome.error is not None:
            raise outcome.error
        return outcome

    # Running

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Return a worker for the jobs of this app; see :class:`WorkerSettings` for the options.

        Raises:
            ConfigurationError: an option is wrong, the app has no jobs, or no URI was given.
        """
        worker = Worker(self._connected(), self._jobs, WorkerSettings.checked(options), partitions=self.partitions)
        self._workers.add(worker)
        return worker

    async def close(self) -> None:
        """Close the connection. Stop the workers first."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> Self:
        """Return the app; leaving the block closes it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    def _add(self, job: JobDefinition) -> JobDefinition:
        if job.name in self._jobs:
            raise ConfigurationError("name", f"the app has a job {job.name!r} already", "Give one of them another name")
        self._jobs[job.name] = job
        return job

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.loop_ended:
            if self._address is None:
                raise ConfigurationError(
                    "uri",
                    "none was given",
                    "Write Gangline('mongodb://host:27017/database'), or give the command line --uri or GANGLINE_URI; "
                    "`gangline dev` starts a server to try it on",
                )
            self._connection = Connection(self._address)
        return self._connection

    def _wake_workers(self, names: set[str]) -> None:
        for worker in self._workers:
            for name in names:
                worker.wake(name)


def _checked(call: JobCall) -> JobCall:
    if not isinstance(call, JobCall):
        raise ConfigurationError("calls", f"a {type(call).__qualname__} is no call of a job", "Give job.call(…)")
    return call


def _document(name: str, job: JobDefinition | None, params: Any) -> Any:
    if job is not None:
        return job.params.encode_document(params)
    try:
        return to_storable(params)
    except ValueError as error:
        raise InvalidParams(f"job {name!r}: {error}") from error
