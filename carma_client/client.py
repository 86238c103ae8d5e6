"""The client for programs that may block."""

from __future__ import annotations

import os
import time
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carma_client import Problem, Refused, Unreachable
from carma_client.limits import soft_limits
from carma_client.transport import (
    LOOK_S,
    RESTARTED_WITHIN_S,
    TIMEOUT_S,
    Daemon,
    is_away,
    with_query,
)
from carmad.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from typing_extensions import Unpack

    from carma_client.options import Options
    from carmad.api.actions import ResultOut
    from carmad.api.events import EventOut
    from carmad.api.job import JobOut

POLL_S = 30
AT_ONCE = 250  # jobs named in a request: the daemon takes 256 tasks of arrays


class Client(Daemon):
    """Asks the daemon at this socket; None: the one that `carma` would ask.

    Jobs are named by their labels: "42", of a task "42_3". Raises Refused with the daemon's
    message and hint, and Unreachable if it does not answer: Unknown if it may have done what was
    asked.
    """

    def submit(self, argv: Sequence[str | os.PathLike[str]], **options: Unpack[Options]) -> str:
        """Submit a command. Returns the new job's label; it is on disk by then."""
        if isinstance(argv, str):
            raise TypeError("argv is a list of words; for a shell's line: ['sh', '-c', line]")
        body = {
            "env": environment(),
            "umask": umask(),
            "limits": soft_limits(),
            **options,
            "cwd": os.path.abspath(options.get("cwd", ".")),  # noqa: PTH100 - without ".."
            "argv": [os.fspath(word) for word in argv],
        }
        label: str = self.post("/v1/jobs", body)["label"]
        return label

    def job(self, label: str) -> JobOut:
        job: JobOut = self.get(job_path(label))
        return job

    def jobs(
        self,
        select: str | Iterable[str] | None = None,
        *,
        user: str | None = None,
        states: str | None = None,
    ) -> list[JobOut]:
        """The selected jobs, such as "3,5-8,42_3", or all that have not ended; of others' jobs,
        what all may see. The label of an array selects its tasks. `states`: such as
        "running,queued"."""
        found: list[JobOut] = []
        for chosen in [None] if select is None else _parts(select):
            found += self.get("/v1/jobs", select=chosen, user=user, states=states)["jobs"]
        return found

    def wait(self, label: str) -> JobOut:
        """The job once it has ended; of an array, once all its tasks have, the first that failed or
        else the last. A daemon that restarts meanwhile is waited for."""
        path, within_s = f"{job_path(label)}/wait", POLL_S + TIMEOUT_S
        job: JobOut = self.get(path, timeout_s=0)
        while job["state"] not in ENDED:
            job = self.patiently(lambda: self.get(path, within_s, timeout_s=POLL_S))
        return job

    def cancel(self, *labels: str) -> list[ResultOut]:
        """This and the following raise Refused if any job is refused, after the others are done."""
        return self._act("cancel", labels)

    def hold(self, *labels: str) -> list[ResultOut]:
        return self._act("hold", labels)

    def release(self, *labels: str) -> list[ResultOut]:
        return self._act("release", labels)

    def requeue(self, *labels: str) -> list[ResultOut]:
        return self._act("requeue", labels)

    def logs(
        self, label: str, *, follow: bool = False, stderr: bool = False
    ) -> Generator[str, None, None]:
        """The lines that all attempts of the job have printed; `follow`: until it ends. Raises
        OSError if the file cannot be read, which this process does itself."""
        from carma_client.logs import lines

        return lines(self, label, follow, stderr)

    def events(
        self,
        select: str | None = None,
        *,
        user: str | None = None,
        since: str | None = None,
        broken: Callable[[str], None] = lambda why: None,
    ) -> Generator[EventOut, None, None]:
        """What happens, from a first event called "watching", until all selected jobs have ended.
        `since`: begin with what happened since this time, ISO 8601. If the daemon stops, `broken`
        is called, and the stream goes on after the last event once it is back."""
        path = with_query("/v1/events", {"select": select, "user": user, "since": since})
        last, lost_at = "", 0.0
        while True:
            try:
                for event in self.stream(path, last):
                    lost_at, last = 0.0, event["id"]
                    if event["event"] == "over":
                        return
                    yield event
                raise ConnectionError("carmad is stopping")
            except (OSError, HTTPException, ValueError, Problem) as error:
                now = time.monotonic()
                if isinstance(error, Problem) and not is_away(error):
                    raise
                if not last or (lost_at and now - lost_at > RESTARTED_WITHIN_S):
                    if isinstance(error, Problem):
                        raise
                    raise Unreachable("the connection to carmad broke") from None
                self.pause(LOOK_S)
                if not lost_at:
                    lost_at = now
                    broken("the connection to carmad broke: waiting for it to come back")

    def request_requeue(self, body: dict[str, Any]) -> Any:
        """The answer. What looks like a secret is not stored once a job has ended: it comes from
        this process's environment, for the jobs that had it."""
        path = "/v1/requeue"
        answer = self.post(path, {**body, "asks": True})
        if lacking := answer.get("lacking"):
            here = environment()
            env = {name: here[name] for name in lacking if name in here}
            answer = self.post(path, {**body, "env": env})
        return answer

    def _act(self, verb: str, labels: Sequence[str]) -> list[ResultOut]:
        results: list[ResultOut] = []
        for select in _parts(labels):
            body = {"select": select}
            requeues = verb == "requeue"
            answer = self.request_requeue(body) if requeues else self.post(f"/v1/{verb}", body)
            results += answer["results"]
        if failed := [f"job {one['label']} {one['message']}" for one in results if not one["ok"]]:
            raise Refused("; ".join(failed), code="refused")
        return results


def job_path(label: str) -> str:
    """Raises Refused for what is no label, which might name something else in a path."""
    if not label.replace("_", "").isalnum():
        raise Refused(f"there is no job {label!r}", code="not_found")
    return f"/v1/jobs/{label}"


def _parts(select: str | Iterable[str]) -> Iterator[str]:
    labels = [select] if isinstance(select, str) else list(select)
    for at in range(0, len(labels), AT_ONCE):
        yield ",".join(labels[at : at + AT_ONCE])


def environment() -> dict[str, str]:
    """Without what is not UTF-8, which JSON cannot carry."""
    return {name: value for name, value in os.environ.items() if is_text(name + value)}


def is_text(word: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in word)


def umask() -> str:
    """From the kernel: os.umask would change it for a moment, in all threads."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:"))
