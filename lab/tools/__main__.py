"""The own tests of Slurm's commands and of tools that submit to Slurm, unmodified, with CARMA's
commands in place of Slurm's: `--sources DIR` holds a git clone of each, at the tag that the table
names. Each tool gets an environment of its own beside them, by pip, and an emulated daemon with 16
CPUs. An hour; Slurm's need expect.

Tests that need no cluster are among those counted: they show that a tool takes CARMA's commands,
which it finds on PATH, for Slurm's. What is left out is in the table, with the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.version import Version

from benchmarks.harness import Report, columns
from carma_slurm import WORDS
from lab.main import main
from lab.tools import suite
from lab.tools.known import TOOLS, Tool
from lab.tools.suite import FAILED, PASSED, SKIPPED, Case
from tests.daemon import CARMA, NO_KERNELS, Carmad, running

WITHIN_S = 1500.0
AT_ONCE = 2
NAMED = 3  # tests that fail for the same reason, in the table
SETTINGS = {**NO_KERNELS, "CARMA_HOST__CPUS": "16"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed`: why, and the names of the tests that did. `skipped` were not run: by the tool's own
    rules, most for other schedulers."""

    tool: str
    tag: str
    modified: tuple[str, ...]
    passed: int
    run: int
    skipped: int
    failed: Mapping[str, Sequence[str]]
    left_out: str

    @property
    def why(self) -> str:
        """What failed, and what was left out."""
        parts = [_summary(reason, names) for reason, names in self.failed.items()]
        return "; ".join([*parts, *([self.left_out] if self.left_out else [])])


def _summary(reason: str, names: Sequence[str]) -> str:
    listed = ", ".join(names) if len(names) <= NAMED else f"{len(names)} tests"
    return f"{listed}: {reason}"


def measure(sources: Path = Path("sources"), only: str = "") -> Report:
    chosen = [tool for tool in TOOLS if only in ("", tool.name)]
    clones = {tool.name: sources / tool.folder for tool in chosen}
    missing = [name for name, clone in clones.items() if not (clone / ".git").exists()]
    if missing or not chosen:
        sys.exit(f"{sources} has no git clone of: {', '.join(missing) or only}")
    states = {name: state_of(clone) for name, clone in clones.items()}
    for tool in chosen:
        tag, wanted = states[tool.name].tag, next(iter(tool.requirements), None)
        if wanted and Version(tag) not in Requirement(wanted).specifier:
            sys.exit(f"the clone of {tool.name} is at {tag}, and pip installs {wanted}")
    with ThreadPoolExecutor(AT_ONCE) as pool:  # they wait most of the time
        tried = [pool.submit(_try, each, sources.resolve(), states[each.name]) for each in chosen]
    found = [each.result() for each in tried]
    table = columns(
        found,
        ("tool", "{0.tool}"),
        ("tag", "{0.tag}"),
        ("passed / run", "{0.passed} / {0.run}"),
        ("skipped", "{0.skipped}"),
        ("unmodified", lambda each: f"no: {', '.join(each.modified)}" if each.modified else "yes"),
        ("what fails or is left out, and why", "{0.why}"),
        text=(0, 1, 4, 5),
    )
    title = "Tools for Slurm with CARMA's commands"
    return Report(title, (table,), {"tools": found}, kept=not only)


@dataclass(frozen=True, slots=True)
class State:
    """`modified`: files of a clone that are not as at the tag, and modules that are not its own."""

    tag: str
    modified: tuple[str, ...]


def state_of(clone: Path) -> State:
    """Exits if the clone is not at a tag."""
    try:
        tag = _git(clone, "describe", "--tags", "--exact-match")
        changed = _git(clone, "diff", "--name-only", "HEAD")
        added = _git(clone, "ls-files", "--others", "--exclude-standard", "*.py")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{clone} is not a git clone at a tag: {error.stderr}")
    return State(tag, (*changed.splitlines(), *added.splitlines()))


def _git(clone: Path, *words: str) -> str:
    argv = ["git", "-C", str(clone), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def _try(tool: Tool, sources: Path, state: State) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="carma-tools-") as name:
        folder = Path(name)
        with _slurm(folder) as env:
            within = sources / tool.folder / tool.within
            if tool.expect:
                cases = suite.run(tool.expect, within, folder, env)
            else:
                python = _environment(tool, sources / ".environments" / tool.name)
                cases = _run_pytest(tool, python, within, folder, env)
        return _outcome(tool, state, cases)


def _run_pytest(
    tool: Tool, python: Path, within: Path, folder: Path, env: dict[str, str]
) -> list[Case]:
    report = folder / "report.xml"
    env = env | {"PATH": f"{python.parent}:{env['PATH']}"}
    argv = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    argv += ["--junitxml", str(report), *tool.pytest]
    said = subprocess.run(
        argv, cwd=within, env=env, timeout=WITHIN_S, capture_output=True, text=True, check=False
    )
    if not report.exists():
        sys.exit(f"the tests of {tool.name} did not begin:\n{said.stdout}{said.stderr}")
    return read_report(report)


def read_report(report: Path) -> list[Case]:
    """The cases of a JUnit report."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        name = str(case.get("name"))
        found.append(Case(name, FAILED if failed else SKIPPED if skipped else PASSED, ""))
    return found


def _environment(tool: Tool, folder: Path) -> Path:
    """Its Python, with the tool and what its tests need."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        _run([str(python), "-m", "pip", "install", "--quiet", *tool.requirements])
    return python


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True)


@contextmanager
def _slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which CARMA's commands are the first on PATH."""
    links = folder / "bin"
    links.mkdir()
    for word in WORDS:
        (links / word).symlink_to(CARMA[0])
    carmad_folder = folder / "carmad"
    carmad_folder.mkdir()
    with running(carmad_folder, **SETTINGS) as carmad:
        yield _variables(carmad, links)


def _variables(carmad: Carmad, links: Path) -> dict[str, str]:
    kept: Mapping[str, str] = os.environ
    return {**kept, "CARMA_SOCKET": carmad.socket, "PATH": f"{links}:{kept['PATH']}"}


def _outcome(tool: Tool, state: State, cases: Sequence[Case]) -> Outcome:
    failed: dict[str, list[str]] = {}
    for case in cases:
        if case.verdict == FAILED:
            failed.setdefault(_reason(tool, case), []).append(case.name)
    counts = Counter(case.verdict for case in cases)
    run = counts[PASSED] + counts[FAILED]
    most_first = dict(sorted(failed.items(), key=lambda item: -len(item[1])))
    return Outcome(
        tool.name,
        state.tag,
        state.modified,
        counts[PASSED],
        run,
        counts[SKIPPED],
        most_first,
        tool.left_out,
    )


def _reason(tool: Tool, case: Case) -> str:
    text = f"{case.name}\n{case.said}"
    return next((why for part, why in tool.known.items() if re.search(part, text)), "not explained")


if __name__ == "__main__":
    main("tools", measure)
