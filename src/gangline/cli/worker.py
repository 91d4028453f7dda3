"""``gangline worker``: one process that runs the jobs of an app."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from gangline.app import Gangline
from gangline.cli.exits import ExitCode
from gangline.cli.loading import load_app
from gangline.cli.logs import Level, set_up_logging
from gangline.cli.options import Uri
from gangline.cli.processes import as_arguments, supervise
from gangline.cli.stopping import Stopping, leave_within
from gangline.jobs.durations import describe
from gangline.jobs.settings import WorkerOptions, WorkerSettings
from gangline.worker.loop import run

_DEFAULTS = WorkerSettings()
_EXIT_SECONDS = 5.0
_DURATIONS = ("poll_interval", "lease", "grace", "keep_history")


def _option(help_text: str, default: object) -> Any:
    """An option of the worker's own; not given, it is left to :class:`WorkerSettings`."""
    return typer.Option(help=help_text, show_default=str(default))


def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, such as shop.jobs:app.")],
    uri: Uri = None,
    concurrency: Annotated[int | None, _option("Jobs that run at once.", _DEFAULTS.concurrency)] = None,
    poll_interval: Annotated[
        str | None, _option("How often an idle worker looks.", describe(_DEFAULTS.poll_interval))
    ] = None,
    lease: Annotated[
        str | None, _option("How long a killed worker blocks its jobs at most.", describe(_DEFAULTS.lease))
    ] = None,
    renew: Annotated[bool | None, typer.Option("--renew/--no-renew", help="Renew leases while jobs run.")] = None,
    grace: Annotated[
        str | None, _option("How long running jobs may take to end after a signal.", describe(_DEFAULTS.grace))
    ] = None,
    keep_history: Annotated[
        str | None, _option("How long the history is kept; 0 writes none.", describe(_DEFAULTS.keep_history))
    ] = None,
    claim: Annotated[
        str | None, _option("The claim protocol: auto, sorted-update, find-and-modify or batch.", _DEFAULTS.claim)
    ] = None,
    max_batch: Annotated[
        int | None, _option("The most jobs taken from one partition in one go.", _DEFAULTS.max_batch)
    ] = None,
    change_stream: Annotated[
        bool | None,
        typer.Option("--change-stream/--no-change-stream", help="Let the server tell an idle worker of new jobs."),
    ] = None,
    log_level: Annotated[Level, typer.Option(help="From which severity on to log.")] = Level.INFO,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="How many worker processes to run; one that dies is replaced.")
    ] = 1,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
) -> None:
    """Run the jobs of an app until SIGTERM or SIGINT.

    Durations are seconds, or text such as 500ms, 90s or 1h30m. --uri takes precedence over the URI in the app. While
    the server is away the worker waits for it.

    The first signal ends claiming and lets running jobs end for the grace time; what is left then is handed back to
    other workers and no try is charged. The second signal hands back at once. The third ends the process as it is.
    With --processes signals go on to all of them, and each has --concurrency jobs of its own.

    Exit codes: 0 all jobs finished; 1 an error; 2 a wrong option, setting or app; 3 jobs were handed back unfinished.
    """
    options = {
        "concurrency": concurrency,
        "poll_interval": poll_interval,
        "lease": lease,
        "renew": renew,
        "grace": grace,
        "keep_history": keep_history,
        "claim": claim,
        "max_batch": max_batch,
        "change_stream": change_stream,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if processes > 1:
        set_up_logging(log_level, as_json=log_json)
        arguments = ["worker", app, *as_arguments({**given, "log_level": log_level.value})]
        environment = {"GANGLINE_URI": uri} if uri else {}  # an argument would be seen by all users of the host
        arguments += ["--log-json"] if log_json else []
        raise typer.Exit(asyncio.run(supervise(arguments, environment, processes)))
    loaded = load_app(app)
    set_up_logging(log_level, as_json=log_json)
    if uri:
        loaded.configure(uri=uri)
    raise typer.Exit(run(_work(loaded, _settings(given), _Parent(ends_with_it=until_stdin_closes, ready_fd=ready_fd))))


def _settings(given: dict[str, Any]) -> WorkerOptions:
    durations = {name: _duration(given[name]) for name in _DURATIONS if name in given}
    return cast("WorkerOptions", {**given, **durations})


def _duration(value: str) -> str | float:
    """A bare number is seconds."""
    try:
        return float(value)
    except ValueError:
        return value


@dataclass(frozen=True, kw_only=True)
class _Parent:
    """The process that started this one: whether it holds the standard input, and where it waits to hear "ready"."""

    ends_with_it: bool
    ready_fd: int | None

    def tell(self) -> None:
        if self.ready_fd is not None:
            os.write(self.ready_fd, b"\n")
            os.close(self.ready_fd)


async def _work(app: Gangline, options: WorkerOptions, parent: _Parent) -> ExitCode:
    async with app:
        worker = app.worker(**options)
        stopping = Stopping(worker)
        if parent.ends_with_it:
            stopping.when_stdin_closes()
        await worker.run(ready=parent.tell)
        stopping.tell()
    code = ExitCode.UNFINISHED if worker.handed_back else ExitCode.DONE
    leave_within(_EXIT_SECONDS, code)
    return code
