"""What the executors of other tools ask of the daemon."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli import client

AT_ONCE = 500  # jobs named in a request


def submit(argv: Sequence[str], **options: Any) -> str:
    """The new job's label. `options`: by the names that the HTTP API has for them."""
    body = {"argv": list(argv), "cwd": str(Path.cwd()), "env": dict(os.environ)}
    label: str = client.post("/v1/jobs", body | options)["label"]
    return label


def jobs(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the daemon tells of these jobs, by label; of an array, about all its tasks. It is asked
    about the youngest first. Jobs that it does not know are left out."""
    ids = sorted({int(label.partition("_")[0]) for label in labels}, reverse=True)
    told: dict[str, dict[str, Any]] = {}
    for at in range(0, len(ids), AT_ONCE):
        select = ",".join(map(str, ids[at : at + AT_ONCE]))
        told |= {job["label"]: job for job in client.get("/v1/jobs", select=select)["jobs"]}
    return told


def act(verb: str, labels: Sequence[str]) -> None:
    """`cancel`, `release` or `requeue` jobs."""
    for at in range(0, len(labels), AT_ONCE):
        client.post(f"/v1/{verb}", {"select": ",".join(labels[at : at + AT_ONCE])})
