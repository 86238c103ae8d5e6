"""What runs a job's command in a container of its user's.

Pure: nothing here starts or looks for a program. Podman and Apptainer start containers as children
of the job's own processes, so that the supervisor finds, limits and ends them. Docker's are started
by a daemon of root's, outside of the job, and would outlive it; so it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from zlib import crc32

from carmad.attempt.environment import ATTEMPT_VARIABLE, HOOKS, MPS_PIPE, NO_MPS
from carmad.core.jobs.job import Job
from carmad.errors import CarmaError

ENGINES = ("podman", "apptainer")  # the first that is installed is used

# What describes the host's programs, or configures the engine itself. Podman takes a name that
# ends in an asterisk as a pattern.
_OF_THE_HOST = re.compile(
    r"PATH|LD_.*|PYTHONHOME|VIRTUAL_ENV|SHELL|TMPDIR|HOSTNAME"
    r"|(CONDA|CONTAINERS?|XDG|DBUS|APPTAINER|SINGULARITY)_.*|.*\*"
)

EMULATED_PROC = "CARMA_EMULATED_PROC"
HOST_PROC = "/carma/proc"  # emulated cards know processes by the host's pids

_PODMAN = Path(__file__).with_name("podman.sh").read_text(encoding="utf-8")


def wrap(
    engine: str,
    job: Job,
    command: Sequence[str],
    env: Mapping[str, str],
    cards: str = "",
    script: str | None = None,
) -> list[str]:
    """What runs `command`, with `env`, in a container of the job's image.

    `engine`: a path whose last part is one of ENGINES; `cards`: the directory of the emulated GPUs,
    "" for real ones; `script`: the copy of the job script that `command` names. Raises CarmaError.
    """
    spec, image = job.spec, job.spec.container
    assert image is not None
    mounts = [f"{path}:{path}" for path in _folders(env.get("HOME", "/"), spec.cwd)]
    if (pipe := env.get(MPS_PIPE, NO_MPS)) != NO_MPS:
        mounts.append(f"{pipe}:{pipe}")
    if HOOKS in env.get("PYTHONPATH", ""):
        mounts.append(f"{HOOKS}:{HOOKS}:ro")
    if script:
        mounts.append(f"{script}:{script}:ro")
    if cards:
        mounts += [f"{cards}:{cards}", f"/proc:{HOST_PROC}"]
    if PurePath(engine).name == "apptainer":
        return [*_apptainer(engine, job, image, mounts), *command]
    name = f"carma-{job.id}-{job.attempt}-{crc32(env[ATTEMPT_VARIABLE].encode()) & 0xFFFF:04x}"
    wrapper = ("/bin/bash", "-c", _PODMAN, "carma-container", engine, image, name)
    gpus = () if cards else job.gpus
    words = (*wrapper, " ".join(gpus), *_podman(job, env, mounts, gpus, emulated=bool(cards)))
    return [*words, image, *command]


def has_processes(engine: str) -> bool:
    """Whether there are processes of the engine's around the program, in another namespace."""
    return PurePath(engine).name == "podman"


def _podman(
    job: Job, env: Mapping[str, str], mounts: Sequence[str], gpus: Sequence[str], *, emulated: bool
) -> list[str]:
    """The options of `podman create`."""
    passed = [name for name in env if not _OF_THE_HOST.fullmatch(name)]
    return [
        "--rm",
        "--pull=never",  # the GPUs would wait for it
        "--init",  # the kernel spares a pid 1 that handles no signals from SIGTERM
        "--pid=private",  # by which the supervisor tells the program from podman
        "--cgroups=disabled",  # its processes stay in the job's cgroup, with its limits
        "--network=host",
        "--ipc=host",  # MPS clients share memory with their server, and data loaders need much
        "--log-driver=passthrough",  # its output is the job's
        "--security-opt=label=disable",  # SELinux would forbid the user's own files
        "--ulimit=host",
        f"--umask={job.spec.umask:04o}",
        # Root is root without both; podman refuses them there.
        *(["--userns=keep-id", "--group-add=keep-groups"] if job.spec.uid else []),
        f"--workdir={job.spec.cwd}",
        *(f"--volume={mount}" for mount in mounts),
        *(f"--env={name}" for name in passed),
        *([f"--env={EMULATED_PROC}={HOST_PROC}"] if emulated else []),
        *(f"--device=nvidia.com/gpu={gpu}" for gpu in gpus),
        # The command is what the user wrote, whatever the image would run, and as whom.
        f"--user={job.spec.uid}:{job.spec.gid}",
        "--entrypoint=",
        "--no-healthcheck",  # a timer of the user's systemd would run it, outside of the job
    ]


def _apptainer(engine: str, job: Job, image: str, mounts: Sequence[str]) -> tuple[str, ...]:
    """It passes the environment on, and its processes share the host's pids. It does not know CDI:
    CUDA_VISIBLE_DEVICES selects the GPUs."""
    named = "://" in image or image.startswith(("/", "./", "../"))
    return (
        engine,
        "exec",
        *(["--nv"] if job.gpus else []),
        *(f"--bind={mount}" for mount in mounts),
        f"--pwd={job.spec.cwd}",
        image if named else f"docker://{image}",
    )


def _folders(home: str, cwd: str) -> list[str]:
    """Those to mount: neither twice, nor all of the host over the image."""
    found = [home] if home != "/" else []
    if cwd != "/" and not (found and PurePath(cwd).is_relative_to(home)):
        found.append(cwd)
    for path in found:
        if ":" in path or "," in path:
            raise CarmaError(
                f"the directory {path} cannot be mounted in a container",
                "name it without colons and commas",
            )
    return found
