"""``gangline doctor``: what is wrong with a queue, and what helps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gangline.app import Gangline
from gangline.cli.connected import at
from gangline.cli.loading import load_app
from gangline.cli.options import Json, Prefix, Uri, needed
from gangline.cli.output import console, print_json, text
from gangline.jobs.settings import MAX_PARTITIONS, collection_prefix
from gangline.store.connection import Address
from gangline.store.diagnosis import Check, Expected, Status, examine
from gangline.store.schema import DEFAULT_PREFIX

_CODES = {Status.OK: 0, Status.WARNING: 1, Status.BROKEN: 2}
_MARKS = {Status.OK: ("✓", "green"), Status.WARNING: ("!", "bold yellow"), Status.BROKEN: ("✗", "bold red")}


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]", help="An app whose jobs and partitions are expected; its queue is used."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_PARTITIONS, help="How many are expected.", show_default="as the workers run with"),
    ] = None,
    uri: Uri = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Json = False,
) -> None:
    """Examine the queue: the server, the workers, the indexes, the way of a claim, and the records.

    Nothing is changed, and every read is bounded, so that it may run on a busy queue of any size. With an app, its
    prefix is used instead of --prefix, and its URI unless --uri is given.

    Exit codes: 0 all is well; 1 there are warnings; 2 something is broken, or an option is wrong.
    """
    loaded = load_app(app) if app is not None else None
    expected = _expected(loaded, partitions)
    checks = at(_address(loaded, uri, prefix), lambda connection: examine(connection, expected))
    if as_json:
        print_json({"status": _worst(checks), "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        console().print(_page(checks))
    raise typer.Exit(_CODES[_worst(checks)])


def _expected(app: Gangline | None, partitions: int | None) -> Expected:
    if app is None:
        return Expected(partitions=partitions)
    jobs = {name: job.type.value for name, job in app.jobs.items()}
    return Expected(partitions=partitions or app.partitions, jobs=jobs)


def _address(app: Gangline | None, uri: str | None, prefix: str) -> Address:
    if app is not None and uri:
        app.configure(uri=uri)
    if app is not None and app.address is not None:
        return app.address
    return Address.parse(needed(uri), prefix=collection_prefix(prefix))


def _worst(checks: Sequence[Check]) -> Status:
    return max((check.status for check in checks), key=lambda status: _CODES[status])


def _page(checks: Sequence[Check]) -> Table:
    page = Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        mark, style = _MARKS[check.status]
        said = text(check.detail)
        if check.remedy:
            said.append_text(text(f"\n→ {check.remedy}", "dim"))
        page.add_row(Text(mark, style), text(check.name, "bold"), said)
    return page
