"""`carma doctor` runs a small job without GPUs, as any user would, from submission to end."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from carma_client import Client
from carmad.errors import CarmaError

if TYPE_CHECKING:
    from carmad.api.job import JobOut
    from carmad.api.service import CheckOut

CODE = 42
# Long enough that the daemon has looked at it again: a job that merely starts proves little.
RUNS = f"echo began; sleep 2; echo ended; exit {CODE}"
BOTH = ["began", "ended"]
STARTS_WITHIN_S = 10.0  # then the server is busy
ENDS_WITHIN_S = 60.0
LOOK_S = 0.2


def check() -> CheckOut:
    with tempfile.TemporaryDirectory(prefix="carma-doctor-") as folder:
        output = Path(folder, "output")
        try:
            return _run(Client(), output)
        except CarmaError as error:
            return _failure(error.message, error.hint)


def _run(client: Client, output: Path) -> CheckOut:
    folder = str(output.parent)
    label = client.submit(
        ["/bin/sh", "-c", RUNS], gpus=0, name="carma-doctor", cwd=folder, stdout=str(output)
    )
    since, began = time.monotonic(), False
    while not (job := client.job(label))["ended_at"]:
        waited_s = time.monotonic() - since
        if not began and job["started_at"]:
            since, began = time.monotonic(), True
        elif not began and waited_s > STARTS_WITHIN_S:
            return _not_begun(client, job)
        elif began and waited_s > ENDS_WITHIN_S:
            client.cancel(label)
            done = BOTH[-1] in _lines(output)
            what = "nobody has noticed its end" if done else "it has not ended"
            return _failure(f"job {label} started {waited_s:.0f} s ago, and {what}", LOG)
        time.sleep(LOOK_S)
    return _end(job, _lines(output))


LOG = "The daemon's log may say why: journalctl -u carmad."


def _not_begun(client: Client, job: JobOut) -> CheckOut:
    label = job["label"]
    client.cancel(label)
    if job["code"] == "PD":
        detail = f"it waited for {STARTS_WITHIN_S:.0f} s and was cancelled: {job['reason']}"
        return _result(None, detail, "Try again when the server is less busy.")
    return _failure(f"job {label} has not started: it is {job['state']}", LOG)


def _end(job: JobOut, lines: list[str]) -> CheckOut:
    label, exit = job["label"], job["exit"]
    if lines.count(BOTH[0]) > 1 or job["attempt"] > 1:
        starts = max(lines.count(BOTH[0]), job["attempt"])
        why = f": {job['failures'][0]['evidence']}" if job["failures"] else ""
        return _failure(f"job {label} was started {starts} times{why}", LOG)
    if exit is None or exit["code"] != CODE:
        what = (exit["evidence"] or exit["cause"]) if exit else "no exit"
        return _failure(
            f"job {label} exits with {CODE}, and CARMA says {job['state']}: {what}", LOG
        )
    if lines != BOTH:
        hint = "Is /tmp another one for jobs than here?"
        return _failure(f"job {label} ended as it should, but its output is not here", hint)
    return _result(True, "a small one started once, wrote its output, and ended as it should")


def _lines(output: Path) -> list[str]:
    try:
        return output.read_text().splitlines()
    except OSError:
        return []


def _failure(detail: str, hint: str) -> CheckOut:
    return _result(False, detail, hint)


def _result(ok: bool | None, detail: str, hint: str = "") -> CheckOut:
    return {"name": "job", "ok": ok, "detail": detail, "hint": hint}
