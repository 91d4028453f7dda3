"""What the commands print. Values come from a database and are shown as they are: never as markup, never as a control
sequence of the terminal."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gangline.jobs.durations import describe
from gangline.jobs.params import from_stored

_WIDE = 1_000
_NOW = timedelta(seconds=1)
_STEPS = (
    (timedelta(weeks=1), timedelta(days=1)),
    (timedelta(days=1), timedelta(hours=1)),
    (timedelta(hours=1), timedelta(minutes=1)),
    (timedelta(seconds=1), timedelta(seconds=1)),
    (timedelta(0), timedelta(milliseconds=1)),
)
"""From how long on a length of time is told in which steps."""


def console(*, err: bool = False) -> Console:
    """Return a console; one that writes to a file or a pipe cuts nothing off."""
    found = Console(stderr=err, highlight=False)
    return found if found.is_terminal else Console(stderr=err, highlight=False, width=_WIDE)


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document on standard output."""
    typer.echo(json.dumps(printable(value), indent=2, ensure_ascii=False))


def table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """Return an empty table; the columns in ``right`` hold numbers."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        found.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return found


def text(value: Any, style: str = "") -> Text:
    """Return ``value`` as text to print; what a terminal would obey is shown and not sent."""
    shown = "".join(part if part.isprintable() or part in "\n\t" else _escaped(part) for part in str(value))
    return Text(shown, style)


def moment(value: Any, now: datetime) -> str:
    """Return an instant as people tell it: ``in 5m`` or ``2h3m ago``."""
    if not isinstance(value, datetime):
        return "" if value is None else "beyond the year 9999"
    return f"in {_length(value - now)}" if value > now else _ago(now - value)


def printable(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: ISO instants, base64 bytes, and the text of what JSON has no form for."""
    return _plain(from_stored(value))


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case datetime():
            return value.astimezone(UTC).isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return str(value)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _ago(passed: timedelta) -> str:
    return "now" if passed < _NOW else f"{_length(passed)} ago"


def _length(length: timedelta) -> str:
    """Two units are enough for a person."""
    step = next(step for least, step in _STEPS if length >= least)
    return describe(length // step * step)
