"""``gangline bench``: measure every number that the documentation tells, on any server."""

from __future__ import annotations

import typer

from gangline.cli.bench.claims import claims
from gangline.cli.bench.growth import growth
from gangline.cli.bench.idle import idle
from gangline.cli.bench.latency import latency
from gangline.cli.bench.priority import priority
from gangline.cli.bench.throughput import throughput
from gangline.cli.options import prose

bench = typer.Typer(
    name="bench",
    help="Measure what the documentation tells: on an embedded MongoDB, or at --uri in a database of its own.",
    no_args_is_help=True,
)
for command in (claims, throughput, latency, idle, growth, priority):
    bench.command(help=prose(command))(command)
