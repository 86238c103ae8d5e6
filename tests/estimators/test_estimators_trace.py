"""From a trace's numbers to an estimate, and the effect of past runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import a_run, a_server, a_spec
from carmad.config import Estimation, Settings
from carmad.contexts import find_context
from carmad.plugin import Estimate, Refusal, Run, Trial
from estimators.tracer.command import Program
from estimators.tracing import CONTEXT_MIB, Judged, Past, context_mib, script, shortfall_mib, trace
from tests.reports import a_report

MIB = 2**20
ME = a_spec().uid
STACK = "NVIDIA A100-PCIE-40GB / driver 570.124.06 / torch 2.13.0"


def estimated(*runs: Run, **report: object) -> Estimate:
    settings = Settings(estimation=Estimation(context_mib=500))
    server = a_server(Trial(a_report(**report).dumps(), "", code=0), runs)
    answer = trace(settings, server).estimate(a_spec())
    assert isinstance(answer, Estimate), answer
    return answer


def past(
    peak_mib: int, body_mib: int = 3000, stack: str = STACK, low_mib: int = 0, uid: int = ME
) -> Run:
    """A run that the trace had said `body_mib`, and a context of 500 MiB, about."""
    context = (("activations", body_mib), ("context", 500))
    mib = body_mib + 500
    said = Estimate(mib, "trace", low=low_mib, parts=context, stack=stack)
    return a_run(peak_mib, said, uid=uid)


def test_what_was_traced_and_the_context() -> None:
    estimate = estimated(notes=("torch.compile left out",))
    assert (estimate.mib, estimate.low) == (3500, 3000)
    assert estimate.safe_mib > 3500
    assert (estimate.source, estimate.stack, estimate.seconds) == ("trace", STACK, 1.5)
    assert dict(estimate.parts)["context"] == 500
    assert dict(estimate.parts)["optimizer"] == 800
    assert estimate.notes[0] == "torch.compile left out"
    assert "as set" in estimate.notes[1]


@pytest.mark.parametrize("odd", [1, 333_333, MIB - 1])
def test_parts_add_up_whatever_their_rounding(odd: int) -> None:
    kinds = ("parameters", "gradients", "optimizer", "activations", "cached", "workspace")
    parts = dict.fromkeys(kinds, 100 * MIB + odd)
    estimate = estimated(parts=parts, reserved=sum(parts.values()), floor=0)
    assert sum(mib for _, mib in estimate.parts) == estimate.mib
    assert max(abs(mib - 100 - odd / MIB) for kind, mib in estimate.parts if kind in kinds) < 2


def test_the_context_is_as_measured_on_such_a_gpu() -> None:
    h100 = "NVIDIA H100 80GB HBM3"
    for torch, mib in (("2.11.0+cu130", 694), ("2.12.0+cu130", 694), ("2.4.0", 694)):
        measured = find_context(h100, torch)
        assert measured is not None
        assert measured.mib == mib
    assert find_context("NVIDIA T4", "2.11.0+cu130") is None


def test_the_table_of_contexts_is_used_until_the_context_is_learned_or_set() -> None:
    def context(gpu: str, chosen: int | None) -> tuple[int, str]:
        settings = Settings(estimation=Estimation(context_mib=chosen))
        server = a_server(Trial(a_report().dumps(), "", code=0), gpu=gpu)
        estimate = trace(settings, server).estimate(a_spec())
        assert isinstance(estimate, Estimate)
        return dict(estimate.parts)["context"], estimate.notes[-1]

    mib, note = context("NVIDIA H100 80GB HBM3", None)
    assert mib == 694
    assert "as measured elsewhere on NVIDIA H100" in note
    assert context("NVIDIA H100 80GB HBM3", 500)[0] == 500
    assert context("NVIDIA T4", None)[0] == 544


def test_the_context_is_learned() -> None:
    peaks = (3790, 3800, 3810)
    estimate = estimated(*map(past, peaks))
    assert (estimate.mib, estimate.low) == (3800, 3300)
    assert dict(estimate.parts)["context"] == 800
    assert "learned from 3 runs" in estimate.notes[-1]
    assert estimated(*map(past, peaks[:2])).mib == 3500


def test_what_was_learned_with_another_context_is_the_same() -> None:
    """The peak minus the traced part counts, not the error of the whole estimate."""
    wrong = Estimate(4000, "trace", parts=(("activations", 3000), ("context", 1000)), stack=STACK)
    assert estimated(*[a_run(3800, wrong)] * 3).mib == 3800


def test_only_runs_on_the_same_stack_teach() -> None:
    assert estimated(*[past(3800, stack="another")] * 20).mib == 3500
    assert estimated(*[a_run(3800, Estimate(3500, "horus", stack=STACK))] * 20).mib == 3500
    assert estimated(*[a_run(3800)] * 20).mib == 3500


def test_one_of_the_others_is_judged_too() -> None:
    run = past(3800)
    chosen = Estimate(9000, "history", others=(run.estimate,) if run.estimate else ())
    assert estimated(*[a_run(3800, chosen)] * 3).mib == 3800


def test_runs_that_never_grew_teach_nothing() -> None:
    early = [past(1100, low_mib=3000)] * 9
    assert estimated(*early).mib == 3500
    assert estimated(*early, *[past(3800)] * 3).mib == 3800
    assert estimated(past(900), past(3800), past(3800)).mib == 3800


def test_the_margin_is_learned() -> None:
    """One in ten used three times the traced amount."""
    runs = [past(3500)] * 18 + [past(9500)] * 2
    assert estimated(*runs).mib == 3500
    assert estimated(*runs).safe_mib == 9500
    assert estimated(*runs[-9:]).safe_mib == estimated().safe_mib  # too few yet
    assert estimated(*[past(3500)] * 20).safe_mib == estimated().safe_mib


def test_one_that_fell_short_among_many_does_not_count() -> None:
    runs = [Judged(3000, 3500)] * 39 + [Judged(3000, 9500)]
    assert shortfall_mib(Past(runs), 500, 3000) == 0
    assert shortfall_mib(Past(runs[-19:]), 500, 3000) == 6000  # one in nineteen is too many


def test_shortfalls_are_in_proportion_to_the_job() -> None:
    assert shortfall_mib(Past([Judged(3000, 3800)] * 10), 500, 6000) == 600
    assert shortfall_mib(Past([Judged(3000, 3200)] * 10), 500, 6000) == 0


def test_small_jobs_do_not_teach_large_ones_a_large_share() -> None:
    """100 MiB more than 20 MiB are a tenth of a GiB, not five times as much."""
    runs = Past([Judged(20, 620)] * 10)
    assert shortfall_mib(runs, 500, 20) == 100
    assert shortfall_mib(runs, 500, 10_240) == 1000


# -- jobs like this one


def like(
    peak_mib: int, uid: int = ME, shape: str | None = None, low_mib: int = 0, **spec: object
) -> Run:
    """A run of a model, by default of the one that is estimated, with another batch."""
    run = past(peak_mib, uid=uid, low_mib=low_mib)
    assert run.estimate is not None
    shape = estimated().shape if shape is None else shape
    spec = {"argv": ("python", "other.py"), **spec}
    return a_run(peak_mib, replace(run.estimate, shape=shape), uid=uid, **spec)


PARSED = Program(("python",), ("a.py",))
# Runs of another script, which teach a context of 500 MiB.
OTHERS = [a_run(3500, past(3500).estimate, argv=("python", "third.py"))] * 9


def test_runs_of_the_same_model_correct_the_estimate() -> None:
    """They used 600 MiB more than was traced: the first teaches half of it."""
    assert estimated(*OTHERS).mib == 3500
    assert [estimated(*OTHERS, *[like(4100)] * n).mib for n in (1, 2, 3, 5)] == [
        3800,
        3900,
        3950,
        4000,
    ]
    found = estimated(*OTHERS, like(4100))
    assert found.notes[-1] == "+300 MiB learned from one run of similar jobs"
    assert sum(mib for _, mib in found.parts) == found.mib == 3800
    assert (found.traced_mib, estimated(*OTHERS).traced_mib) == (3500, None)


def test_a_correction_is_no_part_of_what_was_live() -> None:
    live = ("parameters", "gradients", "optimizer", "activations")
    traced = dict(estimated(*OTHERS).parts)
    for peak in (4100, 3200, 2000):
        parts = dict(estimated(*OTHERS, *[like(peak)] * 8, floor=2600 * MIB).parts)
        assert all(parts[part] == traced[part] for part in live), peak
        assert min(parts.values()) >= 0
    more, less = (dict(estimated(*OTHERS, like(peak)).parts) for peak in (4100, 3300))
    assert (more["cached"], less["cached"]) == (traced["cached"] + 300, traced["cached"] - 100)
    assert (
        "+300 MiB learned from similar jobs of 3 users"
        in estimated(*OTHERS, *[like(4100, uid=uid) for uid in (501, 502, 503)]).notes[-1]
    )


def test_a_corrected_estimate_teaches_what_was_traced() -> None:
    """Else it would be corrected for having been corrected."""
    corrected = [
        a_run(run.peak_mib, replace(run.estimate, mib=4000, traced_mib=3500), argv=run.spec.argv)
        for run in [like(4100)] * 3
        if run.estimate is not None
    ]
    assert estimated(*OTHERS, *corrected).mib == 3950


def test_the_same_script_counts_if_the_model_is_new() -> None:
    mine = like(4100, shape="another", argv=a_spec().argv)
    assert estimated(*OTHERS, mine).mib == 3800
    assert estimated(*OTHERS, mine, like(3500)).mib == 3500, "the same model counts more"
    elsewhere = like(4100, shape="another", argv=a_spec().argv, cwd="/elsewhere")
    assert estimated(*OTHERS, elsewhere).mib == 3500


@pytest.mark.parametrize(
    ("ran", "is_alike"),
    [
        ("python -u a.py --lr 2", True),
        ("python3 a.py --model another", True),
        ("torchrun --nproc-per-node 1 a.py", True),
        ("python -u b.py", False),
        ("python -m a.py", False),
        ("python a.py train", False),
        ("bash -e a.py", False),
    ],
)
def test_a_script_is_known_by_its_name(ran: str, is_alike: bool) -> None:
    """Whatever Python's own options are: `-u a.py` is no option with a value."""
    earlier = Past([Judged(3000, 4100, spec=a_spec(argv=tuple(ran.split())))])
    assert bool(earlier.like("new", a_spec(argv=("python", "-u", "a.py"))).own) == is_alike


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("python -m pkg.a", "python -m pkg.b"),
        ("bash -e a.sh", "bash -e b.sh"),
        ("uv run -q a.py", "uv run -q b.py"),
        ("python", "python -u -"),
    ],
)
def test_unlike_commands_are_unlike_scripts(line: str, other: str) -> None:
    first, second = (a_spec(argv=tuple(words.split())) for words in (line, other))
    assert script(first) == script(replace(first, uid=first.uid + 1)) != script(second)


def test_only_ones_own_commands_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have run thousands of jobs."""
    read = []
    monkeypatch.setattr("estimators.tracing.parse", lambda *argv: read.append(argv) or PARSED)
    estimated(*OTHERS, *[like(4100, uid=uid) for uid in range(11, 99)])
    assert 0 < len(read) <= 1 + len(OTHERS)


def test_a_correction_is_bounded_by_what_must_be_there() -> None:
    assert estimated(*OTHERS, *[like(100, low_mib=3500)] * 8).mib == 3500, "it never grew"
    assert estimated(*OTHERS, *[like(2000)] * 8, floor=2900 * MIB).mib == 2900 + 500
    assert estimated(*OTHERS, *[like(90_000)] * 8).mib < 3500 + 1500


def test_other_users_correct_only_together() -> None:
    others = [like(4100, uid=uid) for uid in (11, 12)]
    assert estimated(*OTHERS, *others).mib == 3500
    assert estimated(*OTHERS, *others, like(90_000, uid=13)).mib == 3800
    assert estimated(*OTHERS, *others, *[like(90_000, uid=666)] * 200).mib == 3800
    assert estimated(*OTHERS, *others, like(90_000, uid=13), like(3500)).mib == 3500


# -- what one user can make of another's estimate


def forged(uid: int, n: int = 4) -> list[Run]:
    """Jobs with next to nothing to trace that used 30 GiB for some seconds."""
    return [past(30_000, body_mib=10, uid=uid)] * n


def test_four_forged_jobs_move_nobody_elses_estimate() -> None:
    """It used to turn everyone's 1.5G into 30.3G."""
    assert estimated(*forged(666)) == estimated()
    assert estimated(*forged(666, 200)) == estimated()
    assert estimated(*forged(666), *[past(3800)] * 3).mib == 3800, "one's own runs count first"


def test_a_context_is_no_larger_and_no_smaller_than_contexts_are() -> None:
    least, most = CONTEXT_MIB
    assert dict(estimated(*forged(ME)).parts)["context"] == most
    assert dict(estimated(*[past(1000)] * 3).parts)["context"] == least


def test_a_newcomer_learns_from_several_others() -> None:
    others = [past(peak, uid=uid) for uid, peak in ((1, 3790), (2, 3800), (3, 3900))]
    estimate = estimated(*others * 3)
    assert dict(estimate.parts)["context"] == 800
    assert "learned from 3 users" in estimate.notes[-1]
    assert estimated(*others * 2).mib == 3500, "of too few runs each"
    assert estimated(*others[:2] * 3).mib == 3500, "they are too few"


honest = st.lists(
    st.lists(st.integers(3_300, 5_000), min_size=10, max_size=14), min_size=2, max_size=6
)
lies = st.lists(st.tuples(st.integers(1, 80_000), st.integers(1, 80_000)), max_size=60)


@given(honest, lies)
def test_one_among_several_users_moves_nothing_beyond_the_others(
    users: list[list[int]], lies: list[tuple[int, int]]
) -> None:
    """Neither the context nor the margin, however many runs they have and whatever these show."""
    others = [[Judged(3_000, peak) for peak in peaks] for peaks in users]
    liar = [Judged(body, peak) for body, peak in lies]
    contexts = [(context_mib(Past(runs)) or (0, ""))[0] for runs in others]
    learned = context_mib(Past([], [*others, liar]))
    if learned is not None:
        assert min(contexts) <= learned[0] <= max(contexts)
    margins = [shortfall_mib(Past(runs), 500, 3_000) for runs in others]
    assert shortfall_mib(Past([], [*others, liar]), 500, 3_000) <= max(margins)
    assert context_mib(Past([], [liar] * 2)) is None
    assert shortfall_mib(Past([], [liar] * 2), 500, 3_000) == 0


def test_a_look_that_failed() -> None:
    refusal = trace(Settings(), a_server()).estimate(a_spec())
    assert isinstance(refusal, Refusal)
    assert refusal.source == "trace"
    assert "no such user" in refusal.why
