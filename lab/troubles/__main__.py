"""Troubles that people reported publicly of queues for GPU jobs, played again as small programs on
a daemon with three emulated GPUs: what CARMA does now, right or wrong (a few minutes).

`cases.toml` has the troubles, each with a script and what it has to print; `entries.toml` what was
mended because of them, with the tests that hold it. `--entries` runs these tests instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.harness import Report, columns
from carma_slurm import WORDS
from lab.main import main
from tests.daemon import CARMA, NO_KERNELS, Carmad, running

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WITHIN_S = 60.0
SETTINGS = {**NO_KERNELS, "CARMA_HOST__CPUS": "64"}
SHOWN = 200  # characters of the output of a case that went wrong
# Shell functions that the scripts of cases may use: `beside` runs a job that shares GPU 0.
PRELUDE = """
code() { carma show "$1" --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["code"])'; }
settle() { until [[ $(code "$1") =~ ^(RQ|CD|F|OOM|TO|CA)$ ]]; do sleep 0.2; done; code "$1"; }
submit() { carma submit --parsable "$@"; }
beside() { id=$(submit --on 0 --gpu-mem 2G sh -c "$1"); settle $id; }
"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """`says`, `hides`: patterns that the output of `run`, both streams, has to have and must not
    have. Without `run` it is no small program: `test` holds it."""

    row: int
    source: str
    trouble: str
    run: str = ""
    says: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    test: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    trouble: Trouble
    is_right: bool
    said: str

    @property
    def verdict(self) -> str:
        return "right" if self.is_right else f"wrong: {self.said}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What was mended: how it was seen, what is so now, and the tests that hold it."""

    entry: str
    before: str
    now: str
    tests: tuple[str, ...]


def read_troubles() -> list[Trouble]:
    rows = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))["trouble"]
    return [Trouble(**{key: _frozen(value) for key, value in row.items()}) for row in rows]


def read_entries() -> list[Entry]:
    rows = tomllib.loads((HERE / "entries.toml").read_text(encoding="utf-8"))["entry"]
    return [Entry(**{key: _frozen(value) for key, value in row.items()}) for row in rows]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def measure(entries: bool = False, only: int = 0) -> Report:
    return (
        _check_entries() if entries else _play([t for t in read_troubles() if only in (0, t.row)])
    )


def _play(troubles: Sequence[Trouble]) -> Report:
    with tempfile.TemporaryDirectory(prefix="carma-troubles-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        env = _variables(folder)
        with running(folder, "3xA100-40GB", **SETTINGS) as daemon:
            env |= {"CARMA_SOCKET": daemon.socket}
            _fill(daemon)
            found = [_try(each, folder / str(each.row), env) for each in troubles if each.run]
    held = _run_tests(each.test for each in troubles if not each.run)
    found += [
        Outcome(each, held.get(each.test, False), f"{each.test} fails")
        for each in troubles
        if not each.run
    ]
    found.sort(key=lambda each: each.trouble.row)
    table = columns(
        found,
        ("#", "{0.trouble.row}"),
        ("reported of", "{0.trouble.source}"),
        ("the trouble", "{0.trouble.trouble}"),
        ("played by", lambda each: "a script" if each.trouble.run else f"`{each.trouble.test}`"),
        ("CARMA now", "{0.verdict}"),
        text=(1, 2, 3, 4),
    )
    right = sum(each.is_right for each in found)
    summary = f"**{right} of {len(found)} right.** Row 59, words about placement, is not played."
    title = "Troubles of queues for GPU jobs"
    whole = len(troubles) == len(read_troubles())
    return Report(title, (summary, table), {"found": found}, name="troubles", kept=whole)


def _variables(folder: Path) -> dict[str, str]:
    """The environment in which CARMA and its Slurm commands are the first on PATH."""
    links = folder / "bin"
    links.mkdir()
    for word in ("carma", *WORDS):
        (links / word).symlink_to(CARMA[0])
    kept = {
        name: value
        for name, value in os.environ.items()
        if name[:6] not in ("CARMA_", "SLURM_") and name != "PYTHONUNBUFFERED"
    }
    path = f"{links}:{kept['PATH']}"
    return kept | {"PATH": path, "COLUMNS": "200", "CARMA_PYTHON": sys.executable}


def _fill(daemon: Carmad) -> None:
    """A neighbour on GPU 0, so that what runs there shares it."""
    words = ("python3", str(ROOT / "examples/emulated_train.py"), "--memory-mib", "7000")
    load = ("--load", "0.1", "--seconds", "3600")
    id = int(daemon.carma("submit", "--parsable", "--on", "0", "--gpu-mem", "8G", *words, *load))
    daemon.await_state(id, "running")


def _try(trouble: Trouble, folder: Path, env: Mapping[str, str]) -> Outcome:
    folder.mkdir()
    try:
        ran = subprocess.run(
            ["bash", "-c", PRELUDE + trouble.run],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )
        said = ran.stdout
    except subprocess.TimeoutExpired as late:
        said = f"{(late.stdout or b'').decode(errors='replace')} (no end in {WITHIN_S:g} s)"
    lacks = [each for each in trouble.says if not re.search(each, said)]
    has = [each for each in trouble.hides if re.search(each, said)]
    print(f"{trouble.row}: {'right' if not lacks + has else f'wrong: {said}'}", file=sys.stderr)
    return Outcome(trouble, not lacks and not has, " ".join(said.split())[-SHOWN:])


def _check_entries() -> Report:
    entries = read_entries()
    held = _run_tests(test for entry in entries for test in entry.tests)
    table = columns(
        entries,
        ("entry", "{0.entry}"),
        ("before", "{0.before}"),
        ("now", "{0.now}"),
        ("tests", lambda each: ", ".join(f"`{test}`" for test in each.tests)),
        (
            "they pass",
            lambda each: "yes" if all(held.get(test) for test in each.tests) else "**no**",
        ),
        text=(0, 1, 2, 3, 4),
    )
    met = sum(all(held.get(test) for test in entry.tests) for entry in entries)
    return Report(
        "The first week and the first look: case, before, now, test",
        (f"**The tests of {met} of {len(entries)} entries pass.**", table),
        {"entries": entries},
        name="first-week",
    )


def _run_tests(tests: Iterable[str]) -> dict[str, bool]:
    """Whether each of these passes: FILE, or FILE::NAME, which is all of its cases."""
    chosen = sorted(set(tests))
    if not chosen:
        return {}
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--junitxml", str(report)]
        subprocess.run([*argv, *chosen], cwd=ROOT, stdout=sys.stderr, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    found: dict[str, list[ElementTree.Element]] = {}
    for case in cases:
        file = f"{str(case.get('classname')).replace('.', '/')}.py"
        found.setdefault(f"{file}::{str(case.get('name')).partition('[')[0]}", []).append(case)
        found.setdefault(file, []).append(case)
    return {test: all(map(_has_passed, its)) for test in chosen if (its := found.get(test))}


def _has_passed(case: ElementTree.Element) -> bool:
    return all(case.find(word) is None for word in ("failure", "error", "skipped"))


if __name__ == "__main__":
    main("troubles", measure)
