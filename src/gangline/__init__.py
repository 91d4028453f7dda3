"""Gangline runs background jobs from MongoDB: many workers on many hosts, each job owned by one execution at a time."""

from gangline.app import Gangline
from gangline.jobs.context import Context
from gangline.jobs.errors import (
    AlreadyScheduled,
    ConfigurationError,
    Dismiss,
    GanglineError,
    InvalidParams,
    JobTimeout,
    LeaseLost,
    RecordTooLarge,
    Retry,
    SchedulingError,
    ServerUnsuitable,
)
from gangline.jobs.retry import RetryPolicy
from gangline.jobs.scheduling import JobCall, Scheduled, ScheduleStatus
from gangline.worker.worker import Worker

__all__ = [
    "AlreadyScheduled",
    "ConfigurationError",
    "Context",
    "Dismiss",
    "Gangline",
    "GanglineError",
    "InvalidParams",
    "JobCall",
    "JobTimeout",
    "LeaseLost",
    "RecordTooLarge",
    "Retry",
    "RetryPolicy",
    "ScheduleStatus",
    "Scheduled",
    "SchedulingError",
    "ServerUnsuitable",
    "Worker",
]
