"""Terminal output, rendered from the API's answers alone."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import pytest

from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.layout import Stage
from cli import overview, render
from cli import text as cli_text
from cli.commands import doctor, past
from cli.output import uses_color
from tests import fake_daemon as fake
from tests.terminal import plain


@pytest.mark.parametrize(
    ("mib", "text"), [(None, "-"), (0, "0M"), (1023, "1023M"), (1024, "1.0G"), (83968, "82.0G")]
)
def test_memory(mib: int | None, text: str) -> None:
    assert cli_text.memory(mib) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (7, "0:07"), (3723, "1:02:03"), (176_523, "2-01:02:03"), (-1, "0:00")],
)
def test_clock(seconds: float | None, text: str) -> None:
    assert cli_text.clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (12, "12 s"), (300, "5 min"), (12600, "3.5 h"), (2e5, "2.3 days")],
)
def test_span(seconds: float | None, text: str) -> None:
    assert cli_text.span(seconds) == text


def test_bar() -> None:
    assert cli_text.bar(0.5, 4) == "██░░"
    assert cli_text.bar(None, 4) == "░░░░"
    assert cli_text.bar(7.0, 4, ascii_only=True) == "####"


def test_queue_has_the_columns_people_know() -> None:
    header, running, waiting = plain(
        [overview.job_table([fake.job(), fake.waiting()])]
    ).splitlines()
    assert header.split() == (
        ["JOBID", "NAME", "USER", "ST", "TIME", "LIMIT", "GPUS", "VRAM(USED/EST)", "GPU(REASON)"]
    )
    assert running.split() == [
        "42",
        "train",
        "alice",
        "R",
        "50:00",
        "2:00:00",
        "1",
        "9.1G/11.0G±0.8",
        "0",
    ]
    assert waiting.split(None, 8)[-1] == "(GpuMemory: GPU1 30.0G free, need 82.0G)"


def test_a_stranger_s_job_is_shown_as_far_as_it_is_known() -> None:
    theirs = fake.private(fake.job(user="bob"))
    every = tuple(overview.COLUMNS)
    assert "bob" in plain([overview.job_table([theirs], every)])
    assert "bob" in plain(render.show(theirs))


def test_a_narrow_terminal_cuts_names_and_keeps_numbers() -> None:
    text = plain([overview.job_table([fake.job(name="n" * 60)])], width=80)
    assert "9.1G/11.0G" in text and "2:00:00" in text
    assert len(text.splitlines()) == 2


def test_a_batch_that_may_be_split() -> None:
    whole, split = fake.job(batch_size=64), fake.job(batch_size=64, accumulation=4)
    assert "batch        64 per GPU\n" in plain(render.show(whole))
    assert "batch        64 per GPU, in 4 parts of 16\n" in plain(render.show(split))
    assert "batch " not in plain(render.show(fake.job()))


def test_a_deadline_is_shown_with_what_becomes_of_it() -> None:
    at = {"deadline_at": "2026-11-20T12:00:00.000Z"}
    text = "predicted to miss its deadline by 40 min (would start in about 2 h)"
    outlook = {"starts_at": None, "ends_at": None, "late_s": 2400.0, "text": text}
    waits = fake.waiting(**at, outlook=outlook)
    assert text in plain(render.show(waits))
    assert text in plain(render.why(fake.WHY | {"job": waits}))
    assert "missed by 10 min" in plain(render.show(fake.ended(**at, late_s=600.0)))
    assert render.deadline(fake.ended(**at, late_s=-600.0)).endswith("  met")
    assert "deadline" not in plain(render.show(fake.waiting()))
    assert "DEADLINE" in plain([overview.job_table([waits], ("jobid", "deadline"))])


def test_a_layout_and_stage_times_are_shown_as_they_are_written() -> None:
    stage = asdict(Stage(2, 0.02, weights_mib=320.0))
    layout = {"stages": [stage, asdict(Stage())], "allreduce": "tree"}
    times = asdict(StageTimes(0.01, 0.037, 0.076, gpu="NVIDIA A100"))
    text = plain(render.show(fake.job(layout=layout, stage_times=[times])))
    assert "2x forward=0.02s weights=320.0M\n" in text
    assert "all-reduce: tree" in text
    assert "load=0.01s forward=0.037s backward=0.076s" in text
    assert "gpu=NVIDIA A100" in text


def test_the_signal_before_the_time_limit_is_shown() -> None:
    usr2, realtime = ({"signum": number, "before_s": 60.0} for number in (12, 40))
    assert "signal       USR2, 1:00 before the time limit\n" in plain(
        render.show(fake.job(warn=usr2))
    )
    assert "40, 1:00 before the time limit" in plain(render.show(fake.job(warn=realtime)))
    assert "signal" not in plain(render.show(fake.job(warn=None)))


@pytest.mark.parametrize(
    ("guaranteed", "most", "text"),
    [
        (12_288, 31_744, "memory limits  guaranteed 12.0G, may use 31.0G"),
        (None, 31_744, "memory limits  may use 31.0G"),
    ],
)
def test_what_a_job_is_guaranteed_and_may_use_is_shown(
    guaranteed: int | None, most: int, text: str
) -> None:
    limits = {"guaranteed_mib": guaranteed, "most_mib": most}
    assert text in plain(render.show(fake.job(memory=fake.job()["memory"] | limits)))
    assert "memory limits" not in plain(render.show(fake.job())), "an older daemon"


def test_an_ended_job_says_how() -> None:
    text = plain(render.show(fake.ended(code=None, signal=9)))
    assert "0:9  failure: ValueError: no such dataset" in text
    assert plain([overview.job_table([fake.ended(code=3)])]).endswith("0")


def test_what_never_ran_has_no_exit_code() -> None:
    how = fake.ended(code=1)["exit"] | {"cause": "launch_failed", "code": None}
    job = fake.ended(code=1) | {"exit": how}
    assert cli_text.exit_code(job["exit"]) == "-"
    assert "exit         launch failed: ValueError" in plain(render.show(job))


def test_a_job_s_troubles_are_told_by_show_and_why() -> None:
    """For its owner: earlier attempts with their neighbours, notes, what may help."""
    oom = {"cause": "gpu_oom", "evidence": "out!", "neighbours": ["job 7 held 900 MiB"]}
    trouble = {
        "failures": [fake.ended(code=1)["exit"] | oom],
        "retry": "retried alone",
        "notes": ["runs without MPS"],
    }
    why = {**fake.WHY, "job": fake.waiting(**trouble)}
    for text in (plain(render.show(fake.waiting(**trouble))), plain(render.why(why))):
        assert "gpu oom: out! (on the same GPUs, job 7 held 900 MiB)\n  next: retried" in text
        assert "notes\n  · runs without MPS" in text
    assert "try a smaller batch" in plain(render.show(fake.job(advice="try a smaller batch")))


def test_a_job_that_waits_again_is_not_shown_as_if_it_ran() -> None:
    again = fake.waiting(code="RQ", attempt=1, recovering=True)
    assert not {"attempt", "started"} & {
        line.split()[0] for line in plain(render.show(again)).splitlines()
    }


def test_sorting() -> None:
    jobs: Any = [fake.job(id=2, label="2", name="b"), fake.job(id=10, label="10", name="a")]
    assert [job["id"] for job in overview.sort(jobs, "jobid")] == [2, 10]
    assert [job["id"] for job in overview.sort(jobs, "-jobid")] == [10, 2]
    assert [job["id"] for job in overview.sort(jobs, "name")] == [10, 2]


def test_why_shows_every_gpu_and_every_number() -> None:
    text = plain(render.why(fake.WHY))
    assert "Job 43 waits: no GPU can take it now" in text
    assert "place in line: 3, behind job 40" in text
    assert "SM activity 0.84 (limit 0.80)" in text
    assert "needs 82.0G of free memory; only 26.4G" in text
    assert text.splitlines()[7] == "GPU 1  would do", "a rank means nothing to people"
    assert "fits GPU 0 now with --gpu-mem 26G" in text


def test_why_of_a_job_that_was_not_judged_yet() -> None:
    nothing = {"verdicts": [], "remedies": [], "position": None, "behind": None, "policy": None}
    told = ["Job 43 waits: no GPU can take it now", "memory need: 82.0G (declared) per GPU"]
    assert plain(render.why({**fake.WHY, **nothing})).splitlines() == told


def test_the_dashboard_shows_what_is_not_to_be_had_as_a_dash() -> None:
    text = plain(overview.status(fake.STATUS, 200))
    assert "policy magm · 2 GPUs (nvml) · up 26.1 h · 2 running, 1 waiting" in text
    assert "███░░░░░░░ 12.0G/40.0G" in text
    assert "alice:42(9.1G) bob:pid999(2.0G)" in text
    assert "-/40.0G" in text
    bare = plain(overview.status(fake.STATUS, 80), 80)
    assert "█" not in bare and "12.0G/40.0G" in bare
    assert "####" in plain(overview.gpus([fake.gpu(memory_used_mib=40000)], True, True))


def test_the_dashboard_shows_the_last_that_ended_whatever_their_ids() -> None:
    ends = [fake.job(code="CD", label=f"{n}", ended_at=f"2026-11-20T11:{n}") for n in range(10, 20)]
    (live, early), late = [fake.job(label="7"), fake.job(label="8", code="R")], ends[::-1]
    answer = {**fake.STATUS, "jobs": [live, *late, early]}
    assert overview.split_ended(answer["jobs"])[0] == [live, early]
    shown = plain(overview.status(answer, 200)).partition("ended last (all: carma history)")[2]
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["19", "18", "17", "16", "15"]


def test_islands_are_shown_where_there_are_several() -> None:
    islands = [fake.gpu(0, island="0"), fake.gpu(1, island="1")]
    assert "A100-SXM4-40GB @1" in plain(overview.gpus(islands, bars=False))
    assert "@" not in plain(overview.gpus([fake.gpu(0)], bars=False))


def test_why_gpus_take_no_jobs_is_said() -> None:
    drained = [fake.gpu(n, state="drained", state_detail="fan swap, by eva") for n in (0, 2)]
    settling = fake.gpu(1, state="settling", state_detail="job 1 started computing 2 s ago")
    text = plain(overview.status({**fake.STATUS, "gpus": [*drained, settling]}, 80), 80)
    assert "GPU 0, 2 drained: fan swap, by eva\n" in text
    assert "started computing" not in text, "that passes by itself"


def test_an_empty_server_says_what_to_do() -> None:
    text = plain(overview.status({**fake.STATUS, "jobs": [], "gpus": []}, 200))
    assert "carma submit" in text


def test_gpus_shows_risk_beside_its_limits() -> None:
    text = plain(overview.gpu_report(fake.ANSWERS["GET", "/v1/gpus"]))
    assert "high" in text and "risk.sm_active 0.8" in text and "window_s 30.0" in text
    assert "stale: no reading yet" in text
    assert "note: no SM activity" in text


def test_a_gpu_whose_memory_is_the_bottleneck_has_no_low_risk() -> None:
    answer = copy.deepcopy(fake.ANSWERS["GET", "/v1/gpus"])
    answer["gpus"][0]["risk"] |= {"dram_active": 1.0, "sm_active": 0.5, "risky": False}
    first = plain(overview.gpu_report(answer)).splitlines()[1]
    assert "memory-bound" in first and "low" not in first


def test_of_a_job_that_has_ended_nobody_asks_why_it_was_on_these_gpus() -> None:
    ended = {"job": fake.ended(), "headline": "failed with exit code 1", "remedies": []}
    answer = fake.WHY | ended
    text = plain(render.why(answer))
    assert "failed with exit code 1" in text
    for trivia in ("decided by the policy", "GPU 0", "would do", "expected to run"):
        assert trivia not in text, text


def test_an_estimate_is_shown_with_its_interval_and_what_it_rests_on() -> None:
    job = fake.job()
    assert overview.vram(job) == "9.1G/11.0G±0.8"
    assert "11.0G ±0.8 (history n=7) per GPU" in plain(render.show(job))
    why = plain(render.why({**fake.WHY, "job": job}))
    assert "memory need: 11.0G ±0.8 (history n=7) per GPU" in why
    assert "· not declared: no --gpu-mem was given" in why and "· n=7" not in why
    outline = fake.private(job)
    assert render.need(outline) == "11.0G ±0.8 (history)", "what it rests on is its owner's"
    word = {**job["memory"], "estimate_low": None, "estimate_high": None}
    mine = fake.job(memory=word | {"estimate_source": "declared"}, estimate={"notes": []})
    assert render.need(mine) == "11.0G (declared)"
    assert overview.vram(mine) == "9.1G/11.0G"
    none = fake.job(memory=word | {"estimate_mib": None, "estimate_source": None}, estimate=None)
    assert render.need(none) == ""
    assert "memory need" not in plain(render.why({**fake.WHY, "job": none}))


def test_estimators_beside_what_was_measured() -> None:
    from cli.commands.models import accuracy_table

    text = plain(accuracy_table(fake.ANSWERS["GET", "/v1/estimators"]))
    lines = [line.split() for line in text.splitlines()]
    assert ["trace", "12", "-40M", "90M", "1.3G", "120M", "60M", "210M", "8%"] in lines
    assert ["horus", "0", "-", "-", "-", "-", "-", "-", "-"] in lines
    assert "A100 / torch 2.9: 531M, 12 jobs" in text


def test_the_rest() -> None:
    totals = plain(past.totals_table(fake.ANSWERS["GET", "/v1/stats"]))
    assert "3.25 kWh" in totals
    assert totals.split()[:6] == ["USER", "JOBS", "OK", "FAILED", "OOM", "CANCELLED"]
    assert totals.splitlines()[1].split()[1:6] == ["11", "5", "1", "1", "4"], "they add up"
    checks = plain([doctor.check_table(fake.ANSWERS["GET", "/v1/doctor"])])
    assert "no DCGM" in checks and "→ install it" in checks
    dry = {"schema": 1, "would_start": True, "verdicts": fake.REFUSALS, "chosen": ["GPU-b"]}
    assert "It would start now." in plain(render.dry_run(dry))
    assert "GPU 1  chosen" in plain(render.dry_run(dry))
    behind = plain(render.dry_run(dry | {"would_start": False}))
    assert "It would wait for jobs before it in line." in behind


NASTY = "evil\x1b[2Jname\r\n\x07[bold]"


def test_other_people_s_words_cannot_drive_the_terminal() -> None:
    job = fake.job(name=NASTY, user=NASTY, argv=[NASTY], cwd=NASTY, reason=NASTY, gpus=[])
    job["failures"] = [fake.ended(code=1)["exit"] | {"evidence": NASTY}]
    gpu = fake.gpu(name=NASTY, state_detail=NASTY)
    gpu["jobs"][0]["user"] = gpu["outsiders"][0]["user"] = NASTY
    why = {**fake.WHY, "headline": NASTY, "remedies": [NASTY]}
    shown = [
        [overview.job_table([job], tuple(overview.COLUMNS))],
        render.show(job),
        render.why(why),
        overview.gpus([gpu], bars=True),
        overview.gpu_report({**fake.ANSWERS["GET", "/v1/gpus"], "gpus": [gpu]}),
    ]
    for picture in shown:
        text = plain(picture, width=1000)
        assert "[bold]" in text
        assert not set(text) & {"\x1b", "\r", "\x07"}


@pytest.mark.parametrize(
    ("environ", "tty", "color"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour(
    environ: dict[str, str], tty: bool, color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty, raising=False)
    assert uses_color() is color
