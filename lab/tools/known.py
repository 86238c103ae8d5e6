"""The tools, how their tests are run, and what is known of those that fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tool:
    """`folder`: its clone among the sources. `within`: where its tests are run in it.
    `known`: parts of names of tests that fail, with the reason."""

    name: str
    folder: str
    requirements: tuple[str, ...]
    pytest: tuple[str, ...]
    within: str = "."
    known: Mapping[str, str] = field(default_factory=dict)
    left_out: str = ""


TOOLS = (
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
