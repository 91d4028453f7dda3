"""From ``module:app`` to the app it names."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

import typer

from gangline.app import Gangline
from gangline.cli.exits import ExitCode, complain
from gangline.jobs.errors import ConfigurationError

_SETTING = "app"


def load_app(target: str) -> Gangline:
    """Import the app that ``target`` names, as ``module:attribute``; the current directory counts as well.

    Raises:
        ConfigurationError: it names no app.
        typer.Exit: importing the module failed; the trace was printed.
    """
    name, _, attribute = target.partition(":")
    if not attribute or not all(part.isidentifier() for part in [*name.split("."), attribute]):
        raise ConfigurationError(_SETTING, f"{target!r} is not module:attribute", "Write it like shop.jobs:app")
    module = _imported(name)
    try:
        app = getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(
            _SETTING, f"the module {name!r} has no {attribute!r}", _nearest(module, attribute)
        ) from None
    if not isinstance(app, Gangline):
        problem = f"{target!r} is a {type(app).__qualname__} and no Gangline app"
        raise ConfigurationError(_SETTING, problem, _nearest(module, attribute))
    return app


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise ConfigurationError(
            _SETTING, f"there is no module {error.name!r}", "Run this where it lies, or install its package"
        ) from None
    except (ConfigurationError, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> typer.Exit:
    typer.echo("".join(traceback.format_exception(type(error), error, _own_frames(error.__traceback__))), err=True)
    complain(f"the module {name!r} could not be imported: {type(error).__qualname__}: {error}")
    return typer.Exit(ExitCode.ERROR)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the imported module on."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(("gangline.cli", "importlib")):
        trace = trace.tb_next
    return trace


def _nearest(module: ModuleType, wanted: str) -> str:
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, Gangline))
    if not apps:
        return "Nor does it hold any app: write app = Gangline(…) there, or name another module"
    [near] = difflib.get_close_matches(wanted, apps, n=1) or [apps[0]]
    return f"Did you mean {module.__name__}:{near}?"
