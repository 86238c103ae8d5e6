"""What the daemon gives to services and followers of its own besides."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.edge import Host
from carmad.store.sql import SqlStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonHost(Host):
    store: SqlStore
