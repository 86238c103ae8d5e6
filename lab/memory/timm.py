"""The trace estimator on GPUMemNet's timm runs.

Truth is the peak that nvidia-smi showed for the whole process on an A100 40 GB. The runs that count
(`usable`) hit neither that limit nor crashed, nor would their live tensors alone exceed it. They
cannot have needed more than the GPU has, so `expected` ends there. Where a model's default images
have become larger since, it is traced with 224² as well, and what is nearer to the data's own
reading of FakeTensor counts: that is no measurement. The constant for context and libraries of that
stack comes from half of the model families; targets are judged on the other half.

That half is not untouched. What is kept for images, the transforms of tiles, and the margin in
`safe` were chosen on the whole fitting half alone. But the shares of workspaces in
`estimators.tracer.convolution` (about 40 sets tried) were chosen by the errors of a fitting half on
part of the models, when the halves were not yet quite these; errors of the other half were printed
on the way; and how these models were trained was found out with models of both. Only data that
nobody looked at can tell how far this flatters. With `--every N`, only every Nth model is traced,
and nothing is kept.

Training, as far as it can be told from the numbers: float32, SGD with momentum and weight decay
(its step copies all parameters once more, which the largest transformers show), cross entropy,
`zero_grad` after the step, cudnn.benchmark. Each model is traced once, with a batch of a prime
number of images: what is a multiple of it scales with the batch. A few are traced again with
another batch, to see that this holds.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from types import SimpleNamespace
from typing import Any

from benchmarks.harness import Report, Row, bullets, of_rows, percentile
from carmad.plugin import Estimate
from estimators.gpumemnet import answer
from estimators.gpumemnet.features import FAMILIES
from estimators.gpumemnet.features import family as network_family
from estimators.gpumemnet.files import GB, read_card
from estimators.horus import formula
from estimators.tracer.replay import replay
from estimators.tracer.report import Report as TraceReport
from lab.data import read
from lab.main import main
from lab.memory.truth import (
    GIB,
    MIB,
    TIMM,
    Accuracy,
    accuracy,
    comparison,
    error_rows,
    halves,
    kept,
)
from lab.processes import in_processes

GPU_MIB = 40_960
LIMIT_MIB, CRASHED_MIB = 38_500, 1650  # above: out of memory; the process above what it trained
USUAL = (224, 224)
LARGER = 1.15  # than FakeTensor's reading in the data: its images were smaller
BATCH = 257  # a prime that divides no width of any of the models
CHECKED = 40  # one of so many models is traced directly, too
DIRECT = 32
PATIENCE_S = 180
TABLE_1 = ("FakeTensor, CARMA paper's Table 1 (GB)", "", "1.16", "1.97", "2.82", "3.84", "6.82")


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the data, in MiB."""

    model: str
    batch: int
    peak: float
    faketensor: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What is said of one run, in MiB; without the context where there is a constant to add."""

    run: Run
    floor: float
    reserved: float
    safe: float
    horus: float  # with the context that is in its formula
    kind: str  # of network, for GPUMemNet; "": none that it knows
    gpumemnet: float | None  # the top of a bin; None: it refuses, or has no weights


@dataclass(frozen=True, slots=True)
class Traced:
    model: str
    family: str = ""  # the module of timm that has it
    seconds: float = 0.0  # of a processor, to trace it once
    seen: tuple[Seen, ...] = ()
    off_mib: float | None = None  # scaled from the prime batch − traced directly
    failed: str = ""


def measure(every: int = 1) -> Report:
    runs = usable()
    models = sorted({run.model for run in runs})[::every]
    jobs = [
        ([run for run in runs if run.model == model], n % CHECKED == 0)
        for n, model in enumerate(models)
    ]
    traced = in_processes(
        _traced, jobs, lambda one: f"{one.model}: {one.failed or f'{one.seconds:.2f} s'}"
    )
    return report(list(traced), kept_too=every == 1)


def usable() -> list[Run]:
    runs = [
        Run(
            line["model"],
            int(line["batch_size"]),
            float(line["max_gpu_memory_mib"]),
            float(line["faketensor_last_mib"]),
        )
        for line in read(TIMM)
    ]
    return [run for run in runs if run.peak - run.faketensor >= CRASHED_MIB < LIMIT_MIB > run.peak]


# -- in the processes ------------------------------------------------------------------------------


def _traced(job: tuple[list[Run], bool]) -> Traced:
    runs, checked = job
    model = runs[0].model
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(PATIENCE_S)
    try:
        recorder, layers, family, seconds, size = _like_the_data(runs)
        reports = [_report_at(recorder, layers, run.batch) for run in runs]
        every = [_seen(run, report) for run, report in zip(runs, reports, strict=True)]
        # Tensors that are live at once have to fit, whatever the allocator does.
        seen = tuple(one for one in every if one.floor + CRASHED_MIB <= GPU_MIB)
        off = None
        if checked:
            direct, others, *_ = record(model, DIRECT, size)
            once = replay(direct, others, 2, 0.0).reserved
            off = (_report_at(recorder, layers, DIRECT).reserved - once) / MIB
        return Traced(model, family, seconds, seen, off)
    except Exception as error:  # noqa: BLE001  a model's own
        return Traced(model, failed=f"{type(error).__name__}: {error}"[:200])
    finally:
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not traced within {PATIENCE_S} s")


def _like_the_data(runs: Sequence[Run]) -> Any:
    """`record` with images as large as in the data."""
    last = max(runs, key=lambda run: run.batch)

    def larger(traced: Any) -> float:
        report = _report_at(traced[0], traced[1], last.batch)
        return report.faketensor / MIB / last.faketensor

    default = record(last.model, BATCH)
    if default[-1] == USUAL or larger(default) < LARGER:
        return default
    try:
        usual = record(last.model, BATCH, USUAL)
    except (AssertionError, RuntimeError):  # it takes no other size
        return default
    return min((default, usual), key=lambda traced: abs(log(larger(traced))))


def record(
    model: str, batch: int, size: tuple[int, int] | None = None
) -> tuple[Any, Any, str, float, tuple[int, int]]:
    """The recorder and layers after two steps; the model's family; seconds of a
    processor, for the machine is shared; height and width of the images, by default the model's."""
    import torch

    from estimators.look import patches
    from estimators.tracer import patching
    from estimators.tracer.modules import Layers
    from estimators.tracer.recording import GPU, Recorder
    from estimators.tracer.substitutes import replace_attributes

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    recorder = Recorder()
    patching.install(patches("torchvision"), recorder)
    import timm

    begun = time.process_time()
    recorder.memory = GPU_MIB * MIB
    pretend = replace_attributes(torch.cuda, is_available=lambda: True, _lazy_init=lambda: None)
    with pretend, recorder, Layers(recorder) as layers:
        network = timm.create_model(model).to(GPU).train()
        channels, *own = network.pretrained_cfg.get("input_size", (3, *USUAL))
        size = size or (own[0], own[1])
        sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4)
        optimizer = sgd(network.parameters())
        for step in ("step1", "step2"):
            images = torch.empty(batch, channels, *size, device=GPU)
            labels = torch.zeros(batch, dtype=torch.long, device=GPU)
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            recorder.label_optimizer(optimizer)
            recorder.mark(step)
            optimizer.zero_grad()
    family = type(network).__module__.rpartition(".")[2]
    return recorder, layers, family, time.process_time() - begun, size


def _report_at(recorder: Any, layers: Any, batch: int) -> TraceReport:
    """As if it had been traced with this batch."""

    def scaled(value: int) -> int:
        """What is as large as 1 MiB per image is of the batch, too: rows may be padded but for the
        last, as those of attention's biases."""
        if value > BATCH * MIB or (value > 0 and value % BATCH == 0):
            return -(-value // BATCH) * batch
        return value

    events = [
        (what, scaled(how)) if isinstance(what, int) else (what, how)
        for what, how in recorder.events
    ]
    convs = [
        conv._replace(
            input=(scaled(conv.input[0]), *conv.input[1:]),
            output=(scaled(conv.output[0]), *conv.output[1:]),
        )
        for conv in recorder.convs
    ]
    recording = recorder.recording._replace(events=events, convs=convs)
    then = SimpleNamespace(events=events, recording=recording, notes=[])
    return replay(then, SimpleNamespace(batch=batch, layers=layers.layers), 2, 0.0)  # type: ignore[arg-type]


def _seen(run: Run, report: TraceReport) -> Seen:
    return Seen(
        run,
        report.floor / MIB,
        report.reserved / MIB,
        report.safe / MIB,
        formula(report.layers, run.batch),
        network_family(report.layers) or "",
        _gpumemnet(report, run.batch),
    )


def _gpumemnet(report: TraceReport, batch: int) -> float | None:
    try:
        said = answer(report.layers, batch, context_mib=0)
    except OSError:  # its weights are made by `lab.gpumemnet`
        return None
    return said.mib if isinstance(said, Estimate) else None


# -- the report ------------------------------------------------------------------------------------


def report(traced: Sequence[Traced], kept_too: bool) -> Report:
    good = [one for one in traced if not one.failed]
    fitted = halves(Counter(one.family for one in good for _ in one.seen))
    tuning = [seen for one in good if one.family in fitted for seen in one.seen]
    judged = [seen for one in good if one.family not in fitted for seen in one.seen]
    constant = statistics.median(seen.run.peak - seen.reserved for seen in tuning)
    plain = statistics.median(seen.run.peak - seen.floor for seen in tuning)
    sides = {
        side: _accuracies(some, constant, plain)
        for side, some in (("judged", judged), ("fitted", tuning))
    }
    failures = [f"{one.model}: {one.failed}" for one in traced if one.failed]
    return of_rows(
        "timm's models, as measured and as traced",
        [*_targets(sides["judged"], traced), *_ratios(judged, constant), *bins(judged, constant)],
        "Absolute errors in GiB, the half that is judged"
        " (seen while tuning, see the module's text):",
        comparison(list(sides["judged"].items()), "GiB", TABLE_1),
        f"The half that gives the constant ({', '.join(sorted(fitted))}):",
        comparison(list(sides["fitted"].items()), "GiB", ()),
        *(["Not traced:", bullets(failures)] if failures else []),
        data={"constant_mib": constant, **kept(sides)},
        notes=[
            f"{len(good)} models in {len({one.family for one in good})} families,"
            f" {len(tuning)} runs give the constant, {len(judged)} are judged",
            f"constant of that stack: {constant:.0f} MiB ({plain:.0f} on top of the floor)",
        ],
        kept=kept_too,
    )


def _accuracies(some: Sequence[Seen], constant: float, plain: float) -> dict[str, Accuracy]:
    said = {
        "trace, expected": [(min(seen.reserved + constant, GPU_MIB), seen.run) for seen in some],
        "trace, safe": [(seen.safe + constant, seen.run) for seen in some],
        "floor + constant": [(seen.floor + plain, seen.run) for seen in some],
        "FakeTensor, as in the data": [(seen.run.faketensor, seen.run) for seen in some],
        "Horus": [(seen.horus, seen.run) for seen in some],
        "GPUMemNet, where it answers": [
            (seen.gpumemnet + constant, seen.run) for seen in some if seen.gpumemnet is not None
        ],
    }
    return {
        name: accuracy([mib - run.peak for mib, run in pairs])
        for name, pairs in said.items()
        if pairs
    }


def bins(judged: Sequence[Seen], constant: float) -> Iterator[Row]:
    """How often GPUMemNet answers, and how often the bin that it says has the peak."""
    for kind in FAMILIES:
        asked = [seen for seen in judged if seen.kind == kind]
        tops = [(seen.gpumemnet + constant, seen.run) for seen in asked if seen.gpumemnet]
        if not tops:
            continue
        width = read_card(kind).range_gb * GB
        group = f"GPUMemNet, {kind}"
        right = sum(top - width < run.peak <= top for top, run in tops)
        edge = tops[0][0] % width
        (_, most), *_ = Counter((run.peak - edge) // width for _, run in tops).most_common()
        note = f"of {len(tops)}"
        yield Row(group, "answers", len(tops), "runs", note=f"of {len(asked)}")
        yield Row(group, f"right bin of {width / GB:g} GB", 100 * right / len(tops), "%", note=note)
        yield Row(group, "always the commonest bin", 100 * most / len(tops), "%", note=note)
        off = statistics.median((edge - run.peak) % width for _, run in tops) / GIB
        yield Row(group, "error P50 of who is always right", off, "GiB", note=note)


def _targets(judged: dict[str, Accuracy], traced: Sequence[Traced]) -> list[Row]:
    expected, margin = judged["trace, expected"], judged["trace, safe"]
    rows = [
        *error_rows(expected, "GiB", (0.07, 0.22, 0.5, 0.9, None)),
        Row("expected", "within 1 GiB", 100 * expected.within_gib, "%", 92, least=True),
        Row("safe", "under", 100 * margin.under, "%", 8),
        Row("safe", "under by more than 1 GiB", 100 * margin.under_gib, "%", 1),
        Row("safe", "median surplus", margin.bias / GIB, "GiB", 0.8),
    ]
    good = [one for one in traced if not one.failed]
    coverage = 100 * len(good) / len(traced)
    rows.append(Row("tracing", "models traced", coverage, "%", 99, least=True))
    seconds = [one.seconds for one in good]
    note = "of a processor, building the model included"
    for name, q, bound in (("P50", 0.5, 0.3), ("P99", 0.99, 1.5)):
        took = percentile(seconds, q)
        rows.append(Row("tracing", f"time {name}", took, "s", bound, note=note))
    offs = [abs(one.off_mib) for one in good if one.off_mib is not None]
    if offs:
        note = f"of {len(offs)} models, at batch {DIRECT}"
        rows.append(Row("tracing", "scaled − direct, at most", max(offs), "MiB", note=note))
    return rows


def _ratios(judged: Sequence[Seen], constant: float) -> list[Row]:
    """Of the safe estimate to the expected one, both with the context."""
    ratios = [(seen.safe + constant) / (seen.reserved + constant) for seen in judged]
    return [
        Row("safe", f"over expected, P{round(100 * q)}", percentile(ratios, q), "×")
        for q in (0.5, 0.8, 0.9)
    ]


if __name__ == "__main__":
    os.nice(5)
    main("memory_timm", measure, TIMM)
