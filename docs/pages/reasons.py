"""reasons.md: every reason, with an example and what helps; the code has only the sentences."""

from __future__ import annotations

from collections.abc import Callable

from carmad.api.phrases import PHRASES, SHORT, phrase, short
from carmad.core.decision import Reason
from docs.pages.text import cell

# An example of each, and what would help.
HELP: dict[str, tuple[Reason, str]] = {
    "fault": (
        Reason("fault", detail="the GPU must be reset: nvidia-smi --gpu-reset"),
        "An administrator looks at `dmesg`; see the administrators' guide.",
    ),
    "gpus_unread": (
        Reason("gpus_unread", detail="the NVIDIA driver is not loaded"),
        "It starts by itself when the driver is there; `carma doctor` and `nvidia-smi` tell more.",
    ),
    "drained": (Reason("drained", detail="fan swap"), "`carma resume GPU` (administrators)."),
    "stale": (
        Reason("stale", 5, 12, "s"),
        "`carma doctor`: the driver may hang.",
    ),
    "mig_single": (
        Reason("mig_single", 1, 2, "GPUs"),
        "Ask for one GPU: a process sees one MIG instance.",
    ),
    "busy": (
        Reason("busy", 0, 1, "jobs", "job 7"),
        "Wait; or leave out `--exclusive`, if it was asked for.",
    ),
    "outsiders": (
        Reason("outsiders", 500, 21_504, "MiB"),
        "Wait until the processes there end, or end them; `carma status` names them.",
    ),
    "exclusive": (Reason("exclusive", detail="job 7"), "Wait until that job ends."),
    "profiling": (
        Reason("profiling", 1_793_000_000, detail="job 7"),
        "Wait until it is known; see `profiling.run_s`.",
    ),
    "first_kernel": (
        Reason("first_kernel", 600, 12, "s", "job 7"),
        "Wait until that job computes, or `monitor.first_kernel_timeout_s` is over.",
    ),
    "settling": (
        Reason("settling", 30, 8, "s", "job 7"),
        "Wait for the rest of `monitor.window_s`.",
    ),
    "jobs_per_gpu": (
        Reason("jobs_per_gpu", 8, 8, "jobs"),
        "Wait; or raise `collocation.max_jobs_per_gpu`.",
    ),
    "preempted": (
        Reason("preempted", detail="job 9 goes first"),
        "Nothing: it goes on when it is its turn. `--no-requeue` keeps a job from it.",
    ),
    "making_room": (
        Reason("making_room", 2, 1, "GPUs", "job 7"),
        "Wait until those that were preempted for it are gone.",
    ),
    "not_preemptible": (
        Reason("not_preemptible"),
        "See `limits.preemption`; a job of `--no-requeue` never may be.",
    ),
    "mps_user": (
        Reason("mps_user", detail="ada"),
        "Wait until their jobs end there; or see `collocation.mps_multiuser`.",
    ),
    "avoid": (
        Reason("avoid", detail="ran out of memory there"),
        "Another GPU must do (the adaptive recovery).",
    ),
    "memory": (
        Reason("memory", 83_968, 30_720, "MiB"),
        "Ask for less with `--gpu-mem`, or wait.",
    ),
    "min_free": (
        Reason("min_free", 2048, 900, "MiB"),
        "Wait; `preconditions.min_free_mib` says how much must be free.",
    ),
    "risk": (
        Reason("risk", 0.80, 0.91, "SMACT", "DRAMA 0.44 (limit 0.40)"),
        "Wait until the GPU is less busy. `carma gpus` shows the risk.",
    ),
    "unprofiled": (
        Reason("unprofiled", detail="job 7"),
        "Wait until it is profiled, or has ended.",
    ),
    "unpredicted": (
        Reason("unpredicted", detail="this job"),
        "Say it with `--expect`, or choose another `predictor`.",
    ),
    "sharing_score": (
        Reason("sharing_score", 2, 3, detail="job 7 is Medium, this one Jumbo"),
        "Wait; `lucid.sharing_capacity` is the limit.",
    ),
    "gpu_demand": (
        Reason("gpu_demand", 1, 2, "GPUs", "job 7"),
        "Wait: under Lucid only jobs of equal demand share.",
    ),
    "distributed": (
        Reason("distributed", detail="job 7"),
        "Wait: under Lucid jobs that span servers do not share.",
    ),
    "unstable": (
        Reason("unstable", 0.05, 0.12, "", "job 7"),
        "Wait: Lucid shares only with jobs that use their GPU evenly.",
    ),
    "outlasts": (
        Reason("outlasts", 7200, 36_000, "GPU-s", "job 7"),
        "Wait: Lucid does not burden a job with a much longer one.",
    ),
    "kept_for_profiling": (
        Reason("kept_for_profiling"),
        "Nothing: `profiling.gpus` says how many are kept.",
    ),
    "no_benefit": (
        Reason("no_benefit", 5400, 7200, "s", "job 7"),
        "Nothing: Castor has worked out that waiting is better.",
    ),
    "profiling_gpus": (
        Reason("profiling_gpus", 2, 1, "GPUs"),
        "Wait; `profiling.gpus` says how many there are.",
    ),
    "sharing_off": (
        Reason("sharing_off", 4, 1, "GPUs"),
        "Wait; `lucid.off_below` is the limit.",
    ),
    "few_idle": (Reason("few_idle", 4, 1, "GPUs"), "Wait until jobs end."),
    "line_held": (
        Reason("line_held", detail="job 7"),
        "Wait: under A-SRPT nobody passes one that waits.",
    ),
    "better_gpus": (
        Reason("better_gpus", 1_795_384_800, 2.4, detail="times as slow"),
        "Wait; `asrpt.patience` says how long.",
    ),
    "slices_apart": (
        Reason("slices_apart", 4, 2, "GPUs"),
        "Wait until jobs end, or ask for fewer tensor slices.",
    ),
    "reserved": (Reason("reserved", 600, 0, "s"), "Wait; `asrpt.reserve = false` ends that."),
    "partner": (Reason("partner", 1, 1.4, detail="job 7"), "Wait until they have settled."),
    "no_partner": (Reason("no_partner"), "Wait until jobs end."),
    "planned_start": (
        Reason("planned_start", 1, 5400, "s", "job 7"),
        "Wait: Cuckoo plans anew with every change.",
    ),
    "deadline": (
        Reason("deadline", 3600, 5400, "s"),
        "A later `--deadline`, fewer GPUs, or a word with an administrator.",
    ),
    "packed": (
        Reason("packed", 1, 1.4, detail="job 7"),
        "Nothing: Cuckoo put them together for that.",
    ),
    "close_deadlines": (
        Reason("close_deadlines", 1, 0.8, detail="job 7"),
        "Nothing: `cuckoo.weight` says what that counts.",
    ),
    "planned_end": (Reason("planned_end", 7200, 5400, "s"), "Nothing: it is in time."),
    "mapped": (
        Reason("mapped", 0.3, 0.4, "s", "communication-heavy"),
        "Nothing: A-SRPT put it there for that.",
    ),
    "no_room": (
        Reason("no_room", 2, 1, "GPUs"),
        "Wait until jobs end.",
    ),
    "affine": (
        Reason("affine", 2, 1, detail="job 7 is Tiny, this one Medium"),
        "Nothing: Lucid put it there for that.",
    ),
    "sharing_benefit": (
        Reason("sharing_benefit", 7200, 5400, "s", "job 7"),
        "Nothing: Castor put it there for that.",
    ),
    "split_batch": (
        Reason("split_batch", 64, 16, detail="4 parts"),
        "Nothing: `--batch-size` allowed it; gradients stay the same.",
    ),
    "profiled_there": (
        Reason("profiled_there", 200),
        "Nothing: it is known after that. See `profiling.run_s`.",
    ),
    "predicted": (
        Reason("predicted", 0, 5400, "s", "history"),
        "`--expect` says it better.",
    ),
    "held": (Reason("held"), "`carma release JOB`."),
    "begin": (Reason("begin", 1_795_384_800, 0, "s"), "Wait: `--begin` asked for it."),
    "dependency": (Reason("dependency", detail="job 7"), "Wait for that job to end."),
    "array_limit": (
        Reason("array_limit", 2, 2, "tasks"),
        "Wait: the `%N` of `--array` asked for it.",
    ),
    "quota": (
        Reason("quota", 2, 2, "GPUs", "ada"),
        "Wait until one of your jobs ends; `limits.gpus_per_user` is the limit.",
    ),
    "policy_failed": (
        Reason("policy_failed", detail="it raised KeyError('x')"),
        "An administrator repairs the policy, chooses another, or sets `policy_fallback`.",
    ),
    "policy_fallback": (
        Reason("policy_fallback", detail="lucid"),
        "Nothing: `policy_fallback` decides until the policy answers again.",
    ),
}
OF_THE_JOB = (
    *("held", "begin", "dependency", "array_limit", "quota"),
    *("preempted", "making_room", "not_preemptible", "policy_failed"),
    *("profiling_gpus", "sharing_off", "no_room", "few_idle", "line_held", "better_gpus"),
    *("slices_apart", "reserved", "partner", "no_partner", "planned_start", "deadline"),
)
POLICYS = (
    *("memory", "min_free", "risk", "unprofiled", "sharing_score", "gpu_demand", "distributed"),
    *("unpredicted", "unstable", "outlasts", "kept_for_profiling", "no_benefit"),
)
GROUNDS = (
    *("affine", "sharing_benefit", "split_batch", "profiled_there", "predicted"),
    *("packed", "close_deadlines", "planned_end", "mapped", "policy_fallback"),
)


def page() -> str:
    out = [
        "# Reasons",
        "",
        "Why a job waits. The rule that says no makes the reason, with the numbers that it used;"
        " `carma why JOB` prints it as a sentence, the last column of `carma queue` as a word, and"
        " `--json` as `code`, `need`, `have`, `unit` and `detail`. Codes are stable. A plugin may"
        " use codes of its own.",
        "",
        "Two words of that column are no reasons: `(Priority)`, a job before this one holds the"
        " line, and `(Resources)`, too few GPUs said yes. `(Estimating)` means that the job's"
        " memory need is not known yet.",
    ]
    kinds: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
        (
            "Of a GPU: CARMA's hard rules",
            "No policy can override these.",
            lambda code: code not in OF_THE_JOB + POLICYS + GROUNDS,
        ),
        (
            "Of a GPU: preconditions of the policies",
            "The built-in sharing policies apply the first three (all but `exclusive`), Lucid and"
            " Castor also the others.",
            lambda code: code in POLICYS,
        ),
        ("Of the job", "No GPU is to blame.", lambda code: code in OF_THE_JOB),
        (
            "Why a job was placed as it was",
            "What spoke for it (`grounds` in `--json`).",
            lambda code: code in GROUNDS,
        ),
    )
    for title, said, belongs in kinds:
        out += ["", f"## {title}", "", said, ""]
        out += ["| Code | In a table | In words, for example | What helps |", "|---|---|---|---|"]
        for code in filter(belongs, PHRASES):
            example, help = HELP[code]
            where = "" if code in OF_THE_JOB + GROUNDS else "GPU1"
            out.append(
                f"| `{code}` | `({cell(short(example, where))})` | {cell(phrase(example))}"
                f" | {help} |"
            )
    return "\n".join(out)


def reasons() -> set[str]:
    return set(PHRASES) | set(SHORT)
