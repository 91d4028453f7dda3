from random import Random

import pytest

from gangline.jobs.partitions import PartitionWalk


def _cycles(walk: PartitionWalk, *, partitions: int, count: int) -> list[list[int]]:
    return [[walk.next() for _ in range(partitions)] for _ in range(count)]


@pytest.mark.parametrize("partitions", [1, 2, 7, 32])
def test_each_cycle_gives_every_partition_exactly_once(partitions: int) -> None:
    for cycle in _cycles(PartitionWalk(partitions, Random(1)), partitions=partitions, count=5):
        assert sorted(cycle) == list(range(partitions))


def test_cycles_differ_in_their_order() -> None:
    cycles = _cycles(PartitionWalk(16, Random(1)), partitions=16, count=10)
    assert len({tuple(cycle) for cycle in cycles}) == 10


def test_two_workers_do_not_walk_in_step() -> None:
    one, other = (_cycles(PartitionWalk(16, Random(seed)), partitions=16, count=1) for seed in (1, 2))
    assert one != other


def test_every_partition_comes_first_now_and_then() -> None:
    cycles = _cycles(PartitionWalk(4, Random(1)), partitions=4, count=100)
    assert {cycle[0] for cycle in cycles} == {0, 1, 2, 3}
