"""The own tests of tools that submit to Slurm, unmodified, with CARMA's commands in place of
Slurm's: `--sources DIR` holds a git clone of each tool, at the tag that the table names. Each gets
an environment of its own beside them, by pip, and an emulated daemon with 16 CPUs. Half an hour.

Tests that need no cluster are among those counted: they show that a tool takes CARMA's commands,
which it finds on PATH, for Slurm's. What is left out is in the table, with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.version import Version

from benchmarks.harness import Report, columns
from cli.slurm import WORDS
from lab.main import main
from lab.tools.known import TOOLS, Tool
from tests.daemon import CARMA, NO_KERNELS, Carmad, running

WITHIN_S = 1500.0
SETTINGS = {**NO_KERNELS, "CARMA_HOST__CPUS": "16"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed`: names of tests. `skipped` were not run: by the tool's own rules, most for other
    schedulers."""

    tool: str
    tag: str
    modified: tuple[str, ...]
    passed: int
    run: int
    skipped: int
    failed: tuple[str, ...]
    left_out: str
    why: str  # what failed, and what was left out


def measure(sources: Path = Path("sources"), only: str = "") -> Report:
    chosen = [tool for tool in TOOLS if only in ("", tool.name)]
    clones = {tool.name: sources / tool.folder for tool in chosen}
    missing = [name for name, clone in clones.items() if not (clone / ".git").exists()]
    if missing or not chosen:
        sys.exit(f"{sources} has no git clone of: {', '.join(missing) or only}")
    states = {name: state_of(clone) for name, clone in clones.items()}
    for tool in chosen:
        tag, wanted = states[tool.name].tag, tool.requirements[0]
        if Version(tag) not in Requirement(wanted).specifier:
            sys.exit(f"the clone of {tool.name} is at {tag}, and pip installs {wanted}")
    found = [_try(tool, sources.resolve(), states[tool.name]) for tool in chosen]
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
    python = _environment(tool, sources / ".environments" / tool.name)
    with tempfile.TemporaryDirectory(prefix="carma-tools-") as name:
        folder = Path(name)
        report = folder / "report.xml"
        with _slurm(folder) as env:
            env["PATH"] = f"{python.parent}:{env['PATH']}"
            argv = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            argv += ["--junitxml", str(report), *tool.pytest]
            said = subprocess.run(
                argv,
                cwd=sources / tool.folder / tool.within,
                env=env,
                timeout=WITHIN_S,
                capture_output=True,
                text=True,
                check=False,
            )
            if not report.exists():
                sys.exit(f"the tests of {tool.name} did not begin:\n{said.stdout}{said.stderr}")
            return _outcome(tool, state, report)


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


def _outcome(tool: Tool, state: State, report: Path) -> Outcome:
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    run = len(cases) - len(skipped)
    return Outcome(
        tool.name,
        state.tag,
        state.modified,
        run - len(failed),
        run,
        len(skipped),
        tuple(failed),
        tool.left_out,
        _explain(tool, failed),
    )


def _explain(tool: Tool, failed: Sequence[str]) -> str:
    reasons = []
    for name in failed:
        short = name.rpartition(".")[2]
        why = next((why for part, why in tool.known.items() if part in name), "not explained")
        reasons.append(f"{short}: {why}")
    return "; ".join([*reasons, *([tool.left_out] if tool.left_out else [])])


if __name__ == "__main__":
    main("tools", measure)
