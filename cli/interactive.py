"""Jobs that this process runs, in this terminal, once they have GPUs: those of `carma run` and
`carma shell`, and of words for links.

The command is a child of this process, with this shell's environment, terminal and working
directory. The daemon is told of it by its own connection, so by the kernel, and follows it from
there. Away from a terminal, as in a job of Slurm's, the command can be run again: after it ran out
of memory, it waits for other GPUs. Only its standard error is relayed then (`cli.relay`).
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from carmad.added import take_back
from carmad.errors import CarmaError
from carmad.states import ENDED, NEW
from cli import client, relay
from cli.problems import INTERRUPTED, Problem, Refused, Unreachable, note, report

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeVar

    from cli.waking import Use

    T = TypeVar("T")

LOOK_S = 5  # how often to tell why the job waits, if that changes
NEWS_S, SUSPENDABLE_S = 60.0, 10.0  # how often to look for news of the running job
USE_S = 1.0  # and for its use, while it is suspended
ENDS_WITHIN_S = 15.0  # after the command, until its GPUs' memory is seen to be free
LOOK_OVER_S = 0.3  # how often to look whether it is to be run again
FAILED, NOT_FOUND = b"1", 127


def is_repeatable() -> bool:
    """Whether nobody types to the command or watches it, and what it reads is there again."""
    if sys.stdin is None or sys.stderr is None or sys.stderr.isatty() or sys.stdin.isatty():
        return False
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    # Of a pipe, the rest only. But srun gives every task one, and hardly any reads it.
    return is_in_slurm() or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


def is_in_slurm() -> bool:
    """CARMA's own jobs have the variable, too."""
    return "SLURM_JOB_ID" in os.environ and "CARMA_JOB_ID" not in os.environ


class Left(Exception):
    """The terminal has gone, or somebody wants this process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def run_job(body: dict[str, Any], quiet: bool, granted: Callable[[str], None] | None = None) -> int:
    """Submit it, wait until it may start, and run it here; returns the command's exit code.
    `granted`: gets the job's label before the command starts."""
    say = _unsaid if quiet else note
    for signum in relay.select_heeded(relay.TOLD):  # a warning ends no wait
        signal.signal(signum, _ignore)
    errors = relay.Kept() if body["requeue"] and is_repeatable() else None
    if errors:
        body |= {"stdout": errors.path}
    # Slurm's job would fail because a daemon is restarted; elsewhere, somebody forgot to start one.
    answer = (
        # It knows this process's job if it has one.
        _despite(
            lambda: client.post("/v1/jobs", body), lambda why: say(f"{why}; still trying to submit")
        )
        if is_in_slurm()
        else client.post("/v1/jobs", body)
    )
    label = answer["label"]
    for text in answer["warnings"]:
        say(text)
    code = None
    while code is None:
        handled = {one: signal.signal(one, _leave) for one in relay.select_heeded(relay.LEAVING)}
        try:
            job = _await_place(label, say)
        except (KeyboardInterrupt, Left) as left:
            _give_up(label)
            say(f"job {label} has left the line")
            return 128 + left.signum if isinstance(left, Left) else INTERRUPTED
        except BaseException:
            _give_up(label)
            raise
        if job["state"] in ENDED:
            raise Problem(_why_ended(job), f"see carma why {label}")
        gpus = ", ".join(str(gpu["index"]) for gpu in job["gpus"])
        say(f"job {label} runs on GPU {gpus}" if gpus else f"job {label} runs on CPUs alone")
        for signum, handler in handled.items():
            signal.signal(signum, handler)
        if granted:
            granted(label)
        with relay.hold_back():
            code = _run_here(label, job["attempt"], errors, say)
    return code


def _despite(ask: Callable[[], T], say: Callable[[str], None] = lambda _: None) -> T:
    """The answer, however long the daemon is away. Meanwhile, `say` gets the reason."""
    said = ""
    while True:
        try:
            return ask()
        except Unreachable as error:
            if said != error.message:
                said = error.message
                say(said)
            time.sleep(1.0)


def _await_place(label: str, say: Any) -> dict[str, Any]:
    """The job once it may start or has ended. Meanwhile, say why it waits when that changes."""

    def absent(why: str) -> None:
        say(f"{why}; still waiting for job {label}")

    said: Any = None
    look_s = 0.5  # most jobs start at once
    while True:
        job = _despite(partial(_wait, label, look_s, start=True), absent)
        if job["state"] not in NEW:
            return job
        news = job["reason"], job["position"]
        if news != said:
            said = news
            why = _despite(lambda: client.get(f"/v1/jobs/{label}/why"), absent)
            say(f"job {label} {_why(why)}")
        look_s = LOOK_S


def _why(answer: dict[str, Any]) -> str:
    """Why it waits, on the GPU that is nearest to taking it, and its place in line."""
    place = f"; place {answer['position']} in line" if answer["position"] else ""
    refusing = [verdict for verdict in answer["verdicts"] if verdict["refused"]]
    if not refusing or answer["reasons"] or answer["behind"]:
        return f"{answer['headline']}{place}"
    nearest = min(refusing, key=lambda verdict: len(verdict["refused"]))
    why = f"GPU {nearest['gpu']['index']} {nearest['refused'][0]['text']}"
    return f"{answer['headline']}: {why}{place}"


def _wait(label: str, within_s: float, start: bool = False) -> dict[str, Any]:
    path, more_s = f"/v1/jobs/{label}/wait", client.TIMEOUT_S
    wanted = "true" if start else None
    job: dict[str, Any] = client.get(path, within_s + more_s, timeout_s=within_s, start=wanted)
    return job


def _run_here(label: str, attempt: int, errors: relay.Kept | None, say: Any) -> int | None:
    """Run the command, and return its exit code once the job has ended; None: it is to be run
    again."""
    told, tell = os.pipe()
    sys.stdout.flush()
    relayed = errors.begin() if errors else None
    child = os.fork()
    if child == 0:
        os.close(told)
        if relayed is not None:
            os.dup2(relayed, 2)
        _become(label, tell, patient=relayed is not None)
    os.close(tell)
    if errors and relayed is not None:
        os.close(relayed)
        errors.relay()
    notes: list[str] = []
    relay.await_end(child, SUSPENDABLE_S, News(label, child, notes, say))
    failed = os.read(told, 1)  # nothing, if the command was begun
    os.close(told)
    again = False
    if failed:
        _give_up(label)
    else:
        again = _settle(label, attempt, errors is not None, notes, say)
    _, status = os.waitpid(child, 0)  # only now: the daemon reads the exit code from the zombie
    if errors:
        errors.end()
    if again:
        return None
    relay.forget()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(label: str, tell: int, patient: bool) -> NoReturn:
    """In the child: be known to the daemon by an own connection, then run the command. `patient`:
    however long the daemon is away."""
    code = NOT_FOUND
    try:
        relay.undo()
        path = f"/v1/jobs/{label}/take"
        taken = _despite(lambda: client.post(path, {})) if patient else client.post(path, {})
        env = take_back(os.environ) | taken["env"]
        argv = taken["argv"]
        try:
            os.execvpe(argv[0], argv, {name: env[name] for name in env if env[name] is not None})
        except OSError as error:
            what = "command not found" if isinstance(error, FileNotFoundError) else error.strerror
            note(f"cannot run {argv[0]}: {what}")
    except CarmaError as error:
        code = report(error, as_json=False)
        os.write(tell, FAILED)
    finally:
        sys.stderr.flush()
        os._exit(code)


class News:
    """Tells what the job's owner should know, such as that it is suspended, and lets it resume when
    it is used."""

    def __init__(self, label: str, child: int, told: list[str], say: Any) -> None:
        self._label = label
        self._child = child
        self._told = told
        self._say = say
        self._use: Use | None = None  # of a job that is suspended until it is resumed
        self._ask_at = time.monotonic()

    def __call__(self) -> float:
        """Returns when to look again."""
        now = time.monotonic()
        with suppress(CarmaError):
            if self._use and self._use.is_new():
                client.post("/v1/resume", {"select": self._label, "user": None})
                self._use = None
                self._say(f"job {self._label} resumes, as it is used, when there is a GPU for it")
            if now >= self._ask_at:
                self._ask_at = now + NEWS_S
                self._ask(now)
        return USE_S if self._use else max(USE_S, self._ask_at - now)

    def _ask(self, now: float) -> None:
        job = client.get(f"/v1/jobs/{self._label}", 2.0)
        if job.get("unsuspendable") == "" or job["state"] == "suspended":
            self._ask_at = now + SUSPENDABLE_S
        _tell_notes(job, self._told, self._say)
        if job["state"] != "suspended" or not job["held"]:
            self._use = None
        elif self._use is None:
            from cli.waking import Use

            self._use = Use(self._child)


def _tell_notes(job: dict[str, Any], told: list[str], say: Any) -> None:
    for each in job["notes"]:
        if each not in told:
            told.append(each)
            say(f"job {job['label']} {each}")


def _settle(label: str, attempt: int, repeatable: bool, told: list[str], say: Any) -> bool:
    """Wait until the daemon knows the end, and tell if the job was ended by it. Returns whether it
    is to be run again."""
    try:
        job = _over(label, attempt) if repeatable else _wait(label, ENDS_WITHIN_S)
        _tell_notes(job, told, say)
        if repeatable and (job["state"] in NEW or job["attempt"] != attempt):
            failures = job["failures"]
            why = failures[-1]["evidence"] if failures else "its GPUs were taken back"
            say(f"job {label} is run again: {why}")
            return True
        if job["state"] not in ENDED:
            _give_up(label)
        elif job["state"] not in ("succeeded", "failed"):
            say(_why_ended(job))
    except Unreachable:
        time.sleep(0.5)  # for the job's supervisor, which needs no daemon
    except CarmaError as error:
        say(error.message)
    return False


def _over(label: str, attempt: int) -> dict[str, Any]:
    """The job once this attempt of it is over, or was for long enough while a daemon was there."""
    waited_s = 0.0
    while True:
        job = _despite(lambda: _wait(label, LOOK_OVER_S))
        over = job["state"] in ENDED | NEW or job["attempt"] != attempt
        if over or waited_s > ENDS_WITHIN_S:
            return job
        waited_s += LOOK_OVER_S


def _why_ended(job: dict[str, Any]) -> str:
    how = (job.get("exit") or {}).get("evidence")
    text = f"job {job['label']}: {job['state'].replace('_', ' ')}"
    return f"{text}: {how}" if how else text


def _give_up(label: str) -> None:
    # Refused if it has ended; unreachable, its GPUs go to others when nobody takes them.
    with suppress(Refused, Unreachable):
        client.post("/v1/cancel", {"select": label, "user": None})


def _leave(signum: int, _: object) -> NoReturn:
    raise Left(signum)


def _ignore(*_: object) -> None:
    """There is no command yet to tell. Unlike SIG_IGN, it is not passed on to that."""


def _unsaid(text: str) -> None:
    pass
