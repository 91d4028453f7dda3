"""The root command: its groups, its options, and the one place where errors become messages and exit codes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gangline.cli.bench import bench
from gangline.cli.demo import demo
from gangline.cli.dev import dev
from gangline.cli.doctor import doctor
from gangline.cli.exits import EXPECTED, ends_with
from gangline.cli.indexes import indexes
from gangline.cli.jobs import jobs
from gangline.cli.options import prose
from gangline.cli.stats import stats
from gangline.cli.worker import worker


class _Root(TyperGroup):
    """Tells errors that a user can mend in one line; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EXPECTED as error:
            raise ends_with(error) from error


cli = typer.Typer(
    cls=_Root,
    name="gangline",
    help="Background jobs from MongoDB: many workers, many hosts, one owner per job.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables, and with them what jobs carry
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (dev, worker, stats, doctor, demo):
    cli.command(help=prose(command))(command)
cli.add_typer(jobs)
cli.add_typer(indexes)
cli.add_typer(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gangline {version('gangline')}")
        raise typer.Exit


@cli.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Background jobs from MongoDB: many workers, many hosts, one owner per job."""


def main() -> None:
    """Run the command line."""
    cli()
