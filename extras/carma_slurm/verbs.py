"""What is plugged into `carma`: Slurm's commands, the verbs about them, and checks of `doctor`.
Imports stay light."""

from __future__ import annotations

from cli.checks import Checks
from cli.verbs import Group, Verb, Word

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

    from carmad.api.checks import CheckOut

_RUN = "carma_slurm.words:run"

SBATCH = Word("sbatch", _RUN)
SQUEUE = Word("squeue", _RUN)
SCANCEL = Word("scancel", _RUN)
SACCT = Word("sacct", _RUN)
SCONTROL = Word("scontrol", _RUN)
SINFO = Word("sinfo", _RUN)
SRUN = Word("srun", _RUN)
SALLOC = Word("salloc", _RUN)

SLURM_COMMANDS = Group(
    "slurm-commands",
    "Put sbatch, squeue and others on PATH, done by CARMA, or remove them.",
    (
        Verb(
            "slurm-commands install",
            "carma_slurm.links",
            "Put Slurm's commands on PATH, as links to carma.",
        ),
        Verb("slurm-commands remove", "carma_slurm.links", "Remove these links."),
    ),
    section="Administration",
)


def _check() -> Iterator[CheckOut]:
    from carma_slurm.login.checks import checks

    return checks()


def _is_login_node() -> bool:
    from carma_slurm.login import setting

    return bool(setting("engine"))


CHECKS = Checks("check instead that Slurm and CARMA fit each other", _check, _is_login_node)
