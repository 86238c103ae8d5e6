"""`python -m cli.slurm WORD …`: one of Slurm's commands, where there is no link with its name."""

from __future__ import annotations

import sys

from cli.slurm.words import run

sys.exit(run(sys.argv[1], sys.argv[2:]))
