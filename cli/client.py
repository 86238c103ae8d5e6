"""The daemon's API, as all commands use it, at the socket that the environment names; and jobs as
commands name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carma_client.client import Client
from carma_client.transport import TIMEOUT_S as TIMEOUT_S
from carma_client.transport import Broken as Broken
from carma_client.transport import with_query as with_query
from cli.problems import Refused, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

SLURM = "slurm:"

_daemon = Client()
get, post, patiently = _daemon.get, _daemon.post, _daemon.patiently
wait_for, requeue = _daemon.wait, _daemon.request_requeue


def events(broken: Callable[[str], None] = lambda why: None, **query: Any) -> Iterator[Any]:
    """The events, from a first one called `watching`, until all selected jobs have ended. If the
    daemon stops, `broken` is called, and the stream goes on after the last event once it is back.
    """
    return _daemon.events(broken=broken, **query)


def outlive_stop(ask: Callable[[], int]) -> int:
    """Ask for a job to be stopped and run again. If a job asks that of itself, the signal reaches
    the command, too, which is to end only when it knows whether that was done."""
    import signal

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return ask()
    finally:
        signal.signal(signal.SIGTERM, before)


def named(word: str, about: str = "") -> tuple[Any, list[Any]]:
    """What the daemon says `about` the one job that a word names; of several jobs, a row for each
    instead."""
    select = resolve(word)
    if select.replace("_", "").isdecimal():
        try:
            found = get(f"/v1/jobs/{select}{about}")
            label = found.get("job", found)["label"]
            if label.partition("_")[0] != select or label == select:
                return found, []
        except Refused as refused:
            if refused.code != "array":
                raise
    rows = get("/v1/jobs", select=select)["jobs"]
    if not rows:
        hint = "See `carma queue` and `carma history`."
        raise Refused(f"there is no job {select}", hint, code="not_found")
    return (get(f"/v1/jobs/{rows[0]['label']}{about}"), []) if len(rows) == 1 else (None, rows)


def resolve(word: str) -> str:
    """The label of `last`, of which an array has one, or of your job in a Slurm job; any other word
    names jobs already."""
    if word.startswith(SLURM) and word.removeprefix(SLURM).isdecimal():
        found = get("/v1/jobs", slurm_job=word.removeprefix(SLURM))["jobs"]
        if not found:
            raise Usage(
                f"no job of yours runs here in Slurm job {word.removeprefix(SLURM)}",
                "it has one from its `carma run` on",
            )
        return str(found[-1]["label"])
    if word != "last":
        return word
    jobs = get("/v1/jobs", select="last")["jobs"]
    if not jobs:
        raise Usage("you have no jobs yet", "name a job by its id")
    return str(jobs[0]["label"]).partition("_")[0]


def exit_code(job: Mapping[str, Any]) -> int:
    """0 only for success; otherwise the program's code, 128+N if signal N ended it, or 1."""
    if job["state"] == "succeeded":
        return 0
    how = job.get("exit") or {}
    if how.get("signal"):
        return 128 + int(how["signal"])
    return int(how.get("code") or 1)


def outcomes(results: list[dict[str, Any]]) -> Iterator[tuple[str, bool, str]]:
    """One line for all tasks of an array to which the same happened."""
    alike: dict[tuple[str, bool, str], list[str]] = {}
    for each in results:
        key = each["label"].partition("_")[0], each["ok"], each["message"]
        alike.setdefault(key, []).append(each["label"])
    for (_, ok, message), labels in alike.items():
        for label in fold_labels(labels):
            yield label, ok, message


def fold_labels(labels: Iterable[str]) -> Iterator[str]:
    """`["4", "5_0", "5_1", "5_[3-4%2]"]` as `4` and `5_[0-1,3-4]`."""
    arrays: dict[str, list[str]] = {}
    for label in labels:
        job, _, tasks = label.partition("_")
        listed = tasks.strip("[]").partition("%")[0].split(",")
        arrays.setdefault(job, []).extend(filter(None, listed))
    for job, listed in arrays.items():
        tasks = spans(listed)
        label = f"{job}_{tasks}" if tasks else job
        yield label if tasks.isdigit() or not tasks else f"{job}_[{tasks}]"


def spans(listed: list[str]) -> str:
    """`["2", "3-4", "9"]` as `2-4,9`."""
    found: list[list[str]] = []
    for each in listed:
        low, _, high = each.partition("-")
        if found and low.isdigit() and found[-1][-1] == str(int(low) - 1):
            found[-1][1:] = [high or low]
        else:
            found.append([low, high] if high else [low])
    return ",".join("-".join(each) for each in found)
