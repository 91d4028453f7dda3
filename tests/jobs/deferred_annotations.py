"""Handlers whose annotations are text until somebody asks."""

from __future__ import annotations

from gangline import Context


def with_context(ctx: Context, number: int) -> None: ...


def without_context(number: int) -> None: ...


class Callable:
    def __call__(self, ctx: Context, number: int) -> None: ...
