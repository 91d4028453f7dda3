"""Bars on a terminal while something long runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from gangline.cli.output import console


class Stages:
    """Stages of work, a bar each."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._current: TaskID | None = None

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` steps."""
        self._current = self._bars.add_task(stage, total=total)

    def reach(self, done: int) -> None:
        """Tell that ``done`` steps of the stage are done."""
        if self._current is not None:
            self._bars.update(self._current, completed=done)


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Stages]:
    """Show bars on a terminal's standard error, unless ``quiet``."""
    err = console(err=True)
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bars:
        yield Stages(bars)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", "cyan", justify="right")
