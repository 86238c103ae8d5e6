"""Jobs suspended and resumed by a real daemon, on emulated GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attempts import a_cgroup
from tests.daemon import CARMA, NO_KERNELS, Carmad, Json, running, train, until
from tests.storm import SUSPENDS

NOTEBOOK = """
from carmad.gpu.emulated_job import visible_cards
(card,) = visible_cards()
card.attach()
card.allocate(8000)
card.launch(0.5, 0.3, 0.2)
print("computed", flush=True)
import time; time.sleep(1)
card.launch(0.0, 0.0, 0.0)
for line in iter(input, "end"):
    sum(range(1_000_000))
    card.launch(0.5, 0.3, 0.2)
    print("answer to", line, flush=True)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    moves = {"CARMA_SUSPEND__MOVES": "true", "CARMA_LIMITS__PREEMPTION": "suspend"}
    with running(tmp_path, "2xA100-40GB", **NO_KERNELS, **SUSPENDS, **moves) as carmad:
        yield carmad


def ask(daemon: Carmad, verb: str, id: int, **more: object) -> str:
    answer = daemon.post(f"/v1/{verb}", {"select": str(id), "user": None, **more})
    (result,) = answer["results"]
    assert result["ok"], result
    return str(result["message"])


def used_mib(daemon: Carmad) -> list[int]:
    return [gpu["memory_used_mib"] or 0 for gpu in daemon.gpus()]


def running_job(daemon: Carmad, **options: object) -> int:
    options = {"memory_mib": 20_000, "seconds": 4, "warmup": 0.1, **options}
    id = daemon.submit(*train(**options))
    daemon.await_state(id, "running")
    until(lambda: max(used_mib(daemon)) >= options["memory_mib"], "its memory")  # type: ignore[operator]
    return id


def steps(daemon: Carmad, id: int) -> list[int]:
    log = (daemon.work / f"carma-{id}.out").read_text()
    return [int(step) for step in re.findall(r"step +(\d+)/", log)]


def test_a_job_leaves_its_gpu_and_goes_on_where_it_was(daemon: Carmad) -> None:
    id = running_job(daemon)
    assert ask(daemon, "suspend", id) == "is being suspended"
    job = daemon.await_state(id, "suspended")
    assert (job["code"], job["gpus"], job["suspension"]["host_mib"]) == ("S", [], 20_000)
    assert job["actions"] == ["resume", "cancel"]
    until(lambda: sum(used_mib(daemon)) == 0, "its memory to be free")
    assert "it is suspended until somebody resumes it" in daemon.why(id)["headline"]
    before = steps(daemon, id)
    other = daemon.submit(*train(memory_mib=39_000, seconds=0.5, warmup=0.1), exclusive=True)
    assert daemon.ended(other)["state"] == "succeeded"
    assert steps(daemon, id) == before
    ask(daemon, "resume", id)
    job = daemon.ended(id)
    assert (job["state"], job["attempt"], job["notes"]) == ("succeeded", 1, job["notes"])
    assert steps(daemon, id)[-1] == 40 and steps(daemon, id) == sorted(set(steps(daemon, id)))
    states = [move["after"] for move in job["history"]]
    assert states[-5:] == ["suspending", "suspended", "resuming", "running", "succeeded"]


def test_a_job_that_is_suspended_for_another_can_be_kept_so(daemon: Carmad) -> None:
    id = running_job(daemon, memory_mib=4000, seconds=60)
    other = 1 - daemon.job(id)["gpus"][0]["index"]
    daemon.post(f"/v1/gpus/{other}/drain", {"reason": "dust"})
    urgent = daemon.submit(*train(memory_mib=30_000, seconds=60), exclusive=True, urgent=True)
    job = daemon.await_state(id, "suspended")
    assert job["actions"] == ["suspend", "cancel"]
    assert ask(daemon, "suspend", id) == "stays suspended"
    assert daemon.job(id)["actions"] == ["resume", "cancel"]
    for each in (id, urgent):
        ask(daemon, "cancel", each)


def test_it_moves_and_its_program_does_not_notice(daemon: Carmad) -> None:
    id = running_job(daemon)
    (gpu,) = daemon.job(id)["gpus"]
    ask(daemon, "move", id, gpus=[str(1 - gpu["index"])])
    until(lambda: [gpu["index"] for gpu in daemon.job(id)["gpus"]] == [1 - gpu["index"]], "it")
    until(lambda: used_mib(daemon)[1 - gpu["index"]] == 20_000, "its memory there")
    assert daemon.ended(id)["state"] == "succeeded"
    assert daemon.job(id)["attempt"] == 1


def test_a_drained_gpu_is_emptied_and_undrained(daemon: Carmad) -> None:
    id = running_job(daemon)
    (gpu,) = daemon.job(id)["gpus"]
    env = {**daemon.env, "CARMA_SOCKET": daemon.socket}
    words = [*CARMA, "drain", str(gpu["index"]), "--move"]
    subprocess.run(words, env=env, check=True, capture_output=True)
    until(lambda: used_mib(daemon)[1 - gpu["index"]] == 20_000, "its memory elsewhere")
    shown = subprocess.run(
        [*CARMA, "drain", "--undo", str(gpu["index"])],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == f"GPU {gpu['index']}: takes jobs\n"
    assert daemon.ended(id)["attempt"] == 1


def test_a_killed_daemon_s_successor_knows_who_is_suspended(daemon: Carmad) -> None:
    """And hears of one that ended meanwhile."""
    first, second = running_job(daemon), running_job(daemon, memory_mib=10_000)
    for id in (first, second):
        ask(daemon, "suspend", id)
        daemon.await_state(id, "suspended")
    daemon.kill()
    pids = daemon.processes()
    assert len(pids) >= 2
    daemon.start()
    assert {daemon.job(id)["state"] for id in (first, second)} == {"suspended"}
    daemon.cancel(second)
    assert daemon.ended(second)["state"] == "cancelled"
    ask(daemon, "resume", first)
    assert (daemon.ended(first)["state"], daemon.job(first)["attempt"]) == ("succeeded", 1)


def test_what_is_under_way_when_the_daemon_is_killed_is_finished_by_the_next(
    daemon: Carmad,
) -> None:
    id = running_job(daemon, seconds=8)
    for verb, state in (("suspend", "suspended"), ("resume", "running")):
        ask(daemon, verb, id)
        daemon.kill()  # at whatever point
        daemon.start()
        daemon.await_state(id, state)
    assert (daemon.ended(id)["state"], daemon.job(id)["attempt"]) == ("succeeded", 1)


def test_a_killed_daemons_successor_thaws_what_that_one_had_frozen(tmp_path: Path) -> None:
    """Or had not yet; and cancels it, whatever its own daemon had come to."""
    with a_cgroup() as group:
        cgroups = {"CARMA_HOST__CGROUP": str(group)}
        with running(tmp_path, "2xA100-40GB", **NO_KERNELS, **SUSPENDS, **cgroups) as daemon:
            id = running_job(daemon, seconds=8)
            frozen = group / f"carma-job-{id}-1" / "cgroup.freeze"
            for verb, state in (("suspend", "suspended"), ("resume", "running")):
                ask(daemon, verb, id)
                daemon.kill()  # at whatever point
                daemon.start()
                daemon.await_state(id, state)
                assert frozen.read_text() == f"{int(state == 'suspended')}\n"
            ask(daemon, "suspend", id)
            daemon.kill()
            daemon.start()
            daemon.cancel(id)
            assert daemon.ended(id)["state"] == "cancelled"


def test_a_suspended_job_survives_the_loss_of_its_gpu(daemon: Carmad) -> None:
    id = running_job(daemon)
    (gpu,) = daemon.job(id)["gpus"]
    ask(daemon, "suspend", id)
    daemon.await_state(id, "suspended")
    ask_drain = {"reason": "fell off the bus"}
    daemon.post(f"/v1/gpus/{gpu['index']}/drain", ask_drain)
    ask(daemon, "resume", id)
    until(lambda: used_mib(daemon)[1 - gpu["index"]] == 20_000, "its memory elsewhere")
    assert daemon.ended(id)["state"] == "succeeded"


def test_a_suspended_job_survives_that_its_gpu_vanishes_for_a_while(daemon: Carmad) -> None:
    id = running_job(daemon)
    (gpu,) = daemon.job(id)["gpus"]
    ask(daemon, "suspend", id)
    daemon.await_state(id, "suspended")
    card = daemon.cards()[gpu["index"]]
    card.set_lost(True)
    until(lambda: daemon.gpus()[gpu["index"]]["state"] == "faulty", "its GPU to be missed")
    card.set_lost(False)
    ask(daemon, "resume", id)
    assert (daemon.ended(id)["state"], daemon.job(id)["attempt"]) == ("succeeded", 1)


def test_an_idle_session_is_suspended_and_resumes_when_asked(tmp_path: Path) -> None:
    idle = {"CARMA_INTERACTIVE__IDLE_S": "1", "CARMA_LIMITS__PREEMPTION": "suspend"}
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS, **SUSPENDS, **idle) as daemon:
        session = subprocess.Popen(
            [*CARMA, "run", sys.executable, "-c", NOTEBOOK],
            env={**os.environ, **daemon.env, "CARMA_SOCKET": daemon.socket},
            cwd=daemon.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert session.stdin and session.stdout
        assert session.stdout.readline() == "computed\n"
        daemon.await_state(1, "suspended")
        batch = running_job(daemon, seconds=3)
        ask(daemon, "resume", 1)
        print("me", file=session.stdin, flush=True)
        assert session.stdout.readline() == "answer to me\n"
        moves = [move["after"] for move in daemon.job(batch)["history"]]
        assert "suspended" in moves or daemon.job(batch)["state"] == "succeeded"
        print("end", file=session.stdin, flush=True)
        _, said = session.communicate()
        assert session.returncode == 0
        assert "job 1 was suspended because it had not used its GPUs" in said
        ended: Json = daemon.ended(batch)
        assert (ended["state"], ended["attempt"]) == ("succeeded", 1)
