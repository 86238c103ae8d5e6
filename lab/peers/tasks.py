"""Everyday tasks on four GPUs, and what came of each: of CARMA and of the peers that are
installed. A system is started anew for each task, and systems run side by side. Takes five minutes;
as root, or the tasks of two users and Slurm fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from benchmarks.harness import Report, markdown_table
from lab.main import main
from lab.peers.system import LONG, SHORT, Lacking, System, wait_for
from lab.peers.systems import BEST, Carma

TITLE = "Everyday tasks"
GPUS = 4
OTHER = "nobody"  # on every machine
SOON_S = 10.0  # a job that may start has started by then
ARRAY = 9_000
BEHIND = 6
BEHIND_S = 35.0
MINUTE_S = 60.0
WORDS = 140  # characters of an answer that are shown

Do = Callable[[System], str]


@dataclass(frozen=True, slots=True)
class Task:
    key: str
    what: str
    do: Do  # returns what came of it


def measure() -> Report:
    table, found = side_by_side()
    return Report(TITLE, (table,), {"tasks": found})


def side_by_side(
    tasks: Sequence[Task] | None = None, kinds: Sequence[type[System]] = BEST
) -> tuple[str, dict[str, dict[str, str]]]:
    """The table, and its cells by the task's key and system."""
    tasks = TASKS if tasks is None else tasks
    with ProcessPoolExecutor(len(kinds), get_context("fork")) as pool:
        columns = list(pool.map(partial(_column, tasks), kinds))
    cells = {
        task.key: {kind.name: column[n] for kind, column in zip(kinds, columns, strict=True)}
        for n, task in enumerate(tasks)
    }
    rows = [(task.what, *cells[task.key].values()) for task in tasks]
    return markdown_table(["", *(kind.name for kind in kinds)], rows), cells


def _column(tasks: Sequence[Task], kind: type[System]) -> list[str]:
    if missing := kind.missing():
        return [f"no {missing} here"] * len(tasks)
    cells = []
    for task in tasks:
        begun = time.monotonic()
        cells.append(_cell(kind, task))
        taken_s = time.monotonic() - begun
        print(f"{kind.name}: {task.what}: {cells[-1]} ({taken_s:.0f} s)", file=sys.stderr)
    return cells


def _cell(kind: type[System], task: Task) -> str:
    started = False
    try:
        with kind(GPUS) as system:
            started = True
            return task.do(system)
    except Lacking as error:
        return f"no: {error}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"no: {said(error)}" if started else f"not tried: {said(error)}"


def said(error: Exception) -> str:
    """The cause in what a program printed when it failed, in one line."""
    text = str(error)
    if isinstance(error, subprocess.CalledProcessError):
        printed = (error.stderr or error.stdout or text).strip()
        text = re.sub(r"^\s*\d+: ", "", printed.rpartition("Caused by:")[2])
    return _short(next((line for line in text.splitlines() if line.strip()), ""))


def _short(text: str) -> str:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    text = "; ".join(" ".join(line.split()) for line in lines if line.strip())
    return text if len(text) <= WORDS else text[: WORDS - 1] + "…"


def environment(system: System) -> str:
    file = system.out / "word"
    system.env["MY_WORD"] = "abc"
    system.submit(["/bin/sh", "-c", f'echo "word:$MY_WORD" > {file}'])
    wait_for(lambda: _read(file.name, system).endswith("\n"), "its job", SOON_S)
    return "yes" if _read(file.name, system) == "word:abc\n" else "no: it is not there"


def killed(system: System, count: int, seconds: int, after_s: float, within_s: float) -> str:
    jobs = []
    for n in range(count):
        script = f"echo {n} >> {system.out}/ran; sleep {seconds}; exit {n}"
        jobs.append(system.submit(["/bin/sh", "-c", script], options=system.options(gpus=1)))
    wait_for(lambda: _read("ran", system) != "", "the first job", SOON_S)
    time.sleep(after_s)
    system.crash()
    begun = time.monotonic()
    codes: list[int | None] = []

    def over() -> bool:
        nonlocal codes
        time.sleep(0.5)
        codes = [system.exit_code(job) for job in jobs]
        return codes == list(range(count))

    with contextlib.suppress(TimeoutError):
        wait_for(over, "the jobs", within_s)
    ran = _read("ran", system).split()
    once = sum(ran.count(str(n)) == 1 for n in range(count))
    right = sum(code == n for n, code in enumerate(codes))
    which = "yes" if once == right == count else "no"
    taken_s = time.monotonic() - begun
    return (
        f"{which}: {once} of {count} ran once, {right} exit codes are right, after {taken_s:.0f} s"
    )


def other_user(system: System) -> str:
    words = system.submission(["/bin/sh", "-c", f"id -un > {system.out}/who"])
    system.says_to(OTHER, words)
    wait_for(lambda: _read("who", system) != "", "the job", SOON_S)
    who = _read("who", system).strip()
    return "yes" if who == OTHER else f"no: as {who}"


def too_wide(system: System) -> str:
    options = system.options(gpus=10 * GPUS)
    try:
        job = system.submit(SHORT, options=options)
    except subprocess.CalledProcessError as error:
        return f"yes: {said(error)}"
    time.sleep(2.0)
    with contextlib.suppress(Lacking):
        return f"no: accepted, and waits: {_why(system, job)}"
    return "no: accepted"


def array(system: System) -> str:
    begun = time.monotonic()
    system.submit(LONG, options=system.options(gpus=1, array=f"1-{ARRAY}"))
    return f"yes: accepted in {time.monotonic() - begun:.1f} s"


def quota(system: System) -> str:
    words = system.command("limit")
    try:
        system.says_to(OTHER, words)
        anybody = True
    except subprocess.CalledProcessError:
        anybody = False
    system.says(words)
    system.submit(_mark(system), options=system.options(gpus=1))
    system.submit(_mark(system), options=system.options(gpus=1))
    running = _started(system, 2)
    if running != 1:
        return f"no: {running} jobs of 1 GPU ran under a limit of 1"
    return "no: live, but any user may change them" if anybody else "yes"


def sweep(system: System) -> str:
    script = f"echo {{a}} >> {system.out}/swept"
    system.submit(["/bin/sh", "-c", script], options=system.options(sweep="a=1,2"))
    wait_for(lambda: len(_read("swept", system).split()) == 2, "two tasks", SOON_S)
    swept = sorted(_read("swept", system).split())
    return "yes" if swept == ["1", "2"] else f"no: with {swept}"


def here(system: System) -> str:
    words = [*system.command("here"), "/bin/sh", "-c", "test -t 0 && test -t 1 && exit 7; exit 8"]
    code, shown = at_terminal(system, words, lambda _: False)
    if code in (7, 8):
        return "yes" if code == 7 else "no: not at a terminal"
    return f"no: exit code {code}: {_short(shown)}"


def inside(system: System) -> str:
    job = system.submit(["/bin/sh", "-c", f"echo its-word; echo >> {system.out}/began; sleep 60"])
    wait_for(lambda: _read("began", system) != "", "the job", SOON_S)
    words = system.command("inside", job=job)
    command = [] if words[0] == "gjob" else ["/bin/sh", "-c", f"echo >> {system.out}/inside"]
    code, shown = at_terminal(system, [*words, *command], lambda text: "its-word" in text)
    if _read("inside", system):
        return "yes"
    if "its-word" in shown:
        return "no: its terminal only"
    return f"no: {_short(shown) or f'exit code {code}'}"


def behind(system: System, timed: bool = True) -> str:
    """`timed`: each job is submitted with a time limit. Otherwise nobody knows when any ends."""
    if not timed and isinstance(system, Carma):
        system.let_suspend()
    _line(system, timed)
    short = ["/bin/sh", "-c", f"sleep 5; echo >> {system.out}/done"]
    limit = {"time": "00:01:00"} if timed else {}
    begun = time.monotonic()
    for _ in range(BEHIND):
        system.submit(short, options=system.options(gpus=1, **limit))

    def done() -> int:
        return _read("done", system).count("\n")

    try:
        wait_for(lambda: done() == BEHIND, "", BEHIND_S)
    except TimeoutError:
        return f"no: {done()} of {BEHIND} in {BEHIND_S:.0f} s"
    return f"yes: {BEHIND} of {BEHIND}, after {time.monotonic() - begun:.0f} s"


def why(system: System) -> str:
    job = _line(system)
    time.sleep(3.0)
    return _why(system, job)


def reserved(system: System) -> str:
    system.says(system.command("reserve"))
    system.submit(_mark(system), options=system.options(gpus=1))
    started = _started(system, 1)
    return "no: accepted, but others' jobs start" if started else "yes"


def chosen(system: System) -> str:
    here, absent = system.options(kind="a100"), system.options(kind="h100")
    script = ["/bin/sh", "-c", f"echo >> {system.out}/chosen"]
    system.submit(script, options=here)
    wait_for(lambda: _read("chosen", system) != "", "the job on an A100", SOON_S)
    try:
        job = system.submit(script, options=absent)
    except subprocess.CalledProcessError as error:
        return f"yes: an H100 is refused: {said(error)}"
    time.sleep(2.0)
    if _read("chosen", system).count("\n") > 1:
        return "no: who asks for an H100 gets an A100"
    return f"no: who asks for an H100 waits: {_why(system, job)}"


def recurring(system: System) -> str:
    file = system.folder / "crontab"
    file.write_text(f"* * * * * echo >> {system.out}/recurred; sleep 100\n")
    system.says(system.command("cron", file=str(file)))
    wait_for(lambda: _read("recurred", system) != "", "its first run", MINUTE_S + 2 * SOON_S)
    time.sleep(MINUTE_S)
    runs = _read("recurred", system).count("\n")
    return "yes: one at a time" if runs == 1 else f"no: {runs} at a time"


def booked(system: System) -> str:
    with contextlib.suppress(Lacking):
        system.says(system.command("allow"))
    try:
        system.says_to(OTHER, system.command("book"))
    except subprocess.CalledProcessError as error:
        return f"no: {said(error)}"
    return "yes: within a limit"


def past(system: System) -> str:
    """Of jobs that have ended before the daemon was started anew."""
    for name in ("lost", "other"):
        words = ["/bin/sh", "-c", f": {name}; echo >> {system.out}/ended; exit 3"]
        system.submit(words, options=system.options(gpus=1))
    wait_for(lambda: _read("ended", system).count("\n") == 2, "both jobs", SOON_S)
    time.sleep(2.0)
    system.crash()
    found = system.says(system.command("past", word="lost"))
    return "yes" if found.count("FAILED") == 1 else f"no: {_short(found)}"


TASKS = (
    Task("environment", "the shell's environment reaches the job", environment),
    Task(
        "killed",
        "the daemon is killed (-9) 12 s after the first of 8 jobs of 25 s has started",
        partial(killed, count=8, seconds=25, after_s=12.0, within_s=90.0),
    ),
    Task(
        "killed short",
        "the same 6 s after the first of 20 jobs of 3 s (Slurm saves its state every five seconds)",
        partial(killed, count=20, seconds=3, after_s=6.0, within_s=40.0),
    ),
    Task("user", "another user's job runs as that user", other_user),
    Task("wide", "a job wider than the server is refused", too_wide),
    Task("array", f"an array of {ARRAY:,} tasks", array),
    Task("quota", "limits of GPUs, changed live, and by administrators only", quota),
    Task("sweep", "a sweep `a=1,2`", sweep),
    Task("here", "a command at the terminal, with its exit code", here),
    Task("inside", "a command in a running job", inside),
    Task(
        "behind",
        f"{BEHIND} jobs of 1 GPU and 5 s behind one of {GPUS}, {GPUS - 1} GPUs idle:"
        f" done in {BEHIND_S:.0f} s",
        behind,
    ),
    Task(
        "behind untimed",
        "the same, without time limits; CARMA may suspend jobs (`limits.preemption`)",
        partial(behind, timed=False),
    ),
    Task("why", "also: why that head of the line waits", why),
    Task(
        "reserved",
        "also: GPUs reserved at once for another user, without a database server",
        reserved,
    ),
    Task("chosen", "a kind of GPU is asked for; one that is not there is refused", chosen),
    Task("recurring", "a job every minute that takes longer: one at a time", recurring),
    Task("booked", "a user books a GPU, without an administrator's help then", booked),
    Task("past", "a failed job is found by a word after a restart, with no database server", past),
)


def _line(system: System, timed: bool = True) -> str:
    """A job that wants all GPUs, and waits for one that has one of them."""
    limit = {"time": "00:05:00"} if timed else {}
    system.submit(_mark(system), options=system.options(gpus=1, **limit))
    wait_for(lambda: _read("started", system) != "", "the job in its way", SOON_S)
    return system.submit(SHORT, options=system.options(gpus=GPUS, **limit))


def _mark(system: System) -> list[str]:
    return ["/bin/sh", "-c", f"echo >> {system.out}/started; sleep 60"]


def _started(system: System, most: int) -> int:
    """How many jobs have started, as soon as these have."""
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: _read("started", system).count("\n") >= most, "", SOON_S)
    return _read("started", system).count("\n")


def _why(system: System, job: str) -> str:
    return _short(system.says(system.command("why", job=job)))


def _read(name: str, system: System) -> str:
    file = system.out / name
    return file.read_text() if file.exists() else ""


def at_terminal(
    system: System, words: Sequence[str], enough: Callable[[str], bool]
) -> tuple[int | None, str]:
    """The exit code of a command on a terminal of its own, None if it was ended, and what it
    showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        env=system.env | {"TERM": "xterm"},
        cwd=system.folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = ""
    deadline = time.monotonic() + SOON_S
    try:
        while time.monotonic() < deadline and not enough(shown):
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536).decode(errors="replace")
    except OSError:  # it is over
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SOON_S)
    finally:
        code = process.poll()
        process.kill()
        process.wait()
        os.close(ours)
    return code, shown


if __name__ == "__main__":
    main("peers_tasks", measure)
