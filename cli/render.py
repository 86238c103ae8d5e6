"""Renders the API's answers about a job as pictures (`cli.text`). Pure: no network, no clock, no
terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carmad.layout_text import OF_STAGE, OF_TIMES, format_fields
from carmad.options import OPTIONS
from carmad.readable import clean
from cli.client import fold_labels
from cli.overview import COLUMNS, params, where
from cli.text import (
    NOTHING,
    Table,
    clock,
    columns,
    command,
    exit_code,
    fraction,
    heading,
    in_style,
    local_time,
    memory,
    pairs,
    span,
    spread,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from carmad.api.intake import DryRunOut
    from carmad.api.job import ExitOut, JobOut, PredictionOut
    from carmad.api.reasons import ReasonOut, VerdictOut
    from carmad.api.report import ReceiptOut
    from carmad.api.why import WhyOut
    from cli.text import Block

LEAST_IDLE_S = 60.0  # GPU time that is said to be idle
SHORT_NOTE = 12  # characters: a note up to this length goes next to the number


def show(job: JobOut) -> list[Block]:
    parts: list[Block] = [*_crash(job), pairs(facts(job)), *_aside(job)]
    its = job.get("receipt")
    if its and job.get("ended_at"):
        parts += [*heading("efficiency receipt"), pairs(receipt(its))]
    if history := job.get("history"):
        parts += heading("history")
        parts += [f"  {local_time(move['at'])}  {move['after']}" for move in history]
    return parts


def several(jobs: Sequence[JobOut]) -> list[Block]:
    """Jobs that were named together, such as the tasks of an array: how many are in each state."""
    first, states = jobs[0], dict[str, list[str]]()
    for job in jobs:
        states.setdefault(job["state"].replace("_", " "), []).append(job["label"])
    (array, *others) = dict.fromkeys(job["label"].partition("_")[0] for job in jobs)
    head = f"{len(jobs)} jobs" if others else f"Array {array}  {clean(first['name'])}"
    counts = [
        (state, f"{len(labels)}  {', '.join(fold_labels(labels))}")
        for state, labels in states.items()
    ]
    parts: list[Block] = [in_style(head, "bold")]
    if not others:
        command_, folder = command(first.get("argv", [])), clean(first.get("cwd", ""))
        about = (("user", clean(first["user"])), ("command", command_), ("directory", folder))
        parts.append(pairs([(name, value) for name, value in about if value]))
    return [*parts, pairs(counts)]


def first_failure(jobs: Iterable[JobOut]) -> JobOut | None:
    """The earliest that ended otherwise than well; one that was cancelled only if there is no
    other."""
    failed = [job for job in jobs if job.get("ended_at") and job["state"] != "succeeded"]
    return min(
        failed, key=lambda job: (job["state"] == "cancelled", job.get("ended_at")), default=None
    )


def _crash(job: JobOut) -> list[Block]:
    """How its script stopped when it was tried; or that no GPU has what it needs."""
    crash, too_large = job.get("crash"), job.get("too_large")
    words = f"its script stops {clean(crash)}" if crash else f"it {clean(too_large)}"
    return [in_style(words, "bold red")] if crash or too_large else []


def _aside(job: JobOut) -> list[Block]:
    """Earlier attempts and notes."""
    parts: list[Block] = []
    if failures := job.get("failures"):
        parts += heading("earlier attempts")
        parts += [f"  {n}  {_ending(how)}" for n, how in enumerate(failures, 1)]
    if retry := job.get("retry"):
        parts += [f"  next: {clean(retry)}"]
    if notes := job.get("notes"):
        parts += heading("notes")
        parts += [f"  · {clean(note)}" for note in notes]
    return parts


def facts(job: JobOut) -> list[tuple[str, str]]:
    """What is known about it: names and values."""
    return [(name, value) for name, value in _about(job) if value != NOTHING]


def _about(job: JobOut) -> list[tuple[str, str]]:
    used = job["memory"]
    asked = need(job) or memory(used["declared_mib"] or None)
    limit = job.get("time_limit_s")
    reason = clean(job.get("reason") or "")
    sm_active = job.get("sm_active_mean")
    how = job.get("exit")
    ended = f"{exit_code(how)}  {_ending(how)}".removeprefix(f"{NOTHING}  ") if how else NOTHING
    return [
        ("job", f"{job['label']}  {clean(job['name'])}"),
        ("user", clean(job["user"])),
        ("state", f"{job['state']}  {reason}".rstrip()),
        ("command", command(job.get("argv", [])) or NOTHING),
        ("parameters", params(job) or NOTHING),
        ("metrics", " ".join(f"{k}={v:g}" for k, v in job.get("metrics", {}).items()) or NOTHING),
        ("script", _script(job)),
        ("directory", clean(job.get("cwd", NOTHING))),
        ("output", _output(job)),
        ("errors", _errors(job)),
        ("submitted", local_time(job["submitted_at"])),
        *_options(job),
        ("waits for", _after(job)),
        ("place in line", str(job.get("position") or NOTHING)),
        ("started", local_time(job["started_at"])),
        ("ended", local_time(job.get("ended_at"))),
        ("time", clock(job["elapsed_s"]) + (f" of {clock(limit)}" if limit else "")),
        ("deadline", deadline(job)),
        ("waited", clock(job.get("wait_s"))),
        ("GPUs", f"{job['gpus_wanted']}" + (f"  on {where(job)}" if job["gpus"] else "")),
        ("Slurm job", str(job.get("slurm_job") or NOTHING)),
        ("mode", job.get("mode") or ("exclusive" if job.get("exclusive") else NOTHING)),
        ("suspended", _suspension(job)),
        ("can suspend", _can_suspend(job)),
        ("batch", _batch(job)),
        ("layout", _layout(job)),
        ("stage times", _each(job.get("stage_times", ()), OF_TIMES)),
        ("memory need", f"{asked} per GPU" if asked != NOTHING else NOTHING),
        ("memory used", memory(used["used_mib"])),
        ("memory peak", memory(used["peak_mib"])),
        ("memory limits", limits(job)),
        ("SM activity", fraction(sm_active)),
        ("energy", COLUMNS["energy"].cell(job)),
        ("GPU time", _gpu_used(job)),
        ("attempt", str(job.get("attempt") or NOTHING) if job["gpus"] else NOTHING),
        ("exit", ended),
        ("advice", job.get("advice") or NOTHING),
    ]


def _gpu_used(job: JobOut) -> str:
    idle_s = job.get("idle_seconds", 0.0)
    idle = f", {clock(idle_s)} of it idle" if idle_s >= LEAST_IDLE_S else ""
    return clock(job.get("gpu_seconds")) + idle


def _suspension(job: JobOut) -> str:
    its = job.get("suspension")
    if its is None:
        return NOTHING
    gpus = ", ".join(str(NOTHING if gpu["index"] is None else gpu["index"]) for gpu in its["gpus"])
    held = memory(its["host_mib"])
    return f"since {local_time(its['since'])}, from GPU {gpus}: {clean(its['why'])}; {held} moved"


def _can_suspend(job: JobOut) -> str:
    why = job.get("unsuspendable")
    return NOTHING if why is None else clean(why) or "yes"


def _script(job: JobOut) -> str:
    size = job.get("script_bytes")
    return NOTHING if size is None else f"copied at submission, {size} bytes"


def receipt(its: ReceiptOut) -> Iterator[tuple[str, str]]:
    """What sharing cost a job, and what it saved."""
    yield "held", _gpu_time(its["gpu_hours"])
    if not its["neighbours"]:
        yield "shared", "never"
        return
    how, saved, others = its["slowdown"], its["saved_gpu_hours"], its["neighbours"]
    yield "shared", f"{its['shared']:.0%} of that, with {others} job{'' if others == 1 else 's'}"
    yield "slowed", _slowdown(how) if how else "not known"
    yield "its part", f"{_gpu_time(its['share_gpu_hours'])}, each GPU divided evenly"
    most = _gpu_time(its["gpu_hours"] - its["share_gpu_hours"])
    yield "saved", f"at most {most}" if saved is None else _gpu_time(saved)


def _gpu_time(hours: float) -> str:
    return f"{hours:.2f} GPU-hours" if abs(hours) >= 1 else f"{hours * 60:.1f} GPU-minutes"


def _slowdown(how: Mapping[str, Any]) -> str:
    """Such as `1.12 times as long as alone (1.10 to 1.15; step times beside 2 jobs)`."""
    of = how["known_from"]
    known = {
        "steps": f"step times beside {of} job{'' if of == 1 else 's'}",
        "runs": f"against {of} runs alone",
        "activity": f"SM activity beside {of} job{'' if of == 1 else 's'}",
    }[how["source"]]
    span = f"{how['low']:.2f} to {how['high']:.2f}; " if how["low"] < how["high"] else ""
    return f"{how['ratio']:.2f} times as long as alone ({span}{known})"


def _options(job: JobOut) -> Iterator[tuple[str, str]]:
    """The given options that have their own line."""
    for name, its in OPTIONS.items():
        value: Any = job.get(name, its.default)
        if its.show and value != its.default:
            yield its.show, option(name, value)


def option(name: str, value: Any) -> str:
    """The value of an option, for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return next((form(value) for end, form in FORMS.items() if name.endswith(end)), clean(value))


def _warning(warn: Mapping[str, Any]) -> str:
    """A signal before the time limit: USR2, 1:00 before the time limit."""
    number = warn["signum"]
    from signal import Signals

    known = {each.value: each.name.removeprefix("SIG") for each in Signals}
    return f"{known.get(number, number)}, {clock(warn['before_s'])} before the time limit"


# How an option is shown, by the end of its name.
FORMS: dict[str, Callable[[Any], str]] = {
    "_at": local_time,
    "_s": clock,
    "_mib": memory,
    "warn": _warning,
}


def need(job: JobOut) -> str:
    """The estimate used to place it, such as `11.2G ±0.8 (history n=7)`; "" without one."""
    used = job["memory"]
    if used["estimate_mib"] is None:
        return ""
    origin = clean(" ".join([used["estimate_source"] or NOTHING, *_beside(job)]))
    return " ".join(filter(None, (memory(used["estimate_mib"]), spread(used), f"({origin})")))


def _beside(job: JobOut) -> list[str]:
    """The first note on its estimate, if short enough to go next to the number."""
    own = job.get("estimate")
    return [note for note in (own["notes"][:1] if own else ()) if len(note) <= SHORT_NOTE]


def deadline(job: JobOut) -> str:
    """When the job should finish, and whether it did or is predicted to."""
    at, late_s = job.get("deadline_at"), job.get("late_s")
    if at is None:
        return NOTHING
    if late_s is not None:
        return f"{local_time(at)}  {f'missed by {span(late_s)}' if late_s > 0 else 'met'}"
    outlook = job.get("outlook")
    return f"{local_time(at)}  {clean(outlook['text']) if outlook else ''}".rstrip()


def _layout(job: JobOut) -> str:
    spread = job.get("layout")
    if not spread:
        return NOTHING
    how = f"\nall-reduce: {spread['allreduce']}"
    return _each(spread["stages"], OF_STAGE) + how


def _each(stages: Sequence[Mapping[str, Any]], words: dict[str, str]) -> str:
    return "\n".join(clean(format_fields(_round(one), words)) for one in stages) or NOTHING


def _round(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measured values rounded to readable digits."""
    return {
        name: float(f"{value:.3g}") if isinstance(value, float) else value
        for name, value in fields.items()
    }


def limits(job: JobOut) -> str:
    """What the driver guarantees it on each of its GPUs, and how much it may use."""
    used = job["memory"]
    guaranteed, most = used.get("guaranteed_mib"), used.get("most_mib")
    if most is None:
        return NOTHING
    may = f"may use {memory(most)}"
    return f"guaranteed {memory(guaranteed)}, {may}" if guaranteed else may


def _batch(job: JobOut) -> str:
    """The batch size of a job that may be split, and how it is split."""
    size, parts = job.get("batch_size"), job.get("accumulation", 1)
    if not size:
        return NOTHING
    return f"{size} per GPU" + (f", in {parts} parts of {size // parts}" if parts > 1 else "")


def _after(job: JobOut) -> str:
    kinds: dict[str, list[str]] = {}
    for one in job.get("after", ()):
        kinds.setdefault(one["kind"], []).append(one.get("label", str(one["job"])))
    folded = (f"{kind}:{name}" for kind, names in kinds.items() for name in fold_labels(names))
    return ", ".join(folded) or NOTHING


def _output(job: JobOut) -> str:
    if not job.get("interactive"):
        return clean(job.get("stdout", NOTHING))
    slurm = job.get("slurm_job")
    return f"that of Slurm job {slurm}" if slurm else "at its terminal"


def _errors(job: JobOut) -> str:
    stderr = job.get("stderr", NOTHING)
    return NOTHING if stderr == job.get("stdout") or job.get("interactive") else clean(stderr)


def _ending(how: ExitOut) -> str:
    words = how["cause"].replace("_", " ")
    if how["evidence"]:
        words += f": {clean(how['evidence'])}"
    if how["fragmented"]:
        words += " (enough memory was free, but fragmented)"
    if how["neighbours"]:
        words += f" (on the same GPUs, {clean(', '.join(how['neighbours']))})"
    return words


def why(answer: WhyOut) -> list[Block]:
    job = answer["job"]
    head = styled((f"Job {job['label']}", "bold"), f" {clean(answer['headline'])}")
    parts: list[Block] = [head, *_crash(job)]
    if answer["position"]:
        behind = answer["behind"]
        after = f", behind job {behind['label']}" if behind else ""
        parts.append(f"place in line: {answer['position']}{after}")
    if start := answer.get("start"):
        parts.append(f"expected start: {clean(start['text'])}")
    parts += [f"  · {clean(fact)}" for fact in answer["facts"]]
    if tail := answer["tail"]:
        parts += ["its last lines:", *(f"  {clean(line)}" for line in tail)]
    for one in answer["ahead"]:
        parts.append(f"  · job {one['label']} of {clean(one['user'])} {clean(one['text'])}")
    lives = not job.get("ended_at")  # afterwards, nobody asks why it was on these GPUs
    if answer["policy"] and lives:
        when = local_time(answer["decided_at"])
        parts.append(f"decided by the policy {answer['policy']} at {when}")
    if (foreseen := deadline(job)) != NOTHING:
        parts.append(f"deadline: {foreseen}")
    if lives:
        news = [reason for reason in answer["reasons"] if reason["text"] not in answer["headline"]]
        parts += [f"  · {refusal(reason)}" for reason in (*news, *answer.get("grounds", ()))]
    parts += _need(job)
    if lives:
        parts += prediction(job)
    parts += _aside(job)
    if answer["verdicts"] and lives:
        parts += ["", verdicts(answer["verdicts"], answer["chosen"])]
    if answer["remedies"]:
        parts += heading("what would help")
        parts += [f"  · {clean(remedy)}" for remedy in answer["remedies"]]
    return parts


def _need(job: JobOut) -> list[Block]:
    """The estimate that decides where it fits, its basis, and why there is no better one."""
    asked = need(job)
    own = job.get("estimate")
    notes = [note for note in (own["notes"] if own else ()) if note not in _beside(job)]
    head: list[Block] = [f"memory need: {asked} per GPU"] if asked else []
    return head + [f"  · {clean(note)}" for note in notes]


def verdicts(judged: Sequence[VerdictOut], chosen: Sequence[str]) -> Table:
    made = Table(columns("- -*"), header=False)
    for verdict in judged:
        index = verdict["gpu"]["index"]
        name = f"GPU {verdict['gpu']['id'] if index is None else index}"
        if verdict["refused"]:
            reasons = "\n".join(refusal(reason) for reason in verdict["refused"])
            made.add(in_style(name, "red"), reasons)
            continue
        words = "chosen" if verdict["gpu"]["id"] in chosen else "would do"
        made.add(in_style(name, "green"), words)
    return made


def refusal(reason: ReasonOut) -> str:
    return clean(reason["text"] or reason["code"])


def dry_run(answer: DryRunOut) -> list[Block]:
    chosen = answer.get("chosen", ())
    head = "It would start now."
    if not answer["would_start"]:
        head = "It would wait for jobs before it in line." if chosen else "It would wait."
    parts: list[Block] = [in_style(head, "bold")]
    parts += [f"  · {refusal(reason)}" for reason in answer.get("reasons", ())]
    parts.append(verdicts(answer["verdicts"], chosen))
    return parts


MOST_PARTS = 8  # of a prediction that are listed: the largest
LEAST_PART = 0.005  # smaller ones would show as zero


def prediction(job: JobOut) -> Iterator[Block]:
    """Its profile and predicted duration, if there are any."""
    if profile := job.get("profile"):
        yield f"profile: {_about_profile(profile)}"
        yield pairs(
            (f"  {clean(one['name'])}", f"{one['mean']:.2f}  (variance {one['variance']:.3g})")
            for one in profile["indicators"]
        )
    if prediction := job.get("prediction"):
        seconds, source = prediction["seconds"], clean(prediction["source"])
        told = f"expected to run for {span(seconds)}" if seconds else "duration unknown"
        if prediction.get("is_guess"):
            told = f"duration unknown; a guess: {span(seconds) if seconds >= 1 else 'seconds'}"
        yield f"{told} ({source})"
        yield from (f"  · {clean(note)}" for note in prediction["notes"])
        yield pairs((f"  {clean(name)}", f"{part:+.2f}") for name, part in _greatest(prediction))
    if (parts := job.get("accumulation", 1)) > 1:
        yield f"each batch is split into {parts} parts"


def _about_profile(profile: Mapping[str, Any]) -> str:
    words = f"alone for {span(profile['seconds'])}, peak {memory(profile['peak_mib'] or None)}"
    return words if profile["of"] is None else f"taken from job {profile['of']}: {words}"


def _greatest(prediction: PredictionOut) -> list[tuple[str, float]]:
    parts = sorted(prediction["parts"].items(), key=lambda part: -abs(part[1]))
    return [part for part in parts[:MOST_PARTS] if abs(part[1]) >= LEAST_PART]
