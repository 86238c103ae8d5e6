"""The command line that runs a job's command in a container of its user's.

Pure: nothing here starts or looks for a program. Podman and Apptainer start containers as children
of the job's own processes, so that the supervisor finds, limits and ends them. Docker's are started
by a daemon of root's, outside of the job, and would outlive it; so it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

ENGINES = ("podman", "apptainer")  # the first that is installed is used

# What describes the host's programs, or configures the engine itself.
_OF_THE_HOST = re.compile(r"PATH|LD_.*|PYTHONHOME|SHELL|TMPDIR|HOSTNAME|(CONDA|CONTAINERS|XDG)_.*")

EMULATED_DIR, EMULATED_PROC = "CARMA_EMULATED_DIR", "CARMA_EMULATED_PROC"
HOST_PROC = "/carma/proc"  # emulated cards know processes by the host's pids

PIPE = "CUDA_MPS_PIPE_DIRECTORY"

_PODMAN = """\
fail() { printf '%s\\n' "$@" >&9; exit 127; }
image=$1; needs_cdi=$2; shift 2
if [ -n "$needs_cdi" ] && ! compgen -G '/etc/cdi/*' >/dev/null && \\
  ! compgen -G '/var/run/cdi/*' >/dev/null; then
  fail "containers cannot use GPUs on this server: it has no CDI specification" \\
    "ask an administrator to run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
fi
podman image exists -- "$image" || podman pull --quiet -- "$image" >/dev/null || \\
  fail "cannot pull the image $image" "podman's own message is in the job's log"
exec 9>&-
exec podman "$@"
"""


def argv(
    engine: str,
    image: str,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str,
    uid: int,
    gpus: Sequence[str],
    mps: bool,
    script: str | None = None,
) -> tuple[str, ...]:
    """What runs `command` in a container of `image`, when started with `env`.

    `gpus`: their UUIDs; `mps`: whether `env` names the pipe of an MPS daemon; `script`: the copy of
    the job script that `command` names.
    """
    mounts = [f"{path}:{path}" for path in _folders(env.get("HOME", "/"), cwd)]
    if mps:
        mounts.append(f"{env[PIPE]}:{env[PIPE]}")
    if script:
        mounts.append(f"{script}:{script}:ro")
    if engine == "apptainer":
        return _apptainer(image, command, cwd, gpus, mounts)
    emulated = env.get(EMULATED_DIR)
    if emulated:
        mounts += [f"{emulated}:{emulated}", f"/proc:{HOST_PROC}"]
    passed = [f"--env={name}" for name in env if not _OF_THE_HOST.fullmatch(name)]
    if emulated:
        passed.append(f"--env={EMULATED_PROC}={HOST_PROC}")
    words = [
        "run",
        "--rm",
        "--pull=never",
        "--init",  # the kernel spares a pid 1 that handles no signals from SIGTERM
        "--cgroups=disabled",  # its processes stay in the job's cgroup, with its limits
        "--network=host",
        "--ipc=host",  # MPS clients share memory with their server, and data loaders need much
        "--log-driver=none",  # the output is in the job's log
        "--security-opt=label=disable",  # SELinux would forbid the user's own files
        *(["--userns=keep-id"] if uid else []),  # root is root without it; podman refuses it there
        f"--workdir={cwd}",
        *(f"--volume={mount}" for mount in mounts),
        *passed,
        *(f"--device=nvidia.com/gpu={gpu}" for gpu in gpus if not emulated),
        # Without the image's own entry point: the command is what the user wrote.
        "--entrypoint=",
        image,
        *command,
    ]
    needs_cdi = "yes" if gpus and not emulated else ""
    return ("/bin/bash", "-c", _PODMAN, "carma-container", image, needs_cdi, *words)


def _apptainer(
    image: str, command: Sequence[str], cwd: str, gpus: Sequence[str], mounts: Sequence[str]
) -> tuple[str, ...]:
    """It passes the environment on, and its processes share the host's pids. It does not know CDI:
    CUDA_VISIBLE_DEVICES selects the GPUs."""
    named = "://" in image or image.startswith(("/", "./", "../"))
    return (
        "apptainer",
        "exec",
        *(["--nv"] if gpus else []),
        *(f"--bind={mount}" for mount in mounts),
        f"--pwd={cwd}",
        image if named else f"docker://{image}",
        *command,
    )


def _folders(home: str, cwd: str) -> list[str]:
    """Those to mount: neither twice, nor all of the host over the image."""
    found = [home] if home != "/" else []
    if cwd != "/" and not (found and PurePath(cwd).is_relative_to(home)):
        found.append(cwd)
    return found
