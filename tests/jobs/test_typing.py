"""What a type checker says of scheduling: the decorated function's own signature holds, without its Context."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = Path(__file__).parent / "typing_samples"

MARK = re.compile(r"# error: ([\w-]+(?:, [\w-]+)*)$")
FOUND = re.compile(r"calls\.py:(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)


def expected(sample: Path) -> dict[int, list[str]]:
    """The error codes that the comments of ``sample`` announce, by line."""
    lines = enumerate(sample.read_text().splitlines(), 1)
    return {number: sorted(mark[1].split(", ")) for number, line in lines if (mark := MARK.search(line))}


def found(sample: Path) -> dict[int, list[str]]:
    """The error codes that mypy, as the project runs it, finds in ``sample``, by line."""
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", "--hide-error-context", str(sample)]
    mypy = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not mypy.stderr
    codes = defaultdict(list)
    for number, code in FOUND.findall(mypy.stdout):
        codes[int(number)].append(code)
    return {number: sorted(each) for number, each in codes.items()}


@pytest.mark.timeout(300)  # for a machine without mypy's cache
def test_mypy_finds_each_wrong_use_and_no_other() -> None:
    sample = SAMPLES / "calls.py"
    wanted = expected(sample)
    assert len(wanted) > 30
    assert found(sample) == wanted
