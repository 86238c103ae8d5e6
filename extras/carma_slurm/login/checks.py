"""`carma doctor --slurm`: whether Slurm and the carmad of this node are set up for each other."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping

from carma_slurm.login import setting
from carma_slurm.node import GPUMEM, MIB_PER_GIB, OURS, SlurmFailed, look, name_of, scontrol
from carmad import paths
from carmad.api.checks import CheckOut, verdict
from carmad.errors import CarmaError
from carmad.readable import count
from cli import client

SHORT_S = 5  # a job that saves its work when it is stopped needs longer


def checks() -> Iterator[CheckOut]:
    if shutil.which("scontrol") is None:
        yield verdict("scontrol", False, "there is none", "Install Slurm's client programs.")
        return
    try:
        slurm = parse(scontrol("show", "config"))
    except SlurmFailed as error:
        hint = "Is slurmctld up, and munge? See scontrol ping."
        yield verdict("slurmctld", False, f"it does not answer: {error}", hint)
        return
    yield verdict("slurmctld", True, f"answers: Slurm {slurm.get('SLURM_VERSION', '?')}")
    yield from of_cluster(slurm)
    try:
        gpus = client.get("/v1/gpus")["gpus"]
    except CarmaError as error:
        hint = "On a login node there is none; on a node, start carmad."
        yield verdict("carmad", None, error.message, hint)
        return
    yield _socket(paths.socket_path())
    yield _engine(str(setting("engine")))
    yield of_node(name_of(str(setting("node"))), gpus)


def parse(said: str) -> dict[str, str]:
    """The lines NAME = VALUE of `scontrol show config`."""
    pairs = (line.split("=", 1) for line in said.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def of_cluster(slurm: Mapping[str, str]) -> Iterator[CheckOut]:
    types = slurm.get("GresTypes", "")
    hint = "Add gpumem to GresTypes in slurm.conf on all machines, and restart Slurm's daemons."
    known = "gpumem" in types.split(",")
    yield verdict("GresTypes", known, types or "none", "" if known else hint)
    hidden = slurm.get("ConstrainDevices", "no").lower() == "yes"
    detail = "Slurm hides GPUs from its jobs" if hidden else "Slurm leaves the GPUs to CARMA"
    hint = "Set ConstrainDevices=no in cgroup.conf, or take the GPUs' File= out of gres.conf."
    yield verdict("devices", not hidden, detail, hint if hidden else "")
    found = re.match(r"\d+", slurm.get("KillWait", ""))
    kill_s = int(found[0]) if found else 0
    enough = kill_s > SHORT_S
    hint = "Set KillWait=30 in slurm.conf: a job that saves its work when it is stopped needs time."
    detail = f"{kill_s} s between SIGTERM and SIGKILL"
    yield verdict("KillWait", True if enough else None, detail, "" if enough else hint)


def _socket(path: str) -> CheckOut:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        return verdict("socket", False, f"{path}: {error.strerror}", "See CARMA_SOCKET.")
    everyone = status.st_mode & 0o006 == 0o006
    hint = "" if everyone else "Run carmad for the whole server: carma daemon install."
    detail = f"{path} is there for {'everybody' if everyone else 'its owner only'}"
    return verdict("socket", everyone, detail, hint)


def _engine(engine: str) -> CheckOut:
    if engine:
        return verdict("engine", True, "carmad tells Slurm which GPUs take jobs")
    hint = 'Set engine = "slurm" under [cluster] in carmad\'s settings, and restart it.'
    return verdict("engine", None, "Slurm is not told of GPUs that are lost or drained", hint)


def of_node(name: str, gpus: list[dict[str, object]]) -> CheckOut:
    try:
        node = look(name)
    except SlurmFailed as error:
        hint = "In carmad's settings, set node under [cluster] to the NodeName in slurm.conf."
        return verdict("node", False, f"Slurm knows no node {name}: {error}", hint)
    gib = sum(int(str(gpu["memory_mib"])) // MIB_PER_GIB for gpu in gpus)
    found = GPUMEM.search(node.gres)
    asked = f"Give it Gres=gpumem:{gib} in slurm.conf: {len(gpus)} GPUs, whole GiB of each."
    if found is None:
        return verdict("node", False, f"{name} has no gpumem", asked)
    # First: for this, Slurm itself drains a node when it registers the next time.
    if count(found[1]) > gib:
        return verdict("node", False, f"{name} has gpumem:{found[1]}, its GPUs {gib} GiB", asked)
    if node.drained and not node.reason.startswith(OURS):
        hint = f"scontrol update NodeName={name} State=RESUME, when that is over."
        return verdict("node", None, f"{name} is drained: {node.reason}", hint)
    if count(found[1]) < gib:
        hint = f"Unless GPUs are drained (carma gpus) or it is to be so: {asked}"
        return verdict("node", None, f"{name} has gpumem:{found[1]}, its GPUs {gib} GiB", hint)
    return verdict("node", True, f"{name} has gpumem:{gib}, as its GPUs have")
