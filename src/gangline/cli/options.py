"""Options that several commands share, and the environment variables behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gangline.jobs.errors import ConfigurationError

Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        envvar="GANGLINE_URI",
        metavar="URI",
        help="The MongoDB server and database, such as mongodb://localhost:27017/shop.",
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--prefix", envvar="GANGLINE_PREFIX", metavar="TEXT", help="In front of the names of the queue's collections."
    ),
]
Mongod = Annotated[
    str | None,
    typer.Option(
        "--mongod", envvar="GANGLINE_MONGOD", metavar="PATH", help="The mongod program to run as embedded server."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def prose(command: Callable[..., None]) -> str:
    """Return the help of ``command`` with a line a paragraph, so that it fits any terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))


def needed(uri: str | None) -> str:
    """Return ``uri``, or say how to give one.

    Raises:
        ConfigurationError: it was not given.
    """
    if not uri:
        raise ConfigurationError(
            "uri", "none was given", "Give --uri or set GANGLINE_URI; `gangline dev` starts a server to try it on"
        )
    return uri
