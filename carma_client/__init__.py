"""CARMA from Python: `from carma_client import Client`. What is not used is not imported."""

from __future__ import annotations

from carma_client.errors import JobFailed, Problem, Refused, Unknown, Unreachable

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from carma_client.aio import AsyncCall, AsyncClient
    from carma_client.client import Client
    from carma_client.function import Call

__all__ = [
    "AsyncCall",
    "AsyncClient",
    "Call",
    "Client",
    "JobFailed",
    "Problem",
    "Refused",
    "Unknown",
    "Unreachable",
]

_WHERE = {"Client": "client", "Call": "function", "AsyncClient": "aio", "AsyncCall": "aio"}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
