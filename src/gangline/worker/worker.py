"""A worker: connects, puts its services together, runs them, and stops them in order."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence

from gangline.jobs.definition import JobDefinition
from gangline.jobs.errors import ConfigurationError
from gangline.jobs.settings import WorkerSettings
from gangline.store.capabilities import Capabilities
from gangline.store.claims.hints import AcquisitionIndexes
from gangline.store.claims.select import select_protocol
from gangline.store.connection import Connection
from gangline.store.errors import StoreError, is_authentication_failure, is_transient
from gangline.store.indexes import ensure_indexes, has_lock_id_index
from gangline.store.recurrent import RecurrentRecords
from gangline.worker.backoff import Backoff
from gangline.worker.executions import RunningExecution
from gangline.worker.services import Blueprint, Services

logger = logging.getLogger("gangline.worker")


class Worker:
    """Runs the jobs of an app in this process; made by :meth:`Gangline.worker`.

    >>> worker = app.worker(concurrency=32)         # doctest: +SKIP
    >>> await worker.run()                          # doctest: +SKIP
    """

    def __init__(
        self, connection: Connection, jobs: Mapping[str, JobDefinition], settings: WorkerSettings, *, partitions: int
    ) -> None:
        """Raises :class:`ConfigurationError` if there is no job to run."""
        if not jobs:
            raise ConfigurationError("jobs", "the app defines none", "Decorate a function with @app.event(…)")
        self.settings = settings
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._connection = connection
        self._jobs = dict(jobs)
        self._partitions = partitions
        self._random = random.Random()
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._services: Services | None = None

    async def run(self, *, ready: Callable[[], None] = lambda: None) -> None:
        """Start, and run until :meth:`stop` is called; then stop in order.

        Args:
            ready: called once the worker claims jobs.

        Raises:
            ServerUnsuitable: the server is too old.
            ConfigurationError: the server cannot do what the settings ask for, or refuses the credentials.
        """
        await self.start()
        services = self._services
        if services is None:
            return  # stopped before it started
        ready()
        stop_asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait({stop_asked, services.acquiring}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop_asked.cancel()
            await asyncio.shield(asyncio.ensure_future(self.stop()))
        if services.acquiring.done() and not services.acquiring.cancelled():
            services.acquiring.result()

    async def start(self) -> None:
        """Connect and start to acquire. While the server is away it is asked again until it answers.

        Does nothing more once :meth:`stop` is called.
        """
        prepared = asyncio.ensure_future(self._prepare())
        stop_asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait({prepared, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stop_asked.is_set():
                self._services = prepared.result()
                self._services.start()
        finally:
            for task in (prepared, stop_asked):
                task.cancel()
            await asyncio.gather(prepared, stop_asked, return_exceptions=True)

    async def stop(self) -> None:
        """Stop claiming, let running jobs end for the grace time, then hand the rest back. Returns when all is done."""
        if self._stopping is None:
            self._stop_asked.set()
            self._stopping = asyncio.create_task(self._stop_services(), name="gangline-stop")
        await asyncio.shield(self._stopping)  # one that gives up waiting must not leave a worker stopped by half

    def hurry(self) -> None:
        """End the grace time of a stop that is under way: running jobs are handed back now."""
        self._hurry.set()

    def wake(self, name: str) -> None:
        """Look for jobs at once: one of ``name`` was scheduled in this process."""
        if self._services is not None and name in self._jobs:
            self._services.scheduler.wake()

    @property
    def running_executions(self) -> Sequence[RunningExecution]:
        """The executions whose handlers run now."""
        return self._services.executions.running if self._services is not None else ()

    @property
    def handed_back(self) -> int:
        """How many jobs were handed back unfinished when the worker stopped."""
        return self._services.executions.handed_back if self._services is not None else 0

    async def _stop_services(self) -> None:
        if self._services is not None:
            await self._services.stop(self.settings.grace.total_seconds(), self._hurry)

    async def _prepare(self) -> Services:
        backoff = Backoff(self._random)
        while True:
            try:
                return await self._prepare_once()
            except StoreError as error:
                if is_authentication_failure(error):
                    raise ConfigurationError(
                        "uri", f"the server refused it ({error})", "Mend the credentials"
                    ) from error
                if not is_transient(error):
                    raise
                if backoff.fresh:
                    logger.warning("the server does not answer yet: %s", error, extra={"event": "start_delayed"})
                await asyncio.sleep(backoff.next())

    async def _prepare_once(self) -> Services:
        capabilities = await self._connection.capabilities()
        await ensure_indexes(self._connection)
        await RecurrentRecords(self._connection, self._partitions).register(self._jobs.values())
        return await self._assemble(capabilities)

    async def _assemble(self, capabilities: Capabilities) -> Services:
        indexes = AcquisitionIndexes(self._connection.records)
        protocol = select_protocol(
            self.settings.claim,
            self._connection.records,
            capabilities,
            lock_id_index=await has_lock_id_index(self._connection),
            hint=indexes.hint,
        )
        logger.info(
            "worker %s runs %d jobs on %s; claims by %s",
            self.name,
            len(self._jobs),
            f"wire version {capabilities.wire_version}",
            protocol.name,
            extra={"event": "worker_started", "claim_protocol": protocol.name},
        )
        return Services(
            Blueprint(
                worker=self.name,
                connection=self._connection,
                jobs=self._jobs,
                settings=self.settings,
                protocol=protocol,
                indexes=indexes,
                partitions=self._partitions,
                rng=self._random,
            )
        )
