"""What is plugged into `carma`: Slurm's commands, the verbs about them, and checks of `doctor`.
Imports stay light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.verbs import ADMINISTRATION, Checks, Command, Word

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

_LINKS = "carma_slurm.links"
_INSTALL = "Put Slurm's commands on PATH, as links to carma."
SLURM_COMMANDS = Command(
    "slurm-commands",
    _LINKS,
    "Put sbatch, squeue and others on PATH, done by CARMA, or remove them.",
    ADMINISTRATION,
    (
        Command("slurm-commands install", _LINKS, _INSTALL),
        Command("slurm-commands remove", _LINKS, "Remove these links."),
    ),
)


def _check() -> Iterator[CheckOut]:
    from carma_slurm.login.checks import checks

    return checks()


def _is_login_node() -> bool:
    from carma_slurm.login import setting

    return bool(setting("engine"))


CHECKS = Checks("check instead that Slurm and CARMA fit each other", _check, _is_login_node)
