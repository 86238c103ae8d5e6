"""The tools, how their tests are run, and what is known of those that fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tool:
    """`folder`: its clone among the sources. `within`: where its tests are run in it. `expect`:
    families of tests that are run by expect instead of pytest. `known`: patterns in the name or the
    output of tests that fail, with the reason; the first counts."""

    name: str
    folder: str
    requirements: tuple[str, ...]
    pytest: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    within: str = "."
    known: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""


# What those of Slurm's own tests want that fail.
OF_SLURM = {
    r"error: .*(is one node|only node is)|\bNodes? .* not found": "several nodes",
    r"keyword: (create|delete|reconfigure)|jobs can be updated|config dir|craynetwork|sacctmgr": (
        "an administrator's changes of partitions, accounts or slurm.conf"
    ),
    r"-re \"?launching|[sS]tep ?[iI]d|show step|--steps?\b|single step|steps?_id": "numbered steps",
    r"spawn .* (-v+|--verbose)\b": "messages of --verbose",
}

TOOLS = (
    Tool(
        "Slurm",
        "slurm",
        (),
        expect=("1", "2", "4", "5", "6", "12", "15", "17"),
        within="testsuite/expect",
        known=OF_SLURM,
        left_out="run: the tests of the eight commands (srun, scontrol, sinfo, squeue, scancel,"
        " sacct, salloc, sbatch), on one node",
    ),
    Tool(
        "dask-jobqueue",
        "dask-jobqueue",
        ("dask-jobqueue==0.9.0", "cryptography", "pytest", "pytest-asyncio"),
        ("dask_jobqueue/tests", "-E", "slurm"),
        known={
            "different_interfaces": "it wants a network interface eth0:scheduler, which the"
            " tool's own containers have"
        },
        left_out="skipped are the tests of the other schedulers",
    ),
    Tool(
        "Parsl",
        "parsl",
        ("parsl[monitoring]==2026.7.27", "pandas", "pytest>=7.4,<8", "pytest-random-order"),
        (
            *("parsl/tests", "-k"),
            "not cleannet and not unix_filesystem_permissions_required",
            *("--config", "parsl/tests/configs/slurm_local.py"),
        ),
        left_out="run as the tool's own checks on Slurm are; skipped is what is not for that"
        " configuration",
    ),
    Tool(
        "snakemake-executor-plugin-slurm",
        "snakemake-executor-plugin-slurm",
        ("snakemake-executor-plugin-slurm==2.7.1", "snakemake", "pandas", "pytest"),
        ("tests.py", "."),
        within="tests",
    ),
    Tool(
        "submitit",
        "submitit",
        ("submitit==1.5.4", "pytest", "pytest-asyncio", "cloudpickle", "typing-extensions"),
        ("submitit/slurm", "submitit/auto", "submitit/core"),
        left_out="they mock Slurm: one real run of its SlurmExecutor is in CARMA's own tests",
    ),
)
