"""What clients ask of the daemon, as steps. Imports stay light."""

from __future__ import annotations

import os

from carma_client.errors import Refused
from carma_client.transport import ENDED, TIMEOUT_S, patiently

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from carma_client.steps import Steps
    from carma_client.transport import Daemon

POLL_S = 30
AT_ONCE = 500  # jobs named in a request


def submit(
    daemon: Daemon, argv: Sequence[str | os.PathLike[str]], options: Mapping[str, Any]
) -> Steps[str]:
    """The new job's label."""
    if isinstance(argv, str):
        raise TypeError("argv is a list of words; for a shell's line: ['sh', '-c', line]")
    body = {
        "env": _environment(),
        "umask": _umask(),
        **options,
        "cwd": os.path.abspath(options.get("cwd", ".")),  # noqa: PTH100 - light
        "argv": [os.fspath(word) for word in argv],
    }
    label: str = (yield from daemon.told("/v1/jobs", body))["label"]
    return label


def _environment() -> dict[str, str]:
    """Without what is not UTF-8, which JSON cannot carry."""
    return {name: value for name, value in os.environ.items() if _is_text(name + value)}


def _is_text(word: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in word)


def _umask() -> str:
    """From the kernel: os.umask would change it for a moment, in all threads."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        return next(line.split()[1] for line in file if line.startswith("Umask:"))


def job_path(label: str) -> str:
    """Raises Refused for what is no label, which might name something else in a path."""
    if not label.replace("_", "").isalnum():
        raise Refused(f"there is no job {label!r}", code="not_found")
    return f"/v1/jobs/{label}"


def list_jobs(
    daemon: Daemon, select: str | Iterable[str] | None, user: str | None, states: str | None
) -> Steps[list[Any]]:
    found: list[Any] = []
    for chosen in [None] if select is None else _parts(select):
        answer = yield from daemon.asked("/v1/jobs", select=chosen, user=user, states=states)
        found += answer["jobs"]
    return found


def act(daemon: Daemon, verb: str, labels: Sequence[str]) -> Steps[list[Any]]:
    """`cancel`, `hold`, `release` or `requeue`. Raises Refused if not all could be."""
    results: list[Any] = []
    for select in _parts(labels):
        results += (yield from daemon.told(f"/v1/{verb}", {"select": select}))["results"]
    if failed := [f"job {each['label']} {each['message']}" for each in results if not each["ok"]]:
        raise Refused("; ".join(failed), code="refused")
    return results


def _parts(select: str | Iterable[str]) -> Iterator[str]:
    labels = [select] if isinstance(select, str) else list(select)
    for at in range(0, len(labels), AT_ONCE):
        yield ",".join(labels[at : at + AT_ONCE])


def wait(daemon: Daemon, label: str) -> Steps[Any]:
    """The job once it has ended. A daemon that restarts meanwhile is waited for, but not one that
    has never answered."""
    path, within_s = f"{job_path(label)}/wait", POLL_S + TIMEOUT_S
    job = yield from daemon.asked(path, timeout_s=0)
    while job["state"] not in ENDED:
        job = yield from patiently(lambda: daemon.asked(path, within_s, timeout_s=POLL_S))
    return job
