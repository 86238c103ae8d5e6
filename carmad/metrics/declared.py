"""Every metric: its name, kind, labels and meaning. The daemon's answer, the reference page and
the tests of rules and dashboard read this table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

KINDS: dict[str, Any] = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}
MOST_LABEL = 128  # characters


class Metric(NamedTuple):
    """Units are base units, and end the name, as Prometheus' conventions want it."""

    kind: str
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram

    def series(self, registry: CollectorRegistry) -> Any:
        bounds = {"buckets": self.buckets} if self.buckets else {}
        return KINDS[self.kind](self.name, self.help, self.labels, registry=registry, **bounds)


def clean(labels: Iterable[str]) -> list[str]:
    """Names of users and estimators may have any characters, also bytes that are not UTF-8."""
    return [each[:MOST_LABEL].encode(errors="replace").decode() for each in labels]


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric("gauge", f"carma_{name}", help, labels)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric("counter", f"carma_{name}_total", help, labels)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric("histogram", f"carma_{name}", help, labels, buckets)


GPU = ("gpu", "uuid")
_BRIEF_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WAIT_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0)
_RATIO = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

UP = _gauge("up", "1 if the daemon answers, else 0, and then there is nothing else.")
BUILD = _gauge("build_info", "Always 1: the version of CARMA, and the policy.", "version", "policy")
DEGRADED = _gauge("degraded", "1 if the GPUs cannot be read, a plugin fails, or a thread hangs.")
THREAD_AGE_S = _gauge(
    "thread_work_age_seconds",
    "For how long a thread of the daemon has been at what it does; 0 while it waits for work.",
    "thread",
)
THREAD_LATE = _gauge("thread_late", "1 if that is longer than it may be: it hangs.", "thread")
STEP_S = _histogram(
    "step_duration_seconds", "How long the core took for some events and its plan.", _BRIEF_S
)
COMMIT_S = _histogram(
    "commit_duration_seconds", "How long it took to write what a step changed to disk.", _BRIEF_S
)
STEPS_FAILED = _counter(
    "steps_failed", "Steps that were not committed: the disk is full, or the core failed."
)
DATABASE = _gauge("database_size_bytes", "Size of the database, with its write-ahead log.")
DISK_SIZE = _gauge("disk_size_bytes", "Size of the file system that has the database.")
DISK_FREE = _gauge("disk_free_bytes", "What the daemon may still write there.")

GPU_INFO = _gauge("gpu_info", "Always 1: the model of a GPU or MIG instance.", *GPU, "model")
GPUS_UNREAD = _gauge("gpus_unread", "1 while it is not known which GPUs there are.")
GPU_FAULTY = _gauge("gpu_faulty", "1 if the driver reports a fault of the GPU.", *GPU)
GPU_DRAINED = _gauge("gpu_drained", "1 if the GPU takes no new jobs because it is drained.", *GPU)
GPU_CONDITION = _gauge(
    "gpu_condition", "1 while this is wrong with a GPU that works.", *GPU, "condition"
)
GPU_STALE = _gauge(
    "gpu_stale", "1 if the last reading is too old: what is read of it is left out.", *GPU
)
GPU_JOBS = _gauge("gpu_jobs", "Jobs that hold the GPU.", *GPU)
GPU_MEMORY = _gauge("gpu_memory_size_bytes", "Memory that jobs may use.", *GPU)
GPU_USED = _gauge("gpu_memory_used_bytes", "Memory in use.", *GPU)
GPU_PROMISED = _gauge(
    "gpu_memory_promised_bytes",
    "Memory kept for the jobs on the GPU: what each holds or was promised, if that is more.",
    *GPU,
)
GPU_EXTERNAL = _gauge("gpu_memory_external_bytes", "Memory in use by processes of no job.", *GPU)
GPU_UTILIZATION = _gauge("gpu_utilization_ratio", "NVML: time with any kernel at all.", *GPU)
GPU_SM = _gauge("gpu_sm_active_ratio", "SM activity, where it is measured.", *GPU)
GPU_OCCUPANCY = _gauge("gpu_sm_occupancy_ratio", "SM occupancy, where it is measured.", *GPU)
GPU_DRAM = _gauge("gpu_dram_active_ratio", "DRAM activity, where it is measured.", *GPU)
GPU_POWER = _gauge("gpu_power_watts", "Power.", *GPU)
GPU_ENERGY = _counter("gpu_energy_joules", "Energy since the driver was loaded.", *GPU)
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature.", *GPU)

JOBS = _gauge("jobs", "Jobs that have not ended.", "state")
JOBS_HELD = _gauge("jobs_held", "Jobs that wait because they are held.")
JOBS_RECOVERING = _gauge("jobs_recovering", "Jobs that wait for another attempt.")
QUEUE = _gauge("queue_length", "Jobs that nothing but the GPUs keeps waiting.")
QUEUE_WAIT_S = _gauge("queue_longest_wait_seconds", "Longest wait so far among these.")
QUEUE_STUCK = _gauge(
    "queue_stuck", "1 if the first of these waits although as many GPUs as it wants are idle."
)
SUBMITTED = _counter("jobs_submitted", "Jobs that were submitted; each task of an array counts.")
ENDED = _counter("jobs_ended", "Jobs that ended, by how.", "outcome")
ATTEMPTS = _counter("attempts_ended", "Attempts of jobs that ended, by why.", "cause")
OOMS = _counter(
    "ooms", "Attempts that ran out of GPU memory, by what became of the job.", "outcome"
)
RECOVERED = _counter("jobs_recovered", "Jobs that succeeded after they had run out of GPU memory.")
SUSPENSIONS = _counter("suspensions", "Times that a job was suspended.")
SUSPENDED_MEMORY = _gauge(
    "suspended_memory_bytes", "Memory of the host that suspended jobs' GPU memory takes."
)
WAIT_S = _histogram(
    "job_wait_seconds", "From the submission of a job to the start of its first attempt.", _WAIT_S
)
ESTIMATE = _histogram(
    "estimate_ratio",
    "Estimated over measured peak memory, of jobs that succeeded; below 1 it was too low.",
    _RATIO,
    "estimator",
)
USER_JOBS = _gauge(
    "user_jobs",
    "Jobs of a user that have not ended, by whether they hold GPUs; only with metrics.users."
    " Those of users beyond the first hundred have an empty name.",
    *("user", "state"),
)

JOB_LABELS = ("job_id", "user", "gpu", "uuid")
_OF_JOBS = "; only with metrics.jobs, and of the latest 200 jobs on GPUs."
JOB_MEMORY = _gauge("job_memory_used_bytes", f"Memory that a job holds{_OF_JOBS}", *JOB_LABELS)
JOB_PEAK = _gauge(
    "job_memory_peak_bytes", f"The most that a job has held on one GPU{_OF_JOBS}", *JOB_LABELS
)
JOB_PROMISED = _gauge("job_memory_promised_bytes", f"Memory kept for a job{_OF_JOBS}", *JOB_LABELS)
JOB_ACTIVE = _gauge(
    "job_sm_ratio",
    "NVML: time in which kernels of a job's processes ran, where it is measured" + _OF_JOBS,
    *JOB_LABELS,
)

METRICS = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
