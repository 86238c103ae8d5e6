"""Slurm's own tests of its commands, which are scripts for expect."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WITHIN_S = 100.0  # most wait for a minute before they give up
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
OF_SLURM = ("SLURM", "SBATCH", "SALLOC", "SQUEUE", "SACCT", "SINFO", "SCANCEL")
SKIPS = 255  # the exit status of a test that skips itself


@dataclass(frozen=True, slots=True)
class Case:
    """`said`: its output."""

    name: str
    verdict: str
    said: str


def run(families: Sequence[str], folder: Path, scratch: Path, env: Mapping[str, str]) -> list[Case]:
    """The tests of these families, such as 17 for sbatch, one after the other. `folder`: where they
    are. `scratch`: below it is `bin` with the commands."""
    configured = scratch / "testsuite.conf"
    names = ("SlurmInstallDir", "SlurmSourceDir", "SlurmBuildDir", "SlurmConfigDir")
    configured.write_text("".join(f"{name} = {scratch}\n" for name in names))
    # Of this shell's, they are for another Slurm.
    kept = {name: value for name, value in env.items() if not name.startswith(OF_SLURM)}
    kept |= {"SLURM_TESTSUITE_CONF": str(configured), "LOGNAME": "root", "USER": "root"}
    return [_run(name, folder, scratch, kept) for name in tests(families, folder)]


def tests(families: Sequence[str], folder: Path) -> Iterator[str]:
    """Their numbers, in order."""
    for family in families:
        found = [path.name.removeprefix("test") for path in folder.glob(f"test{family}.*")]
        numbers = [int(name.partition(".")[2]) for name in found if name.replace(".", "").isdigit()]
        yield from (f"{family}.{number}" for number in sorted(numbers))


def _run(name: str, folder: Path, scratch: Path, env: Mapping[str, str]) -> Case:
    output = scratch / f"test{name}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["expect", output.name],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with suppress(subprocess.TimeoutExpired):
        process.wait(WITHIN_S)
    late = process.poll() is None
    if late:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    said = output.read_text(errors="replace") + "\nit took too long\n" * late
    verdict = {0: PASSED, SKIPS: SKIPPED}.get(process.returncode, FAILED)
    subprocess.run(["scancel", "--me"], env=env, check=False)  # what it has left
    return Case(name, verdict, said)
