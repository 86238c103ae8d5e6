"""What jobs ask for of a GPU's memory, and what they use: what is said of it, and what follows."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from carma_testing import FakeServer, a_job, a_spec
from carma_testing.builders import changed
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate, Usage
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Estimated, Submitted
from carmad.core.rules import promises
from carmad.store.codec import notice_rows
from tests.daemon import Carmad, Json, running, train
from tests.waiting import until

GIB = 1024
MEASURED = Estimate(29_800, "history", 28_700, 30_900, notes=("n=30",))


def ended(asked_mib: int, used_mib: int, *others: Estimate, **changes: Any) -> Job:
    estimate = Estimate(asked_mib, "declared", firm=True, others=others)
    job = a_job(
        spec=a_spec(memory_mib=asked_mib),
        state=JobState.SUCCEEDED,
        estimate=estimate,
        usage=Usage(peak_mib=used_mib),
    )
    return changed(job, **changes)


def test_who_asked_for_too_little_is_told_what_to_ask_for() -> None:
    said = promises.advise(ended(4 * GIB, 30_000, MEASURED), 80 * GIB)
    assert said == "asked 4G, used 29.3G (p95 of its runs 29.1G): ask 31G"
    first = promises.advise(ended(4 * GIB, 30_000), 80 * GIB)
    assert first == "asked 4G, used 29.3G: ask 39G", "a third more, after a single run"
    assert promises.advise(ended(4 * GIB, 39_000), 40 * GIB).endswith("ask 40G"), "what there is"
    failed = ended(4 * GIB, 30_000, state=JobState.FAILED)
    assert promises.advise(failed, 80 * GIB) == first


def test_who_asked_for_far_too_much_is_told_that_others_had_room() -> None:
    said = promises.advise(ended(30 * GIB, 4 * GIB), 40 * GIB)
    assert said == "asked 30G, used 4G: ask 6G, and others can run beside it"
    for job in (
        ended(30 * GIB, 25 * GIB),
        ended(3 * GIB, GIB),  # no job starts in what is left
        ended(30 * GIB, 0),
        ended(30 * GIB, 4 * GIB, state=JobState.FAILED),  # who knows what it would have used
        ended(30 * GIB, 4 * GIB, spec=a_spec(memory_mib=30 * GIB, exclusive=True)),
        ended(30 * GIB, 4 * GIB, spec=a_spec(), estimate=None),
    ):
        assert promises.advise(job, 40 * GIB) == ""


def test_the_next_one_is_told_at_once() -> None:
    said = promises.foresee(4 * GIB, MEASURED, 80 * GIB)
    assert said == (
        "asked 4G, and its earlier runs used 29.1G (p95, n=30): ask 31G, or --gpu-mem auto"
    )
    assert promises.foresee(31 * GIB, MEASURED, 80 * GIB) == ""


def test_sizes_are_written_as_one_asks_for_them() -> None:
    sizes = (512, 1500, 4096, 30_003)
    assert [promises.size(mib) for mib in sizes] == ["512M", "1.5G", "4G", "29.3G"]
    assert [promises.round_up(mib) for mib in sizes] == [512, 1536, 4096, 30_720]


# -- in the core


def test_the_message_at_a_job_s_end_says_what_to_ask_for() -> None:
    server = FakeServer(gpus=1)
    id = server.submit(memory_mib=4 * GIB, notify="end")
    server.run_kernel(id, 30_000)
    server.pass_time(3)
    (overrun,) = server.job(id).notes
    assert overrun.startswith("uses 30000 MiB")
    server.exit(id)
    assert server.last(id).notes == ("asked 4G, used 29.3G: ask 39G",)
    (row,) = [row for step in server.steps for row in notice_rows(step)]
    assert row["words"] == "succeeded; asked 4G, used 29.3G: ask 39G"


def test_a_measured_promise_leaves_a_gpu_that_can_take_it() -> None:
    server, id = FakeServer(gpus=1), JobId(1)
    auto = Estimate(39_000, "history", 30_000, 51_000, firm=True, notes=("n=1",))
    server.tell(Submitted(server.now, id, (a_spec(memory_mib=0),)), Estimated(server.now, id, auto))
    assert server.last(id).need == replace(auto, high=40_960)


# -- with the daemon and the command


def grower(mib: int) -> str:
    """A shell's words: it holds so much until there is a file `go`, and then succeeds."""
    words = shlex.join(train(memory_mib=mib, sm=0.3, seconds=1000, warmup=0.1))
    return f"{words} & sleep 1; until [ -e go ]; do sleep 0.05; done; kill $!"


def submit(daemon: Carmad, *words: str) -> tuple[int, list[str]]:
    answer = json.loads(daemon.carma("submit", "--json", *words))
    return answer["id"], answer["warnings"]


def let_go(daemon: Carmad, id: int) -> Json:
    (daemon.work / "go").touch()
    ended = daemon.ended(id)
    (daemon.work / "go").unlink()
    return ended


def holds(daemon: Carmad, id: int, mib: int) -> None:
    until(lambda: (daemon.job(id)["memory"]["peak_mib"] or 0) >= mib, "its peak")


def test_what_a_job_should_ask_for_is_said_and_used(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_ESTIMATOR="auto") as daemon:
        script = grower(7_000)
        first, said = submit(daemon, "--gpu-mem", "4G", "--wrap", script)
        assert said == []
        holds(daemon, first, 7_000)
        let_go(daemon, first)
        advice = "asked 4G, used 6.8G: ask 10G"
        assert advice in daemon.carma("show", str(first))
        assert advice in daemon.carma("why", str(first))

        again = ("--hold", "--wrap", script)
        _, said = submit(daemon, "--gpu-mem", "4G", *again)
        told = "asked 4G, and its earlier runs used 6.8G (p95, n=1): ask 10G, or --gpu-mem auto"
        assert said == [told]
        assert (
            told
            in json.loads(daemon.carma("submit", "--json", "--dry-run", "--gpu-mem", "4G", *again))[
                "warnings"
            ]
        )
        _, said = submit(daemon, "--gpu-mem", "30G", *again)
        assert said[0].endswith("ask 10G, and others can run beside it, or --gpu-mem auto")
        auto, said = submit(daemon, "--gpu-mem", "auto", *again)
        assert said == [
            "its earlier runs used 6.8G (p95, n=1): it asks for 9.1G, if its script is still the"
            " same"
        ]
        job = daemon.await_state(auto, "queued")
        assert job["memory"]["estimate_source"] == "history" and job["estimate"]["firm"]
        assert "(history n=1) per GPU" in daemon.carma("show", str(auto))
        words = ("--json", "--gpu-mem", "auto", "--wrap", script)
        guesses = json.loads(daemon.carma("estimate", *words))["estimates"]
        assert [one["source"] for one in guesses if one["chosen"]] == ["history"]
        assert next(one for one in guesses if one["source"] == "declared")["why"]
        new, said = submit(daemon, "--gpu-mem", "auto", "--hold", "--wrap", "exit 0")
        assert said == ["no earlier run of it was measured: its memory need is estimated"]
        assert daemon.await_state(new, "queued")["memory"]["estimate_mib"] is None
