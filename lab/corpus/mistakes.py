"""`carma estimate` on scripts of the corpus with a mistake put into each: does it name the line?

Each in `mistakes.toml` is made in the checkout of `lab.corpus.scripts`, the script is looked at,
and it is undone. It is *right* if the headline names the line where Python stops, *elsewhere* if it
names another, *no headline* if the script is only refused, and *traced* if it got a figure.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Report, Row, columns, of_rows
from carmad.plugin import Refusal
from estimators.look import look
from lab.corpus.listed import Script, prepare, read
from lab.corpus.scripts import FOLDER, PATIENT, command
from lab.main import main
from lab.memory.scripts import Here

LIST = Path(__file__).with_name("mistakes.toml")


@dataclass(frozen=True, slots=True)
class Mistake:
    script: Script
    file: str
    old: str
    new: str
    line: str = ""  # text of the line where it stops; "": the first one of `new`

    def put_into(self, text: str) -> tuple[str, int]:
        """The script with it, and the number of the line where that stops."""
        if self.old not in text:
            raise ValueError(f"{self.script.name}: {self.file} has no {self.old!r}")
        wrong = text.replace(self.old, self.new, 1)
        at = wrong.index(self.line) if self.line else text.index(self.old)
        return wrong, wrong.count("\n", 0, at) + 1


@dataclass(frozen=True, slots=True)
class Found:
    script: str
    mistake: str
    outcome: str  # right, elsewhere, no headline, traced
    expected: str
    said: str


def measure(folder: str = str(FOLDER), mirror: str = "", python: str = sys.executable) -> Report:
    source = Path(mirror) if mirror else None
    clones = {one.name: one.clone(Path(folder), source) for one in read() if _is_used(one.name)}
    found = []
    for one in mistakes():
        cwd = prepare(one.script, clones[one.script.repository])
        found.append(_try(one, cwd, python))
        told = f"{found[-1].outcome:12} {found[-1].expected}: {found[-1].said}"
        print(told, file=sys.stderr, flush=True)
    said = [one.outcome for one in found]
    rows = [
        Row("mistakes", "tried", len(found), "", 30, least=True),
        Row("mistakes", "right line", said.count("right"), f"of {len(found)}"),
        Row("mistakes", "right line", 100 * said.count("right") / len(found), "%", 85, least=True),
        Row("mistakes", "another line", said.count("elsewhere"), ""),
    ]
    table = columns(
        found,
        ("script", "{0.script}"),
        ("mistake", "{0.mistake}"),
        ("outcome", "{0.outcome}"),
        ("stops at", "{0.expected}"),
        ("said", "{0.said}"),
        text=(0, 1, 2, 3, 4),
    )
    return of_rows("Mistakes in public scripts", rows, table, data={"mistakes": found})


def mistakes() -> Iterator[Mistake]:
    for one in tomllib.loads(LIST.read_text())["script"]:
        where = one["repository"], one.get("cwd", "."), one["run"]
        listed = (script for repository in read() for script in repository.scripts)
        script = next(s for s in listed if (s.repository, s.cwd, s.run) == where)
        for fields in one["mistake"]:
            yield Mistake(script, one["file"], **fields)


def _is_used(repository: str) -> bool:
    return any(one.script.repository == repository for one in mistakes())


def _try(mistake: Mistake, cwd: Path, python: str) -> Found:
    path = cwd / mistake.file
    before = path.read_text()
    wrong, line = mistake.put_into(before)
    path.write_text(wrong)
    try:
        answer = look(command(mistake.script, cwd, python), PATIENT, Here())
    finally:
        path.write_text(before)
    expected = f"{mistake.file}:{line}"
    crash = answer.crash if isinstance(answer, Refusal) else ""
    said = crash or (answer.why if isinstance(answer, Refusal) else "a figure")
    if not isinstance(answer, Refusal):
        outcome = "traced"
    elif not crash:
        outcome = "no headline"
    else:
        outcome = "right" if f"{expected}:" in crash else "elsewhere"
    made = (mistake.new or "(removed) " + mistake.old).strip().splitlines()[0]
    return Found(mistake.script.name, made, outcome, expected, said[:200])


if __name__ == "__main__":
    main("corpus_mistakes", measure)
