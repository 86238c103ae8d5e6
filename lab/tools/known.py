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


# What those of Slurm's own tests want that fail: by their number, or by what they say.
OF_SLURM = {
    r"^(1\.[45]|15\.2|17\.2)\n": "the headings of Slurm's help",
    r"^(1\.27|15\.24|17\.(13|14|32))\n": (
        "variables that CARMA does not set, such as SLURM_OVERCOMMIT and SLURM_TASK_PID"
    ),
    r"^17\.33\n": "a log that is truncated: CARMA appends to it",
    r"^17\.37\n": "a job that waits for ever for a dependency: CARMA cancels it",
    r"^17\.(39|44)\n": "dependencies with ? or aftercorr",
    r"^17\.26\n": "--input of a batch job",
    r"^17\.(34|40)\n": "cores that are set aside for the system",
    r"^(1\.(24|40)|6\.17|15\.(12|23|25)|17\.(25|41))\n": (
        "accounts, QOS, partitions, and features of a node"
    ),
    r"^(15\.3[3467]|17\.(53|56|57|59|60))\n": "Slurm's rules for --deadline and --time-min",
    r"^(1\.53|17\.38)\n": "a warning minutes ahead: a test ends after 100 s here",
    r"^1\.(8|31)\n": "variables that srun reads outside a job",
    r"^(1\.(10|13|41|49|61|65)|15\.[78])\n": (
        "options of srun and salloc without effect here, such as --immediate and a step's --time"
    ),
    r"^(2\.(2|4|5|7|8|9|11)|4\.11)\n": "verbs of scontrol and sinfo -R that CARMA does not have",
    r"^(1\.(23|50)|15\.18|17\.(21|28))\n": "other words in a message",
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
