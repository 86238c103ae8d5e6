"""Runs the job's own script without a GPU, two steps and more, and replays its allocations.

From finished jobs it learns the size of the context, its shortfall, and its error about jobs like
the one that is estimated.

Users learn from their own runs. Other users' runs cannot be trusted, since whoever submits a job
decides what it holds and what is traced: a new user gets the median over users, one vote each, and
only if there are enough. So whatever one user runs, the value stays between those of honest users.

Some jobs end before they have grown to their full size, which a measured peak does not reveal. So
only robust statistics are used, and a run whose peak stayed below the bytes that the trace found
live at once (its `low`, minus the context) is not counted at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate, pairwise
from math import ceil
from statistics import median

from carmad.plugin import (
    ContextOut,
    Estimate,
    ExplanationOut,
    HeldOut,
    JobSpec,
    Owner,
    Refusal,
    Run,
    Server,
    Settings,
    find_context,
    template,
)
from estimators.look import look
from estimators.tracer.command import LAUNCHERS, Unreadable, parse
from estimators.tracer.report import PARTS, TIME_UP, Explanation, Held, Report, Rest

ENOUGH_FOR_CONTEXT = 3  # runs: the median of three survives one that is far off
ENOUGH_FOR_MARGIN = 10
ENOUGH_USERS = 3  # likewise
COVERED = 0.95
SMALL_MIB = 1024  # below this, errors do not shrink with the job
# What CUDA and its libraries can take per process: about 300 MiB with kernels loaded on demand
# (CUDA 11.7 and newer), more than 1 GiB before; the stacks behind `lab.memory.mlp` and
# `lab.memory.timm` took 1,429 and 1,793 MiB.
CONTEXT_MIB = (200, 3072)
CORRECTED = 0.5  # at most, of what was traced

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Judged:
    """A trace estimate and the measured peak, in MiB."""

    body_mib: int  # what was traced, without the context
    peak_mib: int
    shape: str = ""  # of the model
    spec: JobSpec | None = None

    def error(self, context_mib: int) -> float:
        """The measured peak less the estimate, as a share of the job, or of 1 GiB if that is
        more."""
        return (self.peak_mib - context_mib - self.body_mib) / max(SMALL_MIB, self.body_mib)


@dataclass(frozen=True, slots=True)
class Past:
    """Successful runs on one stack: the user's own, and those of each other user."""

    own: Sequence[Judged]
    others: Sequence[Sequence[Judged]] = ()

    def learn(
        self, enough: int, lesson: Callable[[Sequence[Judged]], float]
    ) -> tuple[float, str] | None:
        """The value from the user's own runs if there are enough, otherwise the median over the
        other users' values; and whose runs they were, in words. None if there are too few."""
        if len(self.own) >= enough:
            count = len(self.own)
            return lesson(self.own), "one run" if count == 1 else f"{count} runs"
        votes = [lesson(runs) for runs in self.others if len(runs) >= enough]
        if len(votes) < ENOUGH_USERS:
            return None
        return median(votes), f"{len(votes)} users"

    def like(self, shape: str, spec: JobSpec) -> Past:
        """The user's own runs of a model of the same shape, or else of the same script; and other
        users' runs of that shape."""

        def alike(runs: Sequence[Judged]) -> list[Judged]:
            return [one for one in runs if shape and one.shape == shape]

        own = alike(self.own)
        if not own:
            wanted = script(spec)
            own = [one for one in self.own if one.spec and script(one.spec) == wanted]
        return Past(own, [alike(runs) for runs in self.others])


def past(server: Server, owner: Owner, source: str, stack: str) -> Past:
    others = (server.runs(other) for other in server.users() if other != owner)
    return Past(
        find_estimates(server.runs(owner), source, stack),
        [find_estimates(runs, source, stack) for runs in others],
    )


def find_estimates(runs: Iterable[Run], source: str, stack: str) -> list[Judged]:
    """The runs with an estimate by this estimator, on the same GPU, driver and torch."""
    found = []
    for run in runs:
        if run.estimate is None:
            continue
        for estimate in (run.estimate, *run.estimate.others):
            context_mib = dict(estimate.parts).get("context")
            if estimate.source != source or estimate.stack != stack or context_mib is None:
                continue
            if run.peak_mib >= (estimate.low or 0) - context_mib:
                traced = estimate.mib if estimate.traced_mib is None else estimate.traced_mib
                body_mib = traced - context_mib
                found.append(Judged(body_mib, run.peak_mib, estimate.shape, run.spec))
    return found


def script(spec: JobSpec) -> tuple[object, ...]:
    """Equal for jobs whose Python commands differ in the script's options alone. Other commands are
    not taken apart here: equal ones are alike, as `template` compares them."""
    return spec.cwd, spec.conda_env, spec.container, spec.gpus, _script(spec)


def _script(spec: JobSpec) -> object:
    try:
        program = parse(spec.argv)
    except Unreadable:
        return template(spec.argv)
    if "" in program.python:  # which Python is for `find` to see
        return template(spec.argv)
    words = program.script
    if words[:1] == ("-m",) and words[1] in LAUNCHERS.values():  # what it starts
        at = next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
        words = words[at:]
    count = 2 if words[0] in ("-m", "-c") else 1
    return words[:count], template(words[count:]).words


def context_mib(past: Past) -> tuple[int, str] | None:
    """The median of what processes held beyond what was traced, within the bounds for a context;
    and whose runs it is from. None if there are too few."""
    taught = past.learn(ENOUGH_FOR_CONTEXT, _context_mib)
    return (round(taught[0]), taught[1]) if taught else None


def _context_mib(runs: Sequence[Judged]) -> float:
    least, most = CONTEXT_MIB
    return min(max(median(run.peak_mib - run.body_mib for run in runs), least), most)


def shortfall_mib(past: Past, context_mib: int, body_mib: int) -> int:
    """What to add to an estimate so that it covers 95 of 100 runs like the past ones.

    Of a user's n shortfalls, as shares of their jobs, the ⌈0.95·(n+1)⌉-th smallest is used, or the
    largest if there are fewer: a job drawn from the same distribution stays below it with 95 %,
    whatever the distribution. 0 with fewer than ten runs.
    """

    def share(runs: Sequence[Judged]) -> float:
        shares = sorted(run.error(context_mib) for run in runs)
        return shares[min(len(shares), ceil(COVERED * (len(shares) + 1))) - 1]

    taught = past.learn(ENOUGH_FOR_MARGIN, share)
    return max(0, ceil(taught[0] * max(SMALL_MIB, body_mib))) if taught else 0


def correction_mib(like: Past, context_mib: int, body_mib: int) -> tuple[int, str] | None:
    """What to add to an estimate of `body_mib` so that it is right for jobs like it, in the median;
    and whose runs say so. None if there were none.

    Of n runs, n/(n+1) of their median error count: as if there had been one more run, without
    an error. At most CORRECTED of the job, or of 1 GiB if that is more.
    """

    def error(runs: Sequence[Judged]) -> float:
        middle = median(run.error(context_mib) for run in runs)
        return max(-CORRECTED, min(middle, CORRECTED)) * len(runs) / (len(runs) + 1)

    taught = like.learn(1, error)
    return (round(taught[0] * max(SMALL_MIB, body_mib)), taught[1]) if taught else None


@dataclass(frozen=True, slots=True)
class Trace:
    """What the caching allocator will hold, plus the CUDA context and its libraries.

    Corrected by how wrong it was about jobs like this one: the user's own, or else at least three
    other users'. `low` has only the live bytes, `high` what experience says must be free. The
    context cannot be traced: it depends on GPU, driver and torch, and is learned from the user's
    runs on the same three, or from several other users'. While there are too few, it is
    `estimation.context_mib`, or what was measured on such a GPU elsewhere.
    """

    settings: Settings
    server: Server
    name: str = "trace"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        report = look(spec, self.settings, self.server)
        if isinstance(report, Refusal):
            return replace(report, source=self.name)
        if report.reserved <= 0:
            return Refusal("it put nothing on a GPU", self.name, report.seconds)
        stack = f"{self.server.gpu} / driver {self.server.driver} / torch {report.torch}"
        earlier = past(self.server, spec.owner, self.name, stack)
        learned = context_mib(earlier)
        context, origin = learned or self._default_context(report.torch)
        traced, floor = ceil(report.reserved / MIB), report.floor // MIB
        shape = _shape(report)
        like = earlier.like(shape, spec) if learned else Past(())
        # However wrong it was about others, this job's tensors need their bytes.
        correction, by = correction_mib(like, context, traced) or (0, "")
        body = max(min(traced, floor), traced + correction)
        short = shortfall_mib(earlier, context, traced)
        others = (report.processes - 1) * context  # of the script's other processes on this GPU
        parts = _parts(report, body)
        notes = [*report.notes, *_gaps(report.rest)]
        notes.append(_origin(context, origin, None if learned else len(earlier.own)))
        notes += [f"{correction:+d} MiB learned from {_whose(by)}"] if correction else []
        return Estimate(
            body + others + context,
            self.name,
            low=min(body, floor) + others + context,
            high=max(traced + short, ceil(report.safe / MIB) + max(0, correction))
            + others
            + context,
            seconds=report.seconds,
            notes=tuple(notes),
            parts=(*parts, *_contexts(others), ("context", context)),
            phases=_phases(report.rest, others + context),
            stack=stack,
            batch_mib=dict(parts)["activations"],
            shape=shape,
            traced_mib=traced + others + context if correction else None,
            crash=report.rest.crash if report.rest else "",
        )

    def explain(self, spec: JobSpec) -> ExplanationOut | None:
        """What its trace has found out, if there is one and the server wants it explained."""
        report = look(spec, self.settings, self.server)
        if isinstance(report, Refusal) or report.explanation is None:
            return None
        return explanation_out(report.explanation)

    def contexts(self, runs: Mapping[Owner, Sequence[Run]], owner: Owner) -> list[ContextOut]:
        """What it goes by for this user's jobs, on each GPU model, driver and torch."""
        stacks = {
            estimate.stack
            for mine in runs.values()
            for run in mine
            if run.estimate
            for estimate in (run.estimate, *run.estimate.others)
            if estimate.source == self.name and estimate.stack
        }
        found: list[ContextOut] = []
        for stack in sorted(stacks):
            past = {user: find_estimates(mine, self.name, stack) for user, mine in runs.items()}
            jobs = sum(map(len, past.values()))
            learned = context_mib(Past(past.pop(owner, []), list(past.values())))
            mib = learned[0] if learned else None
            found.append({"stack": stack, "jobs": jobs, "context_mib": mib})
        return found

    def _default_context(self, torch: str) -> tuple[int, str]:
        """Until it is learned, in MiB; and where it is from."""
        chosen = self.settings.estimation
        measured = find_context(self.server.gpu, torch) if chosen.context_mib is None else None
        if measured is None:
            return chosen.any_context_mib, "as set"
        return measured.mib, f"as measured elsewhere on {measured.gpu}"


def explanation_out(found: Explanation) -> ExplanationOut:
    def holders(ones: Sequence[Held]) -> list[HeldOut]:
        return [
            {"name": one.name, "kind": one.kind, "count": one.count, "mib": one.nbytes >> 20}
            for one in ones
        ]

    return {
        "modules": holders(found.modules),
        "lines": holders(found.lines),
        "remedies": [
            {"what": one.what, "saved_mib": one.saved >> 20, "exact": one.exact}
            for one in found.remedies
        ],
        "moments": [
            {
                "in_use": {
                    part: nbytes >> 20
                    for part, nbytes in zip(PARTS, one.in_use, strict=True)
                    if part != "cached"
                },
                "held_mib": one.reserved >> 20,
                "mark": one.mark,
            }
            for one in found.moments
        ],
    }


def _shape(report: Report) -> str:
    """Equal for the same model, whatever the batch; "" without layers."""
    layers = repr([(layer.kind, layer.parameters) for layer in report.layers])
    return sha256(layers.encode()).hexdigest()[:16] if report.layers else ""


def _parts(report: Report, body_mib: int) -> tuple[tuple[str, int], ...]:
    """The parts in whole MiB, rounded cumulatively so that they add up to `body_mib`. What was live
    was traced: a correction is about what the allocator and libraries hold beyond it."""
    ends = [ceil(end / MIB) for end in accumulate(report.parts.get(part, 0) for part in PARTS)]
    mib = {
        part: end - begin for part, (begin, end) in zip(PARTS, pairwise([0, *ends]), strict=True)
    }
    left = body_mib - sum(mib.values())
    for part in ("cached", "workspace", "activations"):
        change = max(left, -mib[part])
        mib[part] += change
        left -= change
    return tuple(mib.items())


def _contexts(others_mib: int) -> tuple[tuple[str, int], ...]:
    return (("other contexts", others_mib),) if others_mib else ()


def _phases(rest: Rest | None, context_mib: int) -> tuple[tuple[str, int], ...]:
    found = rest.phases if rest else {}
    return tuple((name, ceil(most / MIB) + context_mib) for name, most in found.items())


def _gaps(rest: Rest | None) -> Iterator[str]:
    if rest is None or rest.crash:
        return
    if rest.missing:
        were = "were" if len(rest.missing) > 1 else "was"
        yield f"{' and '.join(rest.missing)} {were} not reached: {rest.end}"
    elif rest.end not in ("", TIME_UP):
        yield f"what follows was not reached: {rest.end}"


def _whose(by: str) -> str:
    return f"similar jobs of {by}" if by.endswith("users") else f"{by} of similar jobs"


def _origin(context_mib: int, origin: str, runs: int | None) -> str:
    """`runs`: the user's own, which were too few to learn from. None: it was learned."""
    here = "on this GPU, driver and torch"
    if runs is None:
        return f"context {context_mib} MiB learned from {origin} {here}"
    return f"context {context_mib} MiB {origin}: {runs} of {ENOUGH_FOR_CONTEXT} runs {here}"


def trace(settings: Settings, server: Server) -> Trace:
    return Trace(settings, server)
