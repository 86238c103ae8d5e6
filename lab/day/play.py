"""Plays the day on a daemon of its own, with six real users of this machine and real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from carmad.attempt.environment import ATTEMPT_VARIABLE
from carmad.attempt.marks import Marks
from carmad.attempt.proc import processes
from carmad.core.jobs.states import ENDED
from lab.day.figures import GPUS, Played, Span
from lab.day.workload import Submission
from tests.api_server import request
from tests.waiting import until

ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
PREFIX = "wk_"  # of the users' names on this machine
EVERY_S = 5.0
LONGEST_S = 1500.0
JOB = Path(__file__).with_name("job.py")
PYTHON = "/usr/bin/python3"  # every user may run it, which they may not where root's own is
CARMA = """#!{python}
import sys
sys.path[:0] = [{checkout!r}, {packages!r}]
from cli.main import main
sys.exit(main())
"""
OVER = frozenset(state.value for state in ENDED)
Json = dict[str, Any]


def add_users(names: Sequence[str]) -> None:
    """Those of them that this machine does not have. Needs root."""
    for name in names:
        with contextlib.suppress(KeyError):
            pwd.getpwnam(PREFIX + name)
            continue
        subprocess.run(["useradd", "--no-create-home", PREFIX + name], check=True)


class Day:
    """`checkout`: whose `carmad` and `carma`, in its `.venv`; `settings`: lines of a settings file.
    The folder gets the log, the users' homes, and what was asked every `EVERY_S`."""

    def __init__(self, folder: Path, checkout: Path, settings: str) -> None:
        self.folder = folder
        self.samples: list[Json] = []
        self._checkout = checkout
        self._socket = str(folder / "s")
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "carma.toml").write_text(settings)
        packages = next((checkout / ".venv/lib").glob("python*")) / "site-packages"
        self._client = folder / "carma"
        program = CARMA.format(python=PYTHON, checkout=str(checkout), packages=str(packages))
        self._client.write_text(program)
        self._client.chmod(0o755)
        self._jobs: dict[str, Submission] = {}  # by label, of the array for its tasks
        self._sessions: list[subprocess.Popen[str]] = []
        self.began = 0.0  # Unix s

    def play(self, day: Sequence[Submission]) -> list[Played]:
        bin, state = self._checkout / ".venv/bin", self.folder / "state"
        words = [str(bin / "carmad"), "--config", str(self.folder / "carma.toml")]
        words += ["--state-dir", str(state), "--socket", self._socket]
        words += ["--emulated", f"{GPUS}xA100-40GB", "--log-file", str(self.folder / "log")]
        daemon = subprocess.Popen(words, env=ENV | {"HOME": "/root"}, start_new_session=True)
        try:
            until(self._is_up, "carmad to come up")
            self.began = time.time()
            player = threading.Thread(target=self._submit, args=(day,))
            player.start()
            self._watch(player)
            played = self._read()
            # Tasks that were cancelled together are one row.
            if missing := {job.name for job in day} - {each.job.name for each in played}:
                raise RuntimeError(f"not submitted: {', '.join(sorted(missing))}")
            return played
        finally:
            self._end(daemon, state)

    def _is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._get("/v1/gpus")["gpus"])
        return False

    def _get(self, path: str) -> Json:
        status, answer = request(self._socket, "GET", path, None)
        if status != 200:
            raise RuntimeError(f"{path}: {answer}")
        return answer

    # -- its users

    def _submit(self, day: Sequence[Submission]) -> None:
        due = [(each.at_s, n, each, False) for n, each in enumerate(day)]
        due += [
            (each.cancelled_at_s, n, each, True)
            for n, each in enumerate(day)
            if each.cancelled_at_s is not None
        ]
        labels: dict[int, str] = {}
        for at, n, job, cancels in sorted(due, key=lambda each: each[:2]):
            time.sleep(max(0.0, self.began + at - time.time()))
            if job.kind == "interactive":
                self._sessions.append(self._run_session(job))
            elif cancels:
                self._carma(job.user, "cancel", labels[n], rc=None)  # it may have ended
            else:
                labels[n] = self._carma(
                    job.user, "submit", "--parsable", *_words(job), *self._argv(job)
                )
                self._jobs[labels[n]] = job

    def _argv(self, job: Submission) -> list[str]:
        words = [PYTHON, str(JOB), str(self._checkout)]
        if job.is_hung:
            return [*words, "hang", str(job.memory_mib)]
        words += ["--model", job.name, "--memory-mib", str(job.memory_mib), "--load", str(job.load)]
        words += ["--seconds", str(job.run_s), "--dram", str(job.dram)]
        return [*words, "--grow", str(job.growth_mib)] if job.growth_mib else words

    def _as(self, user: str) -> Json:
        its = pwd.getpwnam(PREFIX + user)
        home = self.folder / "home" / user
        if not home.is_dir():
            home.mkdir(parents=True)
            os.chown(home, its.pw_uid, its.pw_gid)
        env = ENV | {"HOME": str(home), "USER": its.pw_name, "LOGNAME": its.pw_name}
        env |= {"CARMA_SOCKET": self._socket}
        return {
            "user": its.pw_uid,
            "group": its.pw_gid,
            "extra_groups": [],
            "cwd": home,
            "env": env,
        }

    def _carma(self, user: str, *words: str, rc: int | None = 0) -> str:
        argv = [str(self._client), *words]
        ran = subprocess.run(
            argv, **self._as(user), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if rc not in (None, ran.returncode):
            raise RuntimeError(f"{argv}: {ran.stderr}")
        return ran.stdout.strip()

    def _run_session(self, job: Submission) -> subprocess.Popen[str]:
        """`carma run` on a terminal of its own."""
        self._jobs[job.name] = job
        words = " ".join([str(self._client), "run", *_words(job), *self._argv(job)])
        options = self._as(job.user)
        return subprocess.Popen(
            ["script", "--quiet", "--command", words, "/dev/null"],
            **(options | {"env": options["env"] | {"TERM": "xterm"}}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    # -- what is seen

    def _watch(self, player: threading.Thread) -> None:
        while time.time() - self.began < LONGEST_S:
            began = time.time()
            rows = self._get("/v1/jobs?limit=1000")["jobs"]
            starts = self._get("/v1/starts")["starts"]
            waiting = [row for row in rows if row["state"] == "queued" and row["position"]]
            waiting.sort(key=lambda row: int(row["position"]))
            asked = dict.fromkeys(row["label"] for row in [*waiting[:3], *waiting[-1:]])
            self.samples.append(
                {
                    "at": began - self.began,
                    "starts": starts,
                    "why": {label: self._get(f"/v1/jobs/{label}/why") for label in asked},
                }
            )
            is_over = all(row["state"] in OVER for row in rows)
            if (
                is_over
                and not player.is_alive()
                and all(s.poll() is not None for s in self._sessions)
            ):
                return
            time.sleep(max(0.5, EVERY_S - (time.time() - began)))
        raise RuntimeError(f"the day has not ended after {LONGEST_S:g} s")

    def _read(self) -> list[Played]:
        (self.folder / "samples.json").write_text(json.dumps(self.samples))
        found: list[Json] = []
        before = ""
        while True:
            page = self._get(f"/v1/history?attempts=true&limit=400{before}")
            found += page["jobs"]
            if not page["more"]:
                break
            before = f"&before={min(job['id'] for job in page['jobs'])}"
        return [self._played(row) for row in found]

    def _played(self, row: Json) -> Played:
        job = self._jobs.get(row["label"].partition("_")[0]) or self._jobs[row["name"]]
        attempts = tuple(
            Span(
                self._at(each["started_at"]),
                self._at(each["ended_at"]),
                tuple(each["gpus"]),
                each["cause"] == "gpu_oom",
            )
            for each in row["attempts"]
            if each["started_at"]
        )
        submitted, ended = self._at(row["submitted_at"]), self._at(row["ended_at"])
        done = row["state"] == "succeeded"
        return Played(job, row["label"], submitted, attempts, ended, done)

    def _at(self, text: str) -> float:
        return datetime.fromisoformat(text).timestamp() - self.began

    def _end(self, daemon: subprocess.Popen[bytes], state: Path) -> None:
        """Leaves no process behind."""
        daemon.terminate()
        daemon.wait(30)
        marks, found = Marks(ATTEMPT_VARIABLE.encode()), processes()
        marks.ask(found)
        for pid, at in found.items():
            if (marks.value(pid, at) or b"").startswith(f"{state}/".encode()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
        shutil.rmtree(state, ignore_errors=True)


def _words(job: Submission) -> list[str]:
    words = ["-J", job.name, "-G", str(job.gpus)]
    words += ["--gpu-mem", f"{job.declared_mib}M"] if job.declared_mib else []
    words += ["--time", str(job.limit_min)] if job.limit_min else []
    return [*words, "--array", f"1-{job.copies}"] if job.copies else words
