"""CARMA from Python: `from carma_client import Client`; and what can go wrong between a program and
the daemon. What is not used is not imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from carmad.errors import CarmaError

if TYPE_CHECKING:
    from carma_client.aio import AsyncClient
    from carma_client.client import Client
    from carma_client.executor import Executor, JobFuture
    from carmad.api.job import JobOut


class Problem(CarmaError):
    """`code`: a stable word for programs. `exit_code`: of a command that ends with it."""

    exit_code = 1
    code = "error"


class Unreachable(Problem):
    """Nothing was done."""

    exit_code = 3
    code = "unreachable"


class Unknown(Unreachable):
    """It may have been done or not: nothing said so."""

    code = "unknown"


class Refused(Problem):
    """The daemon refused, or would. `code` is the daemon's, or "usage"."""

    def __init__(self, message: str, hint: str = "", code: str = Problem.code) -> None:
        super().__init__(message, hint)
        self.code = code
        self.exit_code = 4 if code in FORBIDDEN else 2 if code == "usage" else 1


FORBIDDEN = frozenset({"forbidden", "not_yours"})


class JobFailed(Problem):
    """A job ended without the result that was asked for. `job`: as the daemon describes it."""

    code = "job_failed"

    def __init__(self, message: str, hint: str, job: JobOut) -> None:
        super().__init__(message, hint)
        self.job = job


__all__ = [
    "AsyncClient",
    "Client",
    "Executor",
    "JobFailed",
    "JobFuture",
    "Problem",
    "Refused",
    "Unknown",
    "Unreachable",
]

_WHERE = {"Client": "client", "AsyncClient": "aio", "Executor": "executor", "JobFuture": "executor"}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
