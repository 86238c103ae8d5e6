"""Checks of health, energy, the order and nearness of GPUs, and the kernel's OOM killer."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from carmad import units
from carmad.attempt import exits
from carmad.attempt.clues import classify
from carmad.attempt.launcher import Launcher, attempt_dir
from carmad.core.jobs.attempt import Attempt, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import Active, JobState
from carmad.gpu.driver import Board, count_boards, islands, open_board
from carmad.gpu.health import EVERY_S, SLOWED_FOR_S, Checkup
from carmad.selftest.bench import Bench, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown

NEWS_WITHIN_S = 3.0
ENERGY_OFF = 0.15  # power is an average over a second or less, read now and then
POWER_PERIOD_S = 0.1
MJ = 1000


def kills(bench: Bench) -> Seen:
    missing = dict(bench.source.capabilities().missing)
    if "health" in missing:
        return unknown(f"the driver tells of no Xids: {missing['health']}")
    bench.source.health()  # what was before
    busy = bench.probe()
    busy.begin("spin", s=60)
    time.sleep(bench.busy_s / 2)
    busy.kill()
    faulty = bench.probe()
    try:
        faulty.ask("fault")
        return unknown("an illegal address was no error")
    except ProbeFailed:
        faulty.end()
    time.sleep(NEWS_WITHIN_S)
    news = [each for each in bench.source.health() if each.gpu == bench.gpu.id]
    if not news:
        return unknown("an illegal address caused no Xid: the driver tells this process of none")
    drained = [each.message for each in news if each.drain]
    said = "; ".join(each.message for each in news)
    return judge(
        not drained,
        f"a busy process was killed, and one made a fault: {said}",
        xids=len(news),
        would_drain="; ".join(drained),
    )


def conditions(bench: Bench) -> Seen:
    """Also which of the questions the driver does not answer for this GPU."""
    checkup, now = Checkup(bench.gpu.parent or bench.gpu.id), time.time()
    found = list(checkup.conditions(now))
    bench.probe().begin("spin", s=2 * bench.busy_s)
    time.sleep(bench.busy_s / 2)
    # As if the load had lasted: what slows the GPU down is a condition only after a minute.
    for after_s in (EVERY_S, EVERY_S + SLOWED_FOR_S):
        found += checkup.conditions(now + after_s)
    said = "; ".join(dict.fromkeys(each.message for each in found))
    untold = ", ".join(checkup.untold)
    return judge(
        not found,
        said or "idle and busy, nothing is wrong" + (f"; not told: {untold}" if untold else ""),
        untold=untold or None,
    )


def energy(bench: Bench) -> Seen:
    probe = bench.probe()
    first = bench.sample()
    if first.energy_mj is None or first.power_w is None:
        return unknown("the GPU does not count energy, or does not tell its power")
    probe.begin("spin", s=3 * bench.busy_s)
    time.sleep(bench.busy_s / 2)  # let the average settle
    last = begun = bench.sample()
    begun_late_s = last_late_s = time.time() - begun.at  # by how much the counter was read later
    joules = 0.0
    for sample in bench.samples(2 * bench.busy_s, POWER_PERIOD_S):
        last_late_s = time.time() - sample.at
        joules += (sample.at - last.at) * ((sample.power_w or 0.0) + (last.power_w or 0.0)) / 2
        last = sample
    counted = ((last.energy_mj or 0) - (begun.energy_mj or 0)) / MJ
    seconds = last.at - begun.at
    uncertain = (begun_late_s + last_late_s) / seconds
    return judge(
        abs(counted - joules) <= (ENERGY_OFF + uncertain) * joules,
        f"in {seconds:.1f} s, {counted:.0f} J were counted; power adds up to {joules:.0f} J",
        counted_j=counted,
        integrated_j=joules,
        mean_power_w=joules / seconds,
        idle_power_w=first.power_w,
    )


def order(bench: Bench) -> Seen:
    boards = _boards()
    if len(boards) < 2:
        return unknown("there is one GPU")
    buses = [board.bus for board in boards]
    said = ", ".join(f"{domain:x}:{bus:02x}:{device:02x}" for domain, bus, device in buses)
    return judge(buses == sorted(buses), f"NVML lists them in this order: {said}")


def nearness(bench: Bench) -> Seen:
    """Beside what `nvidia-smi topo -m` shows."""
    boards = [board.id for board in _boards()]
    if len(boards) < 2:
        return unknown("there is one GPU")
    if shutil.which("nvidia-smi") is None:
        return unknown("nvidia-smi is not on PATH")
    asked = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30)
    links = links_of(asked.stdout, len(boards))
    if links is None:
        return unknown("nvidia-smi topo -m shows no matrix that can be read")
    linked = {n for pair in links for n in pair}
    found = islands(boards)
    ours = [found[gpu] for gpu in boards]
    apart = [pair for pair in links if ours[pair[0]] != ours[pair[1]]]
    # Where only some are linked, the others are no part of their islands.
    taken = {ours[n] for n in linked}
    strangers = [n for n in range(len(boards)) if n not in linked and ours[n] in taken]
    said = ", ".join(f"GPU {n}: {name or 'the only island'}" for n, name in enumerate(ours))
    return judge(not apart and not strangers, said, links=len(links), islands=len(set(ours)))


def links_of(matrix: str, count: int) -> list[tuple[int, int]] | None:
    """The pairs that are connected by NVLink, of the output of `nvidia-smi topo -m`."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)
    rows = re.findall(r"^GPU(\d+)\s+(.+)$", plain, re.MULTILINE)
    cells = {int(number): words.split()[:count] for number, words in rows}
    if sorted(cells) != list(range(count)) or any(len(row) < count for row in cells.values()):
        return None
    return [
        (one, other)
        for one in range(count)
        for other in range(one + 1, count)
        if re.fullmatch(r"NV\d+", cells[one][other])
    ]


def _boards() -> list[Board]:
    found = map(open_board, range(count_boards()))
    return [board for board in found if isinstance(board, Board)]


# -- the OOM killer, as noticed by a job's own launcher and supervisor

LIMIT_MIB = 64
ENDS_WITHIN_S = 30.0
GREEDY = "taken = b'x' * (512 << 20)"


def host_oom(bench: Bench) -> Seen:
    if not units.available():
        return unknown("this process cannot ask systemd for a unit: jobs run without one")
    folder = bench.folder / "job"
    folder.mkdir()
    launcher = Launcher(folder / "state", systemd=True, kill_grace_s=1.0)
    job = _job(folder)
    launcher.launch(job, {"PATH": os.environ.get("PATH", os.defpath)})
    try:
        return _await_kill(job, folder)
    finally:
        launcher.stop(job, 0.0)


def _job(folder: Path) -> Job:
    """With a number that no daemon's job has."""
    spec = JobSpec(
        argv=(sys.executable, "-c", GREEDY),
        user=getpass.getuser(),
        uid=os.geteuid(),
        gid=os.getegid(),
        cwd=str(folder),
        name="selftest",
        host_memory_mib=LIMIT_MIB,
    )
    number = JobId(10**9 + os.getpid())
    status = Active(JobState.STARTING, Attempt(1, ()))
    return Job(number, spec, status, time.time())


def _await_kill(job: Job, folder: Path) -> Seen:
    deadline = time.monotonic() + ENDS_WITHIN_S
    record = None
    while record is None and time.monotonic() < deadline:
        time.sleep(0.05)
        record = exits.read_exit(attempt_dir(folder / "state", job.id, job.attempt))
    if record is None:
        return unknown(f"the job has not ended in {ENDS_WITHIN_S:g} s")
    if record.code == 0:
        return unknown("the job took more memory than its cgroup may have, and was not killed")
    kills = record.host_oom_kills
    end = classify(record.code, record.signal, "", host_oom=None if kills is None else kills > 0)
    return judge(
        bool(kills),
        f"a job that took more than {LIMIT_MIB} MiB ended with the cause {end.cause.value}",
        oom_kills=kills,
        cause=end.cause.value,
    )
