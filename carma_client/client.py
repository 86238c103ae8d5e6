"""The client for programs that may block. Imports stay light."""

from __future__ import annotations

from carma_client import requests
from carma_client.steps import iterate, run
from carma_client.transport import Blocking

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterable, Sequence

    from typing_extensions import Unpack

    from carma_client.options import Options
    from carmad.api.actions import ResultOut
    from carmad.api.events import EventOut
    from carmad.api.job import JobOut


class Client(Blocking):
    """Asks the daemon at this socket; None: the one that `carma` would ask.

    Jobs are named by their labels: "42", of a task "42_3". Raises Refused with the daemon's
    message and hint, and Unreachable if it does not answer: Unknown if it may have done what was
    asked.
    """

    def submit(self, argv: Sequence[str | os.PathLike[str]], **options: Unpack[Options]) -> str:
        """Submit a command. Returns the new job's label; it is on disk by then."""
        return run(requests.submit(self, argv, options))

    def job(self, label: str) -> JobOut:
        job: JobOut = self.get(requests.job_path(label))
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
        return run(requests.list_jobs(self, select, user, states))

    def wait(self, label: str) -> JobOut:
        """The job once it has ended; of an array, once all its tasks have, the first that failed or
        else the last. A daemon that restarts meanwhile is waited for."""
        ended: JobOut = run(requests.wait(self, label))
        return ended

    def cancel(self, *labels: str) -> list[ResultOut]:
        """This and the following raise Refused if any job is refused, after the others are done."""
        return run(requests.act(self, "cancel", labels))

    def hold(self, *labels: str) -> list[ResultOut]:
        return run(requests.act(self, "hold", labels))

    def release(self, *labels: str) -> list[ResultOut]:
        return run(requests.act(self, "release", labels))

    def requeue(self, *labels: str) -> list[ResultOut]:
        return run(requests.act(self, "requeue", labels))

    def logs(self, label: str, *, follow: bool = False, stderr: bool = False) -> Generator[str]:
        """The lines that all attempts of the job have printed; `follow`: until it ends. Raises
        OSError if the file cannot be read, which this process does itself."""
        from carma_client.logs import lines

        return iterate(lines(self, label, follow, stderr))

    def events(
        self,
        select: str | None = None,
        *,
        user: str | None = None,
        since: str | None = None,
        broken: Callable[[str], None] = lambda why: None,
    ) -> Generator[EventOut]:
        """What happens, from a first event called "watching", until all selected jobs have ended.
        `since`: begin with what happened since this time, ISO 8601. If the daemon stops, `broken`
        is called, and the stream goes on after the last event once it is back."""
        from carma_client.requests import events

        return iterate(events(self, broken, select=select, user=user, since=since))
