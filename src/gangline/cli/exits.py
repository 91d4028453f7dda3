"""Exit codes, and how an error becomes one line and one of them."""

from __future__ import annotations

from enum import IntEnum

import typer

from gangline.devserver import DevServerError
from gangline.jobs.errors import ConfigurationError, GanglineError
from gangline.store.errors import StoreError, is_authentication_failure, summary


class ExitCode(IntEnum):
    """What a command tells its caller."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    UNFINISHED = 3


EXPECTED = (GanglineError, StoreError, DevServerError)


def ends_with(error: Exception) -> typer.Exit:
    """Say ``error`` in one line and return the exit that goes with it."""
    complain(_text(error))
    return typer.Exit(_code(error))


def complain(message: str) -> None:
    """Say ``message`` on standard error."""
    typer.secho("Error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(message, err=True)


def _text(error: Exception) -> str:
    return summary(error) if isinstance(error, StoreError) else str(error)


def _code(error: Exception) -> ExitCode:
    if isinstance(error, ConfigurationError) or (isinstance(error, StoreError) and is_authentication_failure(error)):
        return ExitCode.USAGE
    return ExitCode.ERROR
