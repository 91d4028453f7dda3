"""``gangline indexes``: what is needed and what is there, making it, and dropping what the Node side left."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from gangline.cli.connected import connected
from gangline.cli.exits import ExitCode, complain
from gangline.cli.options import Json, Prefix, Uri
from gangline.cli.output import console, moment, print_json, table, text
from gangline.jobs.durations import describe
from gangline.jobs.settings import duration
from gangline.store.connection import Connection
from gangline.store.indexes import IndexState, IndexStatus, index_status, make_indexes
from gangline.store.legacy_indexes import LegacyWatch
from gangline.store.schema import DEFAULT_PREFIX

indexes = typer.Typer(name="indexes", help="Look after the queue's indexes.", no_args_is_help=True)

_STYLES = {IndexState.PRESENT: "green", IndexState.MISSING: "red", IndexState.DIFFERING: "red"}
_LOOK_EVERY = 1.0  # seconds between two looks at what is to be dropped
_KIB = 1024


@indexes.command("status")
def show_indexes(uri: Uri = None, prefix: Prefix = DEFAULT_PREFIX, as_json: Json = False) -> None:
    """Show each index that is needed, and what else is there, with its size and use.

    States: present; missing; differing, by keys or options or name; legacy, which the Node side claims over; foreign.
    """

    async def look(connection: Connection) -> tuple[list[IndexStatus], datetime]:
        await connection.ensure_server_time()
        return await index_status(connection), connection.clock.now()

    found, now = connected(uri, prefix, look)
    if as_json:
        print_json({"indexes": [_fields(index) for index in found]})
    else:
        _print_status(found, now)


@indexes.command("ensure")
def ensure(uri: Uri = None, prefix: Prefix = DEFAULT_PREFIX, as_json: Json = False) -> None:
    """Make the indexes that are missing. Many may do so at once; a worker does it at its start.

    An index that differs from what is needed is not touched. Exit codes: 0 all is as needed; 1 something differs.
    """

    async def make(connection: Connection) -> tuple[list[str], list[IndexStatus]]:
        return await make_indexes(connection), await index_status(connection)

    made, found = connected(uri, prefix, make)
    wrong = [index for index in found if index.state in (IndexState.MISSING, IndexState.DIFFERING)]
    if as_json:
        print_json({"made": made, "wrong": [_fields(index) for index in wrong]})
    else:
        console().print(text(f"Made: {', '.join(made)}." if made else "Nothing is missing."))
    for index in wrong:
        complain(f"{index.name} of {index.collection} is {index.note or index.state}. {index.remedy}")
    if wrong:
        raise typer.Exit(ExitCode.ERROR)


@indexes.command("drop-legacy")
def drop_legacy(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these.", show_default="all legacy ones")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Drop them, if it is safe.")] = False,
    observe: Annotated[str, typer.Option(metavar="DURATION", help="How long to watch whether they are in use.")] = "1m",
    uri: Uri = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Json = False,
) -> None:
    """Drop the plain indexes that only Node workers claim over; without --yes, show which and whether it is safe.

    They are watched for a while first, and nothing is dropped if one of them was used meanwhile, if a record without
    a partition is seen, or if a job runs under a lease that is not Gangline's. A Node worker that is busy with long
    jobs, or stopped, uses no index: watch for longer than its longest job, or be sure that it is gone.

    Exit codes: 0 dropped, or safe to drop, or nothing to drop; 1 it is not safe.
    """
    window = duration("observe", observe)

    async def watch(connection: Connection) -> tuple[LegacyWatch, list[str]]:
        await connection.ensure_server_time()
        watch = await _watched(connection, names or (), window)
        return watch, await watch.drop() if yes and not watch.reasons() else []

    watch_result, dropped = connected(uri, prefix, watch)
    _tell(watch_result, dropped, window, as_json=as_json)


async def _watched(connection: Connection, names: Sequence[str], window: timedelta) -> LegacyWatch:
    watch = LegacyWatch(connection, names)
    await watch.look()
    if not watch.indexes:
        return watch
    left = window.total_seconds()
    while left > 0 and not watch.reasons():
        pause = min(left, _LOOK_EVERY)
        await asyncio.sleep(pause)
        left -= pause
        await watch.look()
    return watch


def _tell(watch: LegacyWatch, dropped: Sequence[str], window: timedelta, *, as_json: bool) -> None:
    found, reasons = watch.indexes, watch.reasons() if watch.indexes else []
    if as_json:
        fields = {"indexes": [_fields(index) for index in found], "reasons": reasons, "dropped": dropped}
        print_json({**fields, "observed_seconds": window.total_seconds()})
    elif not found:
        console().print("There is no such legacy index.")
    else:
        _print_verdict(found, reasons, dropped, window)
    if reasons:
        complain("; ".join(["they are not dropped", *reasons]))
        raise typer.Exit(ExitCode.ERROR)


def _print_verdict(
    found: Sequence[IndexStatus], reasons: Sequence[str], dropped: Sequence[str], window: timedelta
) -> None:
    out = console()
    if dropped:
        out.print(text(f"Dropped: {', '.join(dropped)}."))
        return
    rows = table("Legacy index", "Keys", "For", "Size", right=frozenset({"Size"}))
    for index in found:
        rows.add_row(text(index.name), text(_keys(index)), text(index.note.removeprefix("for ")), _size(index.size))
    out.print(rows)
    if not reasons:
        out.print(
            f"Safe to drop: no use within {describe(window)}, no record without a partition, no lease of a Node "
            "worker's. Gangline claims over indexes of its own. --yes drops them."
        )


def _print_status(found: Iterable[IndexStatus], now: datetime) -> None:
    rows = table("Collection", "Index", "Keys", "State", "Size", "Uses", "Since", "Note", right=frozenset({"Size"}))
    for index in found:
        uses = ("", "") if index.use is None else (f"{index.use.ops:,}", moment(index.use.since, now))
        state = text(index.state, _STYLES.get(index.state, ""))
        note = ". ".join(part for part in (index.note, index.remedy) if part)
        rows.add_row(
            text(index.collection), text(index.name), text(_keys(index)), state, _size(index.size), *uses, note
        )
    console().print(rows)


def _keys(index: IndexStatus) -> str:
    return ", ".join(name if direction == 1 else f"{name} {direction}" for name, direction in index.keys)


def _size(size: int | None) -> Text:
    return text("" if size is None else f"{size / _KIB:,.0f} KiB")


def _fields(index: IndexStatus) -> dict[str, Any]:
    return {**dataclasses.asdict(index), "keys": dict(index.keys)}
