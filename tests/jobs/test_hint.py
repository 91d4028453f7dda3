"""Which acquisition shape wins a probe, and when a worker changes over to it."""

from random import Random
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.jobs.hint import HintChoice, Sample, Shape, cheaper
from support.properties import on_a_busy_machine

NAME, PRIORITY = Shape.BY_NAME, Shape.BY_PRIORITY

SAMPLES = st.lists(
    st.builds(Sample, milliseconds=st.integers(0, 5), examined=st.integers(0, 20)), min_size=1, max_size=4
)
SHAPES = st.sampled_from(Shape)
CHOICES = st.builds(HintChoice, SHAPES, probed=st.just(True), challenger_wins=st.integers(0, 1))


def of(*costs: tuple[int, int]) -> list[Sample]:
    """Samples of milliseconds and entries examined."""
    return [Sample(milliseconds, examined) for milliseconds, examined in costs]


def other(shape: Shape) -> Shape:
    return PRIORITY if shape is NAME else NAME


# One probe


@pytest.mark.parametrize("current", Shape)
def test_the_lower_median_of_time_wins_whatever_the_work(current: Shape) -> None:
    samples = {NAME: of((1, 900), (2, 900), (90, 900)), PRIORITY: of((3, 1), (3, 1), (0, 1))}
    assert cheaper(samples, current) is NAME


@pytest.mark.parametrize("current", Shape)
def test_one_slow_sample_of_three_decides_nothing(current: Shape) -> None:
    samples = {NAME: of((0, 4), (500, 4), (0, 4)), PRIORITY: of((0, 60), (0, 60), (0, 60))}
    assert cheaper(samples, current) is NAME


def test_of_an_even_number_of_samples_the_lower_middle_counts() -> None:
    samples = {NAME: of((1, 0), (9, 0)), PRIORITY: of((2, 0), (2, 0))}
    assert cheaper(samples, PRIORITY) is NAME


@pytest.mark.parametrize("current", Shape)
def test_equal_times_are_decided_by_the_median_of_work(current: Shape) -> None:
    samples = {NAME: of((0, 50), (0, 60), (0, 1)), PRIORITY: of((0, 2), (0, 2), (0, 900))}
    assert cheaper(samples, current) is PRIORITY


@pytest.mark.parametrize("current", Shape)
def test_between_equals_the_current_shape_stays(current: Shape) -> None:
    samples = {NAME: of((0, 2)), PRIORITY: of((0, 2))}
    assert cheaper(samples, current) is current


@on_a_busy_machine
@given(SAMPLES, SAMPLES, SHAPES)
def test_the_winner_is_never_the_worse_one(by_name: list[Sample], by_priority: list[Sample], current: Shape) -> None:
    samples = {NAME: by_name, PRIORITY: by_priority}

    def cost(shape: Shape) -> tuple[int, int]:
        mine = samples[shape]
        return median_low(one.milliseconds for one in mine), median_low(one.examined for one in mine)

    winner = cheaper(samples, current)
    assert cost(winner) <= cost(other(winner))
    if winner is not current:
        assert cost(winner) < cost(current)


@on_a_busy_machine
@given(SAMPLES, SAMPLES, SHAPES, st.randoms())
def test_the_order_of_samples_and_shapes_does_not_matter(
    by_name: list[Sample], by_priority: list[Sample], current: Shape, random: Random
) -> None:
    shuffled = {shape: random.sample(mine, len(mine)) for shape, mine in ((PRIORITY, by_priority), (NAME, by_name))}
    assert cheaper(shuffled, current) is cheaper({NAME: by_name, PRIORITY: by_priority}, current)


# From probe to probe


@pytest.mark.parametrize("first", Shape)
@pytest.mark.parametrize("winner", Shape)
def test_the_first_probe_decides_at_once(first: Shape, winner: Shape) -> None:
    assert HintChoice(first).after(winner) == HintChoice(winner, probed=True)


def test_a_worker_starts_by_name() -> None:
    assert HintChoice().shape is NAME


@on_a_busy_machine
@given(CHOICES)
def test_whatever_came_before_two_wins_in_a_row_change_the_shape(choice: HintChoice) -> None:
    challenger = other(choice.shape)
    assert choice.after(choice.shape).after(challenger).shape is choice.shape
    assert choice.after(choice.shape).after(challenger).after(challenger).shape is challenger


@pytest.mark.parametrize("shape", Shape)
def test_a_win_of_the_current_shape_starts_the_count_anew(shape: Shape) -> None:
    choice = HintChoice(shape, probed=True)
    for winner in [other(shape), shape] * 5:
        choice = choice.after(winner)
        assert choice.shape is shape


def test_after_a_change_the_old_shape_too_needs_two_wins() -> None:
    choice = HintChoice(NAME, probed=True).after(PRIORITY).after(PRIORITY)
    assert choice.after(NAME).shape is PRIORITY
    assert choice.after(NAME).after(NAME).shape is NAME


@on_a_busy_machine
@given(SHAPES, st.lists(SHAPES, max_size=12))
def test_the_shape_is_the_last_that_won_the_first_probe_or_two_in_a_row(start: Shape, winners: list[Shape]) -> None:
    choice, expected = HintChoice(start), start
    for position, winner in enumerate(winners):
        choice = choice.after(winner)
        if position == 0 or winners[position - 1] is winner:
            expected = winner
        assert choice.shape is expected
