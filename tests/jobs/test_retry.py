from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.jobs.errors import ConfigurationError
from gangline.jobs.retry import DEFAULT_RETRY, RetryPolicy
from support.properties import on_a_busy_machine

SECOND = timedelta(seconds=1)
TEN_MINUTES = timedelta(minutes=10)

policies = st.builds(
    RetryPolicy.exponential,
    first=st.timedeltas(timedelta(0), timedelta(days=30)),
    factor=st.floats(1, allow_nan=False),
    maximum=st.timedeltas(timedelta(0), timedelta(days=300)),
    jitter=st.booleans(),
)
chances = st.floats(0, 1, exclude_max=True)
tries = st.integers(1, 2**63)


def _waits(policy: RetryPolicy, count: int) -> list[float]:
    return [policy.delay(tries=number, chance=0.5).total_seconds() for number in range(1, count + 1)]


def test_waits_grow_by_the_factor_up_to_the_maximum() -> None:
    policy = RetryPolicy.exponential(first="2s", factor=3, maximum="1m", jitter=False)
    assert _waits(policy, 5) == [2, 6, 18, 54, 60]


def test_a_fixed_policy_waits_the_same_each_time() -> None:
    assert _waits(RetryPolicy.fixed("90s"), 4) == [90, 90, 90, 90]


def test_the_default_is_exponential_with_jitter() -> None:
    assert RetryPolicy.exponential() == DEFAULT_RETRY
    assert DEFAULT_RETRY.jitter
    assert DEFAULT_RETRY.delay(tries=1, chance=0.0) == SECOND


@pytest.mark.parametrize("factor", [2, 2.0, 10, 1e300, float("inf")])
@pytest.mark.parametrize("number", [20, 1_100, 10**6, 2**62])
def test_a_wait_is_clamped_at_any_try_with_any_factor(factor: float, number: int) -> None:
    """Case 53. A whole-number factor must not be raised digit by digit either: at try 2**62 that would never end."""
    policy = RetryPolicy.exponential(first="2s", factor=factor, maximum="10m", jitter=False)
    assert policy.delay(tries=number, chance=0.0) == TEN_MINUTES


def test_a_first_wait_above_the_maximum_is_clamped() -> None:
    policy = RetryPolicy.exponential(first="1h", maximum="10m", jitter=False)
    assert policy.delay(tries=1, chance=0.0) == TEN_MINUTES


@pytest.mark.parametrize("number", [0, -3])
def test_a_record_without_tries_waits_like_after_the_first(number: int) -> None:
    assert RetryPolicy.exponential(first="2s", jitter=False).delay(tries=number, chance=0.0) == 2 * SECOND


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 2.0), (0.5, 3.0), (0.999, 3.998)])
def test_jitter_spreads_over_the_upper_half_of_the_wait(chance: float, seconds: float) -> None:
    policy = RetryPolicy.exponential(first="4s", jitter=True)
    assert policy.delay(tries=1, chance=chance) == timedelta(seconds=seconds)


@on_a_busy_machine
@given(policies, tries, chances)
def test_no_wait_is_negative_or_above_the_maximum(policy: RetryPolicy, number: int, chance: float) -> None:
    assert timedelta(0) <= policy.delay(tries=number, chance=chance) <= policy.maximum


@on_a_busy_machine
@given(policies, st.integers(1, 2_000), st.integers(1, 2_000))
def test_a_later_try_never_waits_less(policy: RetryPolicy, one: int, other: int) -> None:
    earlier, later = sorted((one, other))
    assert policy.delay(tries=earlier, chance=0.3) <= policy.delay(tries=later, chance=0.3)


@on_a_busy_machine
@given(policies, tries, chances)
def test_jitter_takes_at_most_half_of_the_wait(policy: RetryPolicy, number: int, chance: float) -> None:
    full = policy.delay(tries=number, chance=1.0)
    assert policy.delay(tries=number, chance=chance) >= full / 2 - timedelta(microseconds=1)


@pytest.mark.parametrize("factor", [0, 0.99, -2, float("nan"), True, "2", None])
def test_a_factor_that_shrinks_waits_is_refused(factor: Any) -> None:
    with pytest.raises(ConfigurationError, match="factor"):
        RetryPolicy.exponential(factor=factor)


@pytest.mark.parametrize("option", ["first", "maximum"])
@pytest.mark.parametrize("value", ["soon", "-1s", -1, float("inf"), float("nan"), None])
def test_a_wait_that_is_no_duration_is_refused_by_name(option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ConfigurationError, match=option):
        RetryPolicy.exponential(**options)


def test_a_fixed_wait_that_is_no_duration_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="delay"):
        RetryPolicy.fixed("soon")
