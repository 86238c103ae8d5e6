"""`doctor` checks this machine and the daemon, `--gpu` the GPU, and what packages add."""

from __future__ import annotations

import json as json_
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carma_client import Client
from carmad import installed, paths
from carmad.api.checks import CheckOut, verdict
from carmad.errors import CarmaError
from carmad.options import Option
from carmad.readable import clean
from carmad.threads import Threads
from cli import client, output
from cli.app import Json, option, takes
from cli.commands.config import check_settings
from cli.options import OUTPUT
from cli.problems import FORBIDDEN, Refused, Usage
from cli.text import Table, columns, in_style
from cli.verbs import Checks, load_added

if TYPE_CHECKING:
    from carmad.api.job import JobOut
    from carmad.api.server import DoctorOut
    from carmad.selftest.facts import Fact
    from carmad.selftest.report import Report
    from cli.text import Block

# Its own options: a package takes none of them.
OWN = frozenset(
    ("device", "estimators", "gpu", "help", "json", "models", "notify", "train", "write")
)
ADDED = {name: its for name, its in load_added("checks", Checks).items() if name not in OWN}


def _as_option(name: str) -> Option:
    return Option(f"--{name}", default=False, section=OUTPUT, help=ADDED[name].summary)


LOW_DISK_BYTES = 1 << 30
NOBODY = 65534  # an ordinary user, on every machine
OF_ROOT = frozenset(("HOME", "TMPDIR", "USER", "LOGNAME"))  # variables that are not another user's
PYTHON_WITHIN_S = 20.0
DRIVER_WITHIN_S = 20.0  # without persistence, it takes seconds to wake each GPU


@takes({name.replace("-", "_"): _as_option(name) for name in ADDED})
def doctor(
    gpu: Annotated[
        bool,
        option("--gpu", help="test an idle GPU instead: takes up to five minutes, needs no daemon"),
    ] = False,
    device: Annotated[
        str | None,
        option(
            "--device",
            metavar="GPU",
            help="with --gpu: its index, as in carma gpus, or its UUID",
        ),
    ] = None,
    write: Annotated[
        bool,
        option("--write", help="with --gpu: write the proposed settings to the settings file"),
    ] = False,
    estimators: Annotated[
        bool,
        option(
            "--estimators",
            help="compare instead each memory estimator with what jobs were measured to use",
        ),
    ] = False,
    models: Annotated[
        bool,
        option(
            "--models",
            help="list instead the models of policies and predictors, and their accuracy",
        ),
    ] = False,
    train: Annotated[bool, option("--train", help="train the models now (administrators)")] = False,
    notify: Annotated[
        bool,
        option(
            "--notify",
            help="check instead where messages about your jobs go, and send one as a test",
        ),
    ] = False,
    json: Json = False,
    **added: bool | None,
) -> int:
    """--estimators: BIAS is the median error, positive for estimates that are too high. Half of the
    errors are within P50, 95% within P95. THEN is P50 of the older half of these jobs, NOW of the
    newer half: whether it has become better. UNTAUGHT is P50 without what the estimator has learned
    from similar jobs. UNDER is the share of jobs that used more than the upper end of their
    estimate.

    --models: some come with CARMA; others are trained, and regularly retrained, on this server's
    past jobs. ERROR is measured on jobs left out of the training.

    --notify: the addresses are in ~/.config/carma/notify.conf, which only you may read: one of
    Apprise's on each line, such as mailtos://USER:PASSWORD@HOST or slack://TOKEN. Without that
    file, you get mail, if the server sends any.
    """
    if gpu:
        return run_selftest(device or "", json, write)
    if device or write:
        raise Usage("--device and --write need --gpu")
    if estimators or models or train:
        from cli.commands import models as learned

        return learned.show_estimators(json) if estimators else learned.show(train, json)
    if notify:
        from cli.messages import say_where, send_test

        say_where()
        return send_test()
    asked = next((its for name, its in ADDED.items() if added[name.replace("-", "_")]), None)
    found = list(asked.run() if asked else _all(ADDED.values()))
    answer: DoctorOut = {"schema": 1, "checks": found}
    if json:
        output.print_json(answer)
    else:
        output.show([check_table(answer)])
    return int(any(check["ok"] is False for check in found))


CHECK_STYLE = {True: ("ok", "green"), None: ("warn", "yellow"), False: ("FAIL", "bold red")}


def check_table(answer: DoctorOut) -> Table:
    return _table(
        (CHECK_STYLE[its["ok"]], its["name"], its["detail"], its["hint"] * (its["ok"] is not True))
        for its in answer["checks"]
    )


def _table(rows: Iterable[tuple[tuple[str, str], str, str, str]]) -> Table:
    """A word and its style, what it is about, what was found, and what to do."""
    made = Table(columns("- - -*"), header=False)
    for (word, style), name, detail, hint in rows:
        then = f"\n→ {clean(hint)}" if hint else ""
        made.add(in_style(word, style), name, clean(detail) + then)
    return made


def _all(added: Iterable[Checks]) -> Iterator[CheckOut]:
    if not paths.is_served() and (its := next((its for its in added if its.take_over()), None)):
        yield _python()
        yield from its.run()
        return
    yield from _local()
    try:
        yield from client.get("/v1/doctor")["checks"]
    except CarmaError as error:
        yield from _without_daemon()
        yield verdict("daemon", False, error.message, error.hint)
        return

    yield check_job()


def _local() -> Iterator[CheckOut]:
    yield _python()
    if error := installed.conflict():
        yield verdict("installation", False, error.message, error.hint)
    yield _driver()


def _without_daemon() -> Iterator[CheckOut]:
    """Checks that the daemon would otherwise report itself."""
    yield _settings()
    yield _disk()


def _python() -> CheckOut:
    version = ".".join(str(n) for n in sys.version_info[:3])
    if os.geteuid() == 0 and (why := _why_unusable()):
        hint = f"see `namei -lv {sys.executable}`; install CARMA and its Python in /opt"
        return verdict("python", False, f"only root can run {sys.executable}: {why}", hint)
    return verdict("python", sys.version_info >= (3, 11), f"{version} in {sys.prefix}")


def _run_as(uid: int, gid: int, code: str, within_s: float) -> subprocess.CompletedProcess[str]:
    """Run Python code as another user, for root. Raises OSError if root cannot become that user."""
    return subprocess.run(
        [sys.executable, "-I", "-B", "-c", f"{paths.FIND}; {code}"],
        user=uid,
        group=gid,
        extra_groups=[],
        cwd="/",
        env={name: its for name, its in os.environ.items() if name not in OF_ROOT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
    )


def _why_unusable() -> str:
    """Why an ordinary user cannot run `carma`; "" if they can, or if root cannot become one."""
    try:
        ran = _run_as(NOBODY, NOBODY, "import cli.main", PYTHON_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        return str(error)
    except OSError as error:
        return (error.strerror or str(error)) if error.filename else ""  # no name: not its exec
    return "" if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["it failed"])[-1]


def _driver() -> CheckOut:
    """In a thread: what hangs in the driver cannot be ended."""
    try:
        return Threads(1, "driver", DRIVER_WITHIN_S).submit(_ask_driver).result(DRIVER_WITHIN_S)
    except TimeoutError:
        detail = f"the driver has not answered for {DRIVER_WITHIN_S:g} s"
        return verdict("driver", False, detail, "does `nvidia-smi` answer? See `dmesg`")


def _ask_driver() -> CheckOut:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        hint = "see `nvidia-smi`; without GPUs: carma daemon start --emulated 3xA100-40GB"
        return verdict("driver", None, f"no NVIDIA driver answers: {error}", hint)
    return verdict("driver", count > 0, f"{version}, {count} GPUs", "see `nvidia-smi -L`")


def _settings() -> CheckOut:
    try:
        return verdict("settings", True, check_settings(None))
    except CarmaError as error:
        return verdict("settings", False, error.message, error.hint)


def _disk() -> CheckOut:
    path = Path(paths.state_dir())
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    detail = f"{free / (1 << 30):.1f} GiB free for {path}"
    return verdict("disk", free > LOW_DISK_BYTES or None, detail, "free space, or jobs are refused")


STYLE = {"holds": "green", "differs": "bold red", "cannot be told here": "dim"}


def run_selftest(device: str, json: bool, write: bool) -> int:
    """Returns 1 if anything differs."""
    from rich.console import Console

    from carmad import configfile
    from carmad.configwriting import settings_text, write_settings
    from carmad.selftest import run as selftest
    from carmad.selftest.facts import FACTS

    path = Path(paths.config_path())
    in_effect = configfile.load(path if path.exists() else None, os.environ)
    with Console(stderr=True).status("") as line:
        report = selftest.run(in_effect, device, told=lambda fact, _: line.update(fact.name))
    if json:
        print(report.to_json())
    else:
        output.show(findings_table(report, FACTS))
        if report.settings and not write:
            print("\nSettings that fit what was found (--write puts them into the file):\n")
            print(settings_text(report.settings).rstrip())
    if write and report.settings:
        write_settings(path, report.settings)
        output.note(f"{path} has {', '.join(report.settings)}; restart carmad to use them")
    return int(bool(report.differs))


def findings_table(report: Report, facts: Iterable[Fact]) -> list[Block]:
    follows = {fact.name: fact.otherwise for fact in facts}
    rows = []
    for its in report.findings:
        word = its.verdict.value
        hint = follows.get(its.fact, "") if word == "differs" else ""
        rows.append(((word, STYLE[word]), its.fact, its.detail, hint))
    head = (
        f"{report.gpu}, driver {report.driver}, CUDA {report.cuda}, as {report.user};"
        f" CARMA {report.carma}"
    )
    return [head, "", _table(rows)]


# Long enough that the daemon has looked at it again: a job that merely starts proves little.
RUNS = "echo began; sleep 2; echo ended"
BOTH = ["began", "ended"]
STARTS_WITHIN_S = 10.0  # then the server is busy
ENDS_WITHIN_S = 60.0
LOOK_S = 0.2
TRY_JOB = "import json; from cli.commands import doctor; print(json.dumps(doctor.try_job()))"


def check_job() -> CheckOut:
    """Root may not submit jobs to a server that others use: then an ordinary user does, or the one
    whose own daemon it is."""
    try:
        return try_job()
    except CarmaError as error:
        if os.geteuid() == 0 and isinstance(error, Refused) and error.code in FORBIDDEN:
            return _check_job_of_another()
        return _failure(error.message, error.hint)


def _check_job_of_another() -> CheckOut:
    its = Path(paths.socket_path()).stat()
    uid, gid = (its.st_uid, its.st_gid) if its.st_uid else (NOBODY, NOBODY)
    try:
        ran = _run_as(uid, gid, TRY_JOB, PYTHON_WITHIN_S + STARTS_WITHIN_S + 2 * ENDS_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _failure(f"uid {uid} could not submit one: {error}", "See `python` above.")
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["it failed"])[-1]
        return _failure(f"uid {uid} could not submit one: {why}", "See `python` above.")
    found: CheckOut = json_.loads(ran.stdout)
    return found


def try_job() -> CheckOut:
    """Raises CarmaError if the daemon does not take it."""
    with tempfile.TemporaryDirectory(prefix="carma-doctor-") as folder:
        return _run(Client(), Path(folder, "output"))


def _run(client: Client, file: Path) -> CheckOut:
    folder = str(file.parent)
    label = client.submit(
        ["/bin/sh", "-c", RUNS], gpus=0, name="carma-doctor", cwd=folder, stdout=str(file)
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
            done = BOTH[-1] in _lines(file)
            what = "nobody has noticed its end" if done else "it has not ended"
            return _failure(f"job {label} started {waited_s:.0f} s ago, and {what}", LOG)
        time.sleep(LOOK_S)
    return _end(job, _lines(file))


LOG = "The daemon's log may say why: journalctl -u carmad."


def _not_begun(client: Client, job: JobOut) -> CheckOut:
    label = job["label"]
    client.cancel(label)
    if job["code"] == "PD":
        detail = f"it waited for {STARTS_WITHIN_S:.0f} s and was cancelled: {job['reason']}"
        return verdict("job", None, detail, "Try again when the server is less busy.")
    return _failure(f"job {label} has not started: it is {job['state']}", LOG)


def _end(job: JobOut, lines: list[str]) -> CheckOut:
    label, exit = job["label"], job["exit"]
    if lines.count(BOTH[0]) > 1 or job["attempt"] > 1:
        starts = max(lines.count(BOTH[0]), job["attempt"])
        why = f": {job['failures'][0]['evidence']}" if job["failures"] else ""
        return _failure(f"job {label} was started {starts} times{why}", LOG)
    if exit is None or exit["code"] != 0:
        what = (exit["evidence"] or exit["cause"]) if exit else "no exit"
        return _failure(f"job {label} exits with 0, and CARMA says {job['state']}: {what}", LOG)
    if lines != BOTH:
        hint = "Is /tmp another one for jobs than here?"
        return _failure(f"job {label} ended as it should, but its output is not here", hint)
    return verdict(
        "job", True, "a small one started once, wrote its output, and ended as it should"
    )


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _failure(detail: str, hint: str) -> CheckOut:
    return verdict("job", False, detail, hint)
