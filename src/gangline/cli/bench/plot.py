"""Drawing the contest of claims over the number of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.bench.claims import ClaimsRow
from gangline.jobs.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_claims(rows: Sequence[ClaimsRow], file: Path) -> None:
    """Draw claims per second and conflicts per claim into ``file``, whose ending tells the format.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure()
    speed, conflicts = figure.subplots(1, 2)
    _draw(speed, rows, "Claims per second", lambda row: row.claims_per_second)
    _draw(conflicts, rows, "Write conflicts per claim", lambda row: row.conflicts_per_claim)
    speed.legend(frameon=False)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigurationError("plot", f"{file} cannot be written ({error})", "Name another file") from error


def new_figure() -> Figure:
    """Return an empty figure.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("plot", "matplotlib is not installed", "pip install 'gangline[bench]'") from error
    return Figure(figsize=(10, 4.2), layout="constrained")


def _draw(axes: Axes, rows: Sequence[ClaimsRow], title: str, figure: Callable[[ClaimsRow], float]) -> None:
    for strategy in dict.fromkeys(row.strategy for row in rows):
        line = sorted((row for row in rows if row.strategy == strategy), key=lambda row: row.partitions)
        axes.plot([str(row.partitions) for row in line], [figure(row) for row in line], marker="o", label=strategy)
    axes.set_title(title, loc="left")
    axes.set_xlabel("partitions")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
