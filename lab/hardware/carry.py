"""What a visit has to bring: the packages that CARMA needs and a machine for training lacks, in the
versions that are installed here, and CARMA's metadata, by which it finds its plugins."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.harness import Report
from carmad import DISTRIBUTION

PYTHON, PLATFORM = "3.12", "manylinux2014_x86_64"  # of the machine
THERE = (
    *("torch", "timm", "transformers", "lightning", "psutil", "rich", "typer", "nvidia-ml-py"),
    "pytest",
)
MOST_MIB = 64


def carry(folder: Path) -> Report:
    """Fill the folder, which is to be the project's `wheels` there."""
    found = pins()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    where = ["--target", str(folder), "--python-version", PYTHON, "--platform", PLATFORM]
    subprocess.run([*install, *where, "--only-binary=:all:", *found], check=True)
    own = Path(str(distribution(DISTRIBUTION).locate_file("")))
    for metadata in own.glob(f"{DISTRIBUTION.replace('-', '_')}-*.dist-info"):
        shutil.copytree(metadata, folder / metadata.name, dirs_exist_ok=True)
    mib = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    if mib > MOST_MIB:
        raise SystemExit(f"{folder} has {mib:.0f} MiB, and {MOST_MIB} can be carried")
    told = f"{folder} has {len(found)} packages for Python {PYTHON}, {mib:.0f} MiB. Bring it as"
    return Report(
        "What to carry",
        [f"{told} `wheels` in the project's folder.", " ".join(found)],
        {},
        kept=False,
    )


def pins() -> list[str]:
    """NAME==VERSION of all that CARMA needs, but what the machine has."""
    left, found = [DISTRIBUTION], dict[str, str]()
    while left:
        name = canonicalize_name(left.pop())
        if name in found or name in THERE:
            continue
        its = distribution(name)
        found[name] = its.version
        for each in map(Requirement, its.requires or ()):
            if each.marker is None or each.marker.evaluate({"python_version": PYTHON, "extra": ""}):
                left.append(each.name)
    del found[canonicalize_name(DISTRIBUTION)]
    return [f"{name}=={version}" for name, version in sorted(found.items())]
