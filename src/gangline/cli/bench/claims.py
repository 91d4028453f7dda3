"""``gangline bench claims``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gangline.bench.claims import SORTED, STRATEGIES, Contest, check, measure
from gangline.cli.bench.measured import measured
from gangline.cli.bench.options import (
    Batch,
    Claimers,
    Jobs,
    JsonFile,
    PartitionCounts,
    Processes,
    TimeLimit,
    numbers,
    words,
)
from gangline.cli.bench.output import conclude
from gangline.cli.bench.plot import new_figure, plot_claims
from gangline.cli.options import Mongod, Uri
from gangline.jobs.settings import MAX_PARTITIONS


def claims(
    jobs: Jobs = 50_000,
    claimers: Claimers = 256,
    partitions: PartitionCounts = "1,8,32,64,128",
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"Some of {', '.join(STRATEGIES)}.",
            show_default="all that the server can do, but for by-limit",
        ),
    ] = None,
    batch: Batch = 1,
    processes: Processes = 2,
    time_limit: TimeLimit = 60.0,
    uri: Uri = None,
    mongod: Mongod = None,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the rows into FILE (.png, .svg).")] = None,
) -> None:
    """Let many claimers contend for one backlog, and nothing else.

    Each row checks that every record was given out once, that all ids and lock ids are unique, that each record has
    exactly one try, and that a second sweep finds nothing. The strategy dogs is the reference: plain indexes and one
    findOneAndUpdate a job. The strategy limit is the bare write without any claim logic: what server and driver can do
    at all. Exit codes: 0 all rows are right; 1 one is not.
    """
    if plot is not None:
        new_figure()  # before the work, not after it
    counts = numbers("partitions", partitions, at_most=MAX_PARTITIONS)
    with measured(uri, mongod) as bench:
        wanted = words(strategy) if strategy else _possible(sorted_updates=bench.sorted_updates)
        contests = [
            Contest(
                strategy=name,
                jobs=jobs,
                claimers=claimers,
                partitions=count,
                batch=batch,
                processes=min(processes, claimers),
                seconds=time_limit,
            )
            for name, count in itertools.product(wanted, counts)
        ]
        for contest in contests:
            check(contest, sorted_updates=bench.sorted_updates)
        rows = bench.rows(measure, contests)
    if plot is not None:
        plot_claims(rows, plot)
    conclude("claims", rows, bench.server, file=json_file)


def _possible(*, sorted_updates: bool) -> Sequence[str]:
    left_out = {"by-limit"} if sorted_updates else {"by-limit", *SORTED}
    return [name for name in STRATEGIES if name not in left_out]
