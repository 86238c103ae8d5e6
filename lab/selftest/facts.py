"""What CARMA relies on and has read, not seen: one entry per assumption, with the check of it, or
how to find out where no self-test can. `docs/hardware.md` is made of this table and of reports."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.selftest import facts
from carmad.selftest.facts import Check, Fact
from lab.selftest import activity, faults, memory, mps, suspending, training


@dataclass(frozen=True, slots=True)
class Assumption:
    name: str
    relies_on: str
    source: str
    otherwise: str  # what follows where it is not so; a setting that helps is in backticks
    check: Check | None = None
    by_hand: str = ""  # without a check, or beside it: how to find out

    @property
    def fact(self) -> Fact:
        """For the self-test. It has a check."""
        assert self.check is not None
        return Fact(self.name, self.otherwise, self.check)


_PRODUCTS = {fact.name: fact for fact in facts.FACTS}


def _of_the_product(name: str, relies_on: str, source: str, by_hand: str = "") -> Assumption:
    """One that `carma doctor --gpu` checks."""
    its = _PRODUCTS[name]
    return Assumption(name, relies_on, source, its.otherwise, its.check, by_hand)


SECTIONS: dict[str, tuple[Assumption, ...]] = {
    "Memory and processes (NVML)": (
        Assumption(
            "memory_used",
            "memory used, version 2, is what `nvidia-smi` shows and what was allocated, and `free`"
            " is what can be allocated",
            "NVML bindings; reports on gpustat#141. nvml.h contradicts itself",
            "free memory is off by the reserved part (hundreds of MiB)",
            memory.totals,
        ),
        Assumption(
            "process_memory",
            "memory per process covers context, allocator and libraries",
            "nvml.h",
            "a job counts for less memory than it uses, the rest as external",
            memory.of_process,
        ),
        Assumption(
            "process_lists",
            "the process lists for compute and MPS, united by pid, contain every client exactly"
            " once",
            "MPS manual; its pages disagree",
            "a client is missed: its memory counts as external",
            memory.mps_lists,
        ),
        Assumption(
            "process_leaves",
            "a process disappears from the list when its memory has been freed",
            "design",
            "the next job is placed too early or 10 s late",
            memory.leaves,
        ),
        Assumption(
            "memory_limits",
            "the driver keeps what a cgroup is guaranteed from all others, refuses what is beyond"
            " its limit with the ordinary out-of-memory error, and takes other limits while its"
            " processes run",
            "NVML API reference and change log, R615",
            "jobs are guaranteed no memory, and those without MPS may use more than their"
            " `--gpu-mem`: `collocation.guarantee_memory`",
            memory.limits,
            by_hand="under MPS, and for suspended jobs: `carma show` and `nvidia-smi` of both",
        ),
        Assumption(
            "host_memory",
            "a GPU without memory of its own (GB10) has the addressing mode ATS, its memory is Not"
            " Supported, and the host's `MemAvailable` is what can be allocated on it",
            "gpud#1170, nvitop#208, gpustat#179",
            "the GPU is left out, which `carma doctor` says, or its free memory is wrong",
            by_hand="`nvidia-smi -q` and `carma gpus` on a DGX Spark or Jetson Thor, beside a job"
            " that allocates much",
        ),
        Assumption(
            "managed_memory",
            "`cudaMallocManaged` memory is mostly not in the list",
            "pynvml#63",
            "it counts as external, or as the job's",
            by_hand="run a job that uses it (no more than is free: beyond that a GPU may hang)",
        ),
    ),
    "Time to first kernel": (
        Assumption(
            "busy_sampled",
            "a process that runs kernels has a utilisation sample above 0 within seconds",
            "nvml.h",
            "the job stays `CF` and keeps others off its GPU for ten minutes"
            " (`monitor.first_kernel_timeout_s`)",
            activity.busy_sampled,
        ),
        Assumption(
            "mps_clients_sampled",
            "utilisation is reported per MPS client",
            "undocumented; without a sample, the GPU's activity and the job's memory decide",
            "under MPS a job may become `R` a window late, or when a neighbour's load rises",
            activity.mps_clients,
        ),
        Assumption(
            "context_unsampled",
            "a context without kernels, as after `import torch`, gives no sample above 1 %",
            "inference",
            "a job is judged too early",
            activity.context_unsampled,
        ),
        Assumption(
            "mig_utilization",
            "MIG instances do not report utilisation per process; activity and memory of the"
            " instance have to do",
            "nvml.h",
            "a job on an instance becomes `R` before its first kernel",
            activity.mig,
        ),
    ),
    "Risk (GPM and DCGM)": (
        _of_the_product(
            "gpm_activity",
            "GPM can be read by the daemon, and gives percent",
            "nvml.h, DCGM's source",
        ),
        Assumption(
            "gpm_traffic",
            "GPM reports PCIe traffic in MiB/s, and receiving is from the host",
            "nvml.h, DCGM's source",
            "profiles have these indicators in other units",
            activity.gpm_traffic,
        ),
        _of_the_product(
            "dcgm_activity",
            "`dcgmi dmon` prints what its source suggests, with DCGM 3 and 4, in fractions",
            "DCGM 4.6 source",
        ),
        Assumption(
            "dcgm_traffic",
            "DCGM reports traffic in bytes/s, and multiplexes all eleven fields before Hopper, or"
            " ends without a row",
            "DCGM's source and guide",
            "profiles lack these indicators, or have them in other units",
            activity.dcgm_traffic,
        ),
        Assumption(
            "gpm_pipes",
            "GPM reports pipes (tensor, FP32, FP16) in percent and NVLink traffic in MiB/s",
            "nvml.h, DCGM's source and guide",
            "profiles have these indicators in other units",
            by_hand="`carma why` of a profiled job beside `dcgmi dmon -e 1001,1004,1007,1011`, on"
            " an A100 and an H100",
        ),
        Assumption(
            "privileges",
            "the driver takes `CAP_SYS_ADMIN` for root, and carmad's unit denies nothing that GPM"
            " and the process lists need",
            "NVIDIA's open kernel modules (`NV_IS_SUSER`)",
            "no SMACT, or other users' processes are missing, but only in the unit",
            by_hand="`carma gpus` with the unit and with `sudo carmad` by hand, with a second"
            " user's job",
        ),
        Assumption(
            "device_files",
            "after a boot without `nvidia-persistenced`, carmad's NVML makes the device files"
            " inside the unit, once `modprobe@nvidia.service` has loaded the driver",
            "`nvidia-modprobe`",
            "carmad finds no GPU until root has run `nvidia-smi`",
            by_hand="reboot with it disabled; `ls -l /dev/nvidia*`",
        ),
        Assumption(
            "host_engine",
            "DCGM needs `nv-hostengine` as root, and CARMA's `dmon` beside dcgm-exporter is fine",
            "DCGM guide",
            "blank values",
            by_hand="with dcgm-exporter running",
        ),
        Assumption(
            "thresholds",
            "thresholds 0.80, 0.45, 0.40 fit other GPUs than the paper's A100 40 GB",
            "the paper measured there only",
            "too much or too little sharing",
            by_hand="the benchmark trace on your GPU, with two sets of thresholds",
        ),
    ),
    "MPS": (
        _of_the_product(
            "mps_daemon",
            "a control daemon with a pipe directory of its own serves the clients of its GPU",
            "MPS manual",
        ),
        _of_the_product(
            "mps_daemons",
            "several daemons, one per GPU, work at once",
            "MPS manual",
        ),
        _of_the_product(
            "mps_node",
            "one daemon for all GPUs serves clients of each; a fault ends the clients that share"
            " its GPU and no others, and until they are gone, new clients are refused on all GPUs",
            "NVIDIA forum 238139; the CARMA artifact has one daemon",
        ),
        Assumption(
            "mps_several_gpus",
            "one process can be the client of a node's server on several GPUs, which it finds by"
            " their UUIDs, and its memory limit holds on each",
            "MPS manual; the CARMA artifact's jobs of two GPUs",
            "jobs of several GPUs fail under `collocation.mps_scope` = node",
            by_hand='`mps_scope = "node"`, a run with `--gpus 2 --gpu-mem`: `carma show` has no'
            " note, and `nvidia-smi` shows it as `M+C` on both GPUs",
        ),
        Assumption(
            "mps_beside",
            "a process outside MPS and an MPS server can use a GPU at the same time, taking turns",
            "MPS manual (compute mode `DEFAULT`)",
            'with `collocation.mps_scope = "gpu"`, jobs of several GPUs fail beside others',
            by_hand="`mps_fault` has a process beside the clients; how they share the time: the"
            " step times of a pair, one of them with `CUDA_MPS_PIPE_DIRECTORY=/x`",
        ),
        Assumption(
            "mps_uuid",
            "clients find the server with the UUID in `CUDA_VISIBLE_DEVICES`",
            "MPS manual",
            '"no CUDA device"',
            mps.names_gpu,
        ),
        _of_the_product(
            "mps_multiuser",
            "`-multiuser-server` is how this driver spells the option, and such a server takes"
            " several users' clients",
            "MPS manual, r550 and 615",
        ),
        Assumption(
            "mps_two_users",
            "a second user's client hangs while a first user's is there",
            "MPS manual",
            "CARMA is stricter than necessary",
            mps.two_users,
        ),
        Assumption(
            "mps_limit",
            "`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-…=8192M` limits the client; beyond, it gets the"
            " ordinary out-of-memory error",
            "MPS manual, Dynamo docs (driver 615.71)",
            "`--gpu-mem` is advisory under MPS too",
            mps.limit,
        ),
        _of_the_product(
            "mps_fault",
            "a fault ends all clients of that server and no others; state FAULT is seen; when they"
            " are gone, new clients are served",
            "MPS manual; NVIDIA forum 238139",
        ),
        _of_the_product(
            "mps_terminate",
            "`terminate_client` before SIGKILL protects the others",
            "MPS manual, r550",
        ),
        _of_the_product(
            "contexts",
            "a context, with MPS or without, takes no more than `estimation.context_mib`",
            "not measured",
        ),
    ),
    "Suspending jobs (CUDA's process checkpoint)": (
        Assumption(
            "suspend_api",
            "libcuda offers process checkpoint (driver 570 or newer)",
            "CUDA driver API, 13.0",
            "no job can be suspended: `suspend.host_memory_mib`",
            suspending.api,
        ),
        _of_the_product(
            "suspend_cycle",
            "root suspends and resumes a process by its pid, also if it is stopped meanwhile: all"
            " of its memory is free for others, and has the same contents afterwards",
            "CUDA driver API, 13.0; NVIDIA/cuda-checkpoint",
        ),
        Assumption(
            "suspend_frees",
            "all memory of a suspended process is free for others, and NVML lists the process no"
            " more",
            "NVIDIA/cuda-checkpoint, README",
            "suspending a job makes no room: `suspend.host_memory_mib`",
            suspending.frees,
        ),
        Assumption(
            "suspend_contents",
            "its memory has the same contents afterwards",
            "NVIDIA/cuda-checkpoint, README",
            "suspended jobs compute nonsense: `suspend.host_memory_mib`",
            suspending.contents,
        ),
        Assumption(
            "suspend_stopped",
            "a suspended process may be stopped, and resumes once it is continued",
            "seen on an H100: the restore of a process that is stopped waits",
            "jobs hang when they are to resume, and are lost: `suspend.host_memory_mib`",
            suspending.stopped,
        ),
        Assumption(
            "suspend_busy",
            "a lock with a timeout fails with error 600 (not ready) while a kernel runs for"
            " longer, and leaves the process as it was",
            "cuda-samples, processCheckpoint",
            "a job with long kernels is suspended late (`suspend.lock_within_s`), or harmed",
            suspending.busy,
        ),
        Assumption(
            "suspend_without_cuda",
            "a process without CUDA has no state: error 3 (not initialized)",
            "NVIDIA/cuda-checkpoint#28",
            "jobs with processes that do not use the GPU, such as data loaders, cannot be"
            " suspended",
            suspending.without_cuda,
        ),
        Assumption(
            "suspend_root",
            "only root may suspend a process; its own user gets error 304",
            "seen on an H100",
            "users suspend their jobs behind CARMA's back",
            suspending.root_only,
        ),
        Assumption(
            "suspend_mps",
            "a client of MPS is refused with error 801 (not supported), and goes on",
            "seen on an H100",
            "CARMA is stricter than necessary, or harms clients",
            suspending.mps_client,
        ),
        Assumption(
            "suspend_no_room",
            "a restore without enough free memory is refused, and the process stays suspended",
            "CUDA driver API, 13.0",
            "a job that resumes too early harms others, or fails",
            suspending.no_room,
        ),
        Assumption(
            "suspend_room_again",
            "after that, it can be restored once there is room",
            "NVIDIA/cuda-checkpoint#44: driver 580 restores it never again",
            "a job that resumes too early is lost: it ends, and is run again",
            suspending.room_again,
        ),
        _of_the_product(
            "suspend_moves",
            "it can be restored on another GPU of the same kind (driver 580 or newer)",
            "NVIDIA/cuda-checkpoint#18",
        ),
        _of_the_product(
            "suspend_speed",
            "suspending and resuming take no longer than `suspend.out_mib_s`, `suspend.in_mib_s`"
            " and `suspend.fixed_s` say",
            "measured on an H100",
        ),
        Assumption(
            "suspend_nccl",
            "processes that NCCL connects cannot be locked within a timeout, and go on",
            "NVIDIA/cuda-checkpoint#30, #45",
            "a distributed job hangs when it is to be suspended",
            by_hand="`carma suspend` of a job of two GPUs with DistributedDataParallel",
        ),
    ),
    "Stages and islands": (
        Assumption(
            "profiler",
            "PyTorch's profiler, started in the middle of a run for four iterations, sees the"
            " kernels of each, with no more privileges than the job has",
            'tried without a GPU only; CUPTI documentation, "Limitations"',
            "the host's times are reported instead, which are those of the launches",
            training.profiler,
            by_hand="for other models: `carma submit --watch-stages`, then `carma show`",
        ),
        Assumption(
            "profiler_mps",
            "it works for a client of MPS",
            "not documented",
            "as above",
            by_hand="a watched job with `mps = true`",
        ),
        Assumption(
            "profiler_cost",
            "it slows down a few iterations, and leaves nothing behind that would slow down the"
            " rest or keep GPU memory",
            "design",
            "a watched job is slower, or larger than estimated",
            by_hand="time of a step and memory of the job, before iteration 15, from 16 to 20, and"
            " after",
        ),
        Assumption(
            "profiler_conflict",
            "an external profiler of the job (Nsight Systems) conflicts with it, and neither ends"
            " the job",
            "PyTorch issues 112389, 117935: CUPTI has one subscriber",
            "a watched job fails",
            by_hand="a watched job under `nsys profile`",
        ),
        Assumption(
            "nccl_names",
            "NCCL's kernels have `nccl` in their names, and their waiting for each other counts as"
            " communication",
            "names seen in traces",
            "communication counts as forward or backward",
            by_hand="a watched job of two GPUs with DistributedDataParallel",
        ),
        Assumption(
            "islands",
            "the status of peer-to-peer over NVLink is OK exactly for GPUs connected by NVLink or"
            " NVSwitch",
            "nvml.h",
            "islands are too large or too small: A-SRPT maps jobs badly",
            faults.nearness,
        ),
        Assumption(
            "sockets",
            'the common ancestor of two GPUs is "node" or nearer below one NUMA node, and "system"'
            " across",
            "nvml.h",
            "as above",
            by_hand="`nvidia-smi topo -m` beside `carma gpus`, on a server with two sockets and no"
            " NVLink",
        ),
    ),
    "Faults": (
        Assumption(
            "own_kills",
            "Xid 45 is caused by our own kills, other Xids by a program's faults, and none of them"
            " is a reason to drain",
            "Xid catalog",
            "healthy GPUs are drained",
            faults.kills,
        ),
        Assumption(
            "conditions",
            "a GPU in order has no condition, idle or busy: no repair waits, no memory error was"
            " counted, and its clocks are slow for its own power limit at most",
            "nvml.h; NVIDIA's document on memory errors",
            "healthy GPUs are warned of, or drained",
            faults.conditions,
        ),
        Assumption(
            "gpu_lost",
            "a lost GPU is reported as such, while others go on",
            "nvml.h",
            "all GPUs show a fault",
            by_hand="unbind one from the driver, where that is safe",
        ),
        Assumption(
            "reset",
            "stopping carmad, DCGM and persistenced is enough for a reset",
            "reports (NVSentinel#1690, gpu-operator#118)",
            '"in use by another client"',
            by_hand="`nvidia-smi --gpu-reset` as in the administrators' guide",
        ),
        Assumption(
            "index_order",
            "the order of indices is the PCI bus order",
            "nvml.h: no guarantee",
            "`carma` and `nvidia-smi` number GPUs differently; UUIDs are right anyway",
            faults.order,
        ),
        Assumption(
            "energy",
            "the energy counter counts mJ since the driver was loaded",
            "nvml.h",
            "energy per job is wrong",
            faults.energy,
        ),
    ),
    "Jobs": (
        Assumption(
            "host_oom",
            "a transient unit with `Delegate=yes` may make cgroups for jobs below its own,"
            " whose kills for memory are counted",
            "systemd manual",
            "host-memory kills are not recognised",
            faults.host_oom,
        ),
        Assumption(
            "containers",
            "podman's `--device nvidia.com/gpu=UUID` gives a container that GPU, and its processes"
            " find their MPS server by the mounted pipe",
            "documentation of NVIDIA's container toolkit and of MPS",
            "`--container` jobs see no GPU, or share none by MPS",
            by_hand="`carma submit --container IMAGE nvidia-smi -L`; a training job with"
            " `mps = true`, whose memory `carma show` has",
        ),
        Assumption(
            "oom_text",
            "the wording of out-of-memory errors",
            "wheels of torch 1.13 to 2.15, CUDA headers",
            "an OOM counts as a plain failure and is not retried",
            training.oom_text,
        ),
        Assumption(
            "hung_cpu",
            "a program that hangs takes less than 5 % of a processor, with its data loaders; one"
            " that launches kernels takes more",
            "PyTorch 2.13 without a GPU: 0.1 % with eight idle workers (2026-12-01)",
            "a job that hangs after an out-of-memory error is not found; or one that works under"
            " MPS, and prints nothing, counts as hanging: `recovery.hung_s`",
            by_hand="`carma why` of a script that waits after such an error, and of a client of"
            " MPS with long kernels",
        ),
        _of_the_product(
            "torch_context",
            "PyTorch's context and libraries take about `estimation.context_mib`",
            "reports; not measured",
        ),
        Assumption(
            "allocator",
            "PyTorch reserves segments of 2 MiB, 20 MiB and multiples of 2 MiB",
            "c10/core/AllocatorConfig.h",
            "estimates of the tracer are off",
            training.allocator,
        ),
        Assumption(
            "full",
            "a GPU counts as full with less than 3 % free",
            "guess",
            "ambiguous errors are misclassified",
            by_hand="an out-of-memory error of cuBLAS or NCCL beside other jobs",
        ),
    ),
}

ASSUMPTIONS = tuple(each for its in SECTIONS.values() for each in its)
CHECKED = tuple(each for each in ASSUMPTIONS if each.check)
EXPLAINING = tuple(each.fact for each in CHECKED if each.name not in _PRODUCTS)
