"""What each verb is on a login node. A verb that is in no table here is refused."""

from __future__ import annotations

from cli import verbs

MODULES = {
    "submit": "submit",
    **dict.fromkeys(("queue", "show", "why", "status"), "look"),
    "logs": "logs",
    **dict.fromkeys(("wait", "cancel", "hold", "release", "requeue"), "steer"),
}
BY_NAME = {
    name: verbs.BY_NAME[name].done_by(f"cli.cluster.{module}") for name, module in MODULES.items()
}

LOCAL = frozenset(
    {"estimate", "simulate", "demo", "completion", "gpumemnet", "doctor", "config", "daemon"}
)  # these do without a daemon, or say themselves that they need one

IN_THE_JOB = "run it in the job's allocation: srun --jobid JOB --overlap --pty carma {verb} …"
INSTEAD = {
    **dict.fromkeys(
        ("run", "shell"), "srun --gres=gpumem:GIB --pty carma {verb} … runs it on a node"
    ),
    **dict.fromkeys(("attach", "exec"), IN_THE_JOB),
    "update": "scontrol update JobId=JOB TimeLimit=… changes a job",
    "notify": "messages are Slurm's: carma submit --notify end,fail --mail-user ADDRESS",
    **dict.fromkeys(("top", "watch", "web"), "watch -n 5 carma status"),
    "gpus": "carma status shows the nodes; carma why JOB asks the node of a running job",
    **dict.fromkeys(("history", "stats", "report"), "sacct shows jobs that have ended"),
    "share": "sshare shows what you have used, and sprio who goes first",
    "mcp": "agents can run `carma submit`, and `carma queue --json`",
    "limit": "sacctmgr sets limits of users and accounts",
    **dict.fromkeys(
        ("drain", "resume"), "scontrol update NodeName=NODE State=DRAIN Reason=… or State=RESUME"
    ),
    "reserve": "scontrol create reservation",
}


def instead(verb: str) -> str:
    return INSTEAD.get(verb, IN_THE_JOB).format(verb=verb)
