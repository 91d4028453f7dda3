"""``gangline bench latency``."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from gangline.bench.latency import SCENES, Wait, check, measure
from gangline.cli.bench.measured import measured
from gangline.cli.bench.options import Jobs, JsonFile, Partitions, PollInterval, switches, words
from gangline.cli.bench.output import conclude
from gangline.cli.options import Mongod, Uri


def latency(
    jobs: Jobs = 200,
    scene: Annotated[str, typer.Option(metavar="LIST", help=f"Some of {', '.join(SCENES)}.")] = ",".join(SCENES),
    change_stream: Annotated[str, typer.Option(metavar="LIST", help="Some of on, off.")] = "on,off",
    partitions: Partitions = 16,
    poll_interval: PollInterval = 1.0,
    pause: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="The longest pause between two jobs.")
    ] = 0.2,
    uri: Uri = None,
    mongod: Mongod = None,
    json_file: JsonFile = None,
) -> None:
    """Schedule single jobs on an idle queue at random moments, and tell how long each waits for its start."""
    waits = [
        Wait(
            scene=name,
            change_stream=told,
            jobs=jobs,
            partitions=partitions,
            poll_interval=poll_interval,
            pause=pause,
        )
        for name, told in itertools.product(words(scene), switches("change-stream", change_stream))
    ]
    for wait in waits:
        check(wait)
    with measured(uri, mongod) as bench:
        rows = bench.rows(measure, waits)
    conclude("latency", rows, bench.server, file=json_file)
