"""``gangline demo``: see it work."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.demo_display import print_report, report_fields
from gangline.cli.exits import ExitCode, complain
from gangline.cli.options import Json, Mongod, Uri
from gangline.cli.output import print_json
from gangline.cli.own_database import own_database
from gangline.cli.progress import shown_progress
from gangline.demo.files import INSTALLED, Files, find_files, standard_library
from gangline.demo.fleet import WorkerEnded
from gangline.demo.run import Report, run_demo
from gangline.jobs.errors import ConfigurationError

_WORKER = ["-P", "-m", "gangline.cli", "worker", "gangline.demo.app:app"]
_WORKER_OPTIONS = ["--until-stdin-closes", "--log-level=warning", "--concurrency=64", "--grace=1s"]


def demo(
    path: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Whose files to process.", show_default="the standard library"),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")] = 2,
    uri: Uri = None,
    mongod: Mongod = None,
    as_json: Json = False,
) -> None:
    """Process the files of a directory by jobs, and check that each was processed once and rightly.

    One job per file computes its SHA-256 and size, in worker processes, on a MongoDB that is started for it or at
    --uri, in a database of its own that is dropped afterwards. The results in the history are compared with those of
    a plain loop. Exit codes: 0 all is right; 1 a file is missing, doubled or different, or a worker ended by itself.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    files = _files(path)
    with own_database("demo", uri, mongod) as database:
        report = _run(files, database, processes, quiet=as_json)
    if as_json:
        print_json(report_fields(report))
    else:
        print_report(report)
    if not report.right:
        raise typer.Exit(ExitCode.ERROR)


def _files(path: Path | None) -> Files:
    files = find_files(standard_library(), without=INSTALLED) if path is None else find_files(path)
    if not files.stamps:
        raise ConfigurationError("path", f"no file in {path} can be read", "Name another directory")
    return files


def _run(files: Files, uri: str, processes: int, *, quiet: bool) -> Report:
    try:
        with shown_progress(quiet=quiet) as progress:
            return run_demo(
                files,
                uri=uri,
                command=[sys.executable, *_WORKER, *_WORKER_OPTIONS],
                environment={**os.environ, "GANGLINE_URI": uri},  # not an argument, which everybody could read
                processes=processes,
                progress=progress,
            )
    except WorkerEnded as error:
        complain(str(error))
        raise typer.Exit(ExitCode.ERROR) from error
