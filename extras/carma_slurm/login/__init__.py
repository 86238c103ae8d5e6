"""`carma` on a cluster's login node, where no daemon runs: its verbs ask Slurm, as the user.

`cli.main` comes here with every verb that finds no daemon's socket. Imports stay light: on a server
whose daemon was never started, this only learns that there is no cluster.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cli.problems import Usage
from cli.verbs import Command

SETTINGS = "/etc/carma/carma.toml"  # the cluster's, not the user's
ENGINES = ("slurm",)

# What each verb is on a login node. A verb that is in no table here is refused.
MODULES = {
    "submit": "submit",
    **dict.fromkeys(("queue", "show", "why", "status", "logs"), "look"),
    **dict.fromkeys(("wait", "cancel", "hold", "release", "requeue"), "jobs"),
}
SUMMARIES = {  # of those whose help does not begin as on a server
    "queue": "List the cluster's running and waiting jobs.",
    "show": "Show what Slurm knows about a job and, while it runs, its node's carmad.",
    "why": (
        "Explain why a job waits: for a node, as Slurm says, or on it, as the node's carmad says."
    ),
    "status": "Show the cluster's nodes, and its jobs.",
    "logs": "Print a job's output; -f follows it.",
    "requeue": "Run jobs again, under their old numbers.",
}
LOCAL = frozenset(
    {"estimate", "simulate", "demo", "doctor", "config", "daemon"}
)  # these do without a daemon, or say themselves that they need one

IN_THE_JOB = "run it in the job's allocation: srun --jobid JOB --overlap --pty carma {verb} …"
INSTEAD = {
    **dict.fromkeys(
        ("run", "shell"), "srun --gres=gpumem:GIB --pty carma {verb} … runs it on a node"
    ),
    "attach": IN_THE_JOB,
    "update": "scontrol update JobId=JOB TimeLimit=… changes a job",
    **dict.fromkeys(("top", "web"), "watch -n 5 carma status"),
    "gpus": "carma status shows the nodes; carma why JOB asks the node of a running job",
    **dict.fromkeys(("history", "stats"), "sacct shows jobs that have ended"),
    "share": "sshare shows what you have used, and sprio who goes first",
    "mcp": "agents can run `carma submit`, and `carma queue --json`",
    "limit": "sacctmgr sets limits of users and accounts",
    **dict.fromkeys(
        ("drain", "resume"), "scontrol update NodeName=NODE State=DRAIN Reason=… or State=RESUME"
    ),
    "reserve": "scontrol create reservation",
}


def setting(name: str) -> Any:
    """`cluster.NAME`, from the environment or the settings file; "" if it is in neither."""
    if given := os.environ.get(f"CARMA_CLUSTER__{name.upper()}"):
        return given
    path = os.environ.get("CARMA_CONFIG") or SETTINGS
    if not Path(path).is_file():
        return ""
    import tomllib

    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return settings.get("cluster", {}).get(name, "")
    except (OSError, ValueError, AttributeError) as error:
        raise Usage(f"cannot read {path}: {error}", "ask your administrator") from None


def verb(asked: Command) -> Command:
    """What it is on a login node; itself, if this is none or it needs neither daemon nor Slurm."""
    engine = setting("engine")
    if not engine or (asked.name == "run" and "SLURMD_NODENAME" in os.environ):
        return asked  # in a job on a node, whose carmad may be back in a moment
    if engine not in ENGINES:
        raise Usage(f"cluster.engine is {engine!r}", f"it can be: {', '.join(ENGINES)}")
    if asked.name.partition(" ")[0] in LOCAL:
        return asked
    if asked.name not in MODULES:
        instead = INSTEAD.get(asked.name, IN_THE_JOB).format(verb=asked.name)
        raise Usage(f"carma {asked.name} is for a node, where a carmad runs", instead)
    module = f"carma_slurm.login.{MODULES[asked.name]}"
    return asked._replace(module=module, summary=SUMMARIES.get(asked.name, asked.summary))
