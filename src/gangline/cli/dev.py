"""``gangline dev``: the embedded MongoDB server."""

from __future__ import annotations

import json
import shlex
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.exits import ExitCode, complain
from gangline.cli.options import Json, Mongod
from gangline.cli.output import console, text
from gangline.devserver import DevServer
from gangline.devserver.watchdog import LOG_NAME
from gangline.store.connection import DEFAULT_DATABASE

_LOOK_EVERY = 1.0  # seconds between two looks at the server


def dev(
    path: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Keep the data in this directory; without it they are deleted at the end."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port to listen on.", show_default="a free one")
    ] = None,
    mongod: Mongod = None,
    as_json: Json = False,
) -> None:
    """Run a MongoDB server on this machine until Ctrl-C.

    It is for development and tests only: one node, no access control, and often an old release. It runs as a replica
    set, and it is gone when this command is gone. With --json one line tells "uri", "pid" and "path".
    """
    asked_to_stop = _stop_signal()
    with DevServer(path=path, port=port, binary=mongod) as server:
        _announce(server, kept=path is not None, as_json=as_json)
        while server.running:
            if asked_to_stop.wait(_LOOK_EVERY):
                return
        complain(f"the server has ended by itself. Its log:\n{(server.path / LOG_NAME).read_text(errors='replace')}")
    raise typer.Exit(ExitCode.ERROR)


def _stop_signal() -> threading.Event:
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.set())
    return asked


def _announce(server: DevServer, *, kept: bool, as_json: bool) -> None:
    uri = server.uri_for(DEFAULT_DATABASE)
    if as_json:
        typer.echo(json.dumps({"uri": uri, "pid": server.pid, "path": str(server.path)}))
        return
    out = console()
    out.print("MongoDB is running, for development and tests only.\n", style="bold green")
    out.print(text(f"  URI    {uri}"), soft_wrap=True)
    out.print(text(f"  Data   {server.path}{'' if kept else ', deleted at the end'}\n"), soft_wrap=True)
    out.print("In another terminal:\n")
    out.print(text(f"  export GANGLINE_URI={shlex.quote(uri)}", "bold"), soft_wrap=True)
    out.print(text("  gangline worker your.module:app\n", "bold"))
    out.print("Ctrl-C stops it.")
