"""What the benchmarks print, write and draw."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer

from gangline.bench.report import Row
from gangline.cli.exits import ExitCode, complain
from gangline.cli.output import console, table, text
from gangline.jobs.errors import ConfigurationError

Fields = dict[str, Any]


def conclude(benchmark: str, rows: Sequence[Row], server: Fields, *, file: Path | None) -> None:
    """Print the table, write the JSON file, and exit with an error if a check of some row failed."""
    if file is not None:
        _write(file, {"benchmark": benchmark, "server": server, "machine": _machine(), "rows": list(map(fields, rows))})
    for _, alike in itertools.groupby(rows, key=type):
        print_rows(list(alike))
    failed = [problem for row in rows for problem in row.problems]
    if failed:
        complain("the results are wrong: " + "; ".join(failed))
        raise typer.Exit(ExitCode.ERROR)


def fields(row: Row) -> Fields:
    """Return a row as programs read it."""
    figures = {name: _rounded(value) for name, value in dataclasses.asdict(row).items() if name != "problems"}
    return {**figures, "verified": row.verified, "problems": list(row.problems)}


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table: a column for each figure in which the rows differ; what they share stands above it."""
    names = [field.name for field in dataclasses.fields(rows[0]) if field.name != "problems"]
    shared = [name for name in names if len(rows) > 1 and len({_cell(getattr(row, name)) for row in rows}) == 1]
    differing = [name for name in names if name not in shared]
    numbers = frozenset(_title(name) for name in differing if not isinstance(getattr(rows[0], name), str))
    shown = table(*map(_title, differing), "", right=numbers)
    for row in rows:
        cells = [text(_cell(getattr(row, name))) for name in differing]
        shown.add_row(*cells, text("✓", "green") if row.verified else text("✗", "bold red"))
    out = console()
    if shared:
        out.print(text(", ".join(f"{_title(name)} {_cell(getattr(rows[0], name))}" for name in shared), "dim"))
    out.print(shown)


def _write(file: Path, document: Fields) -> None:
    try:
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError("json", f"{file} cannot be written ({error})", "Name another file") from error


def _machine() -> Fields:
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "gangline": version("gangline"),
        "pymongo": version("pymongo"),
    }


def _title(name: str) -> str:
    return name.replace("_", " ")


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _cell(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
        case int():
            return f"{value:,}"
        case list() | tuple():
            return " ".join(map(_cell, value))
        case _:
            return str(value)
