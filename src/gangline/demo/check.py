"""Whether every file was processed exactly once, and rightly: the history of the jobs against a plain loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.demo.app import Facts

Execution = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The files with which something is wrong."""

    missing: list[Path] = field(default_factory=list)
    duplicates: list[Path] = field(default_factory=list)
    different: list[Path] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Each wrong file in words."""
        kinds = {"missing": self.missing, "duplicate": self.duplicates, "different": self.different}
        return [f"{kind}: {path}" for kind, paths in kinds.items() for path in paths]


def check(
    expected: Mapping[Path, Facts], executions: Iterable[Execution], again: Callable[[Path], Facts | None]
) -> Findings:
    """Compare the successful ``executions`` with what a plain loop ``expected``.

    A file that changed while the demo ran is no mistake of the queue's: one whose result differs is read ``again``,
    which gives ``None`` for such a file.
    """
    results = [(Path(run["params"]["path"]), run.get("result")) for run in executions if run["status"] == "success"]
    counts = Counter(path for path, _ in results)
    suspects = {path: result for path, result in results if path in expected and result != expected[path]}
    return Findings(
        missing=[path for path in expected if not counts[path]],
        duplicates=[path for path in expected if counts[path] > 1],
        different=[path for path, result in sorted(suspects.items()) if again(path) not in (None, result)],
    )
