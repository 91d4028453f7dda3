"""Settings of Hypothesis for machines that other work keeps busy."""

from hypothesis import HealthCheck, settings

on_a_busy_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
