"""Runs the commands of a page, as its reader would, and compares what they print with the page."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.publish import FENCE
from tests.waiting import PATIENCE_S

LOOKS = {"status", "why", "show", "queue", "history", "gpus", "reserve", "limit", "share"}
USER = "ada"  # stands for whoever runs it
AGAIN_S = 0.3
DONE, FAILED = "__done__", "__failed__"


@dataclass(frozen=True, slots=True)
class Block:
    commands: str
    printed: str  # "": the page does not show it


def blocks(page: Path) -> list[Block]:
    """The page's blocks of shell commands, each with the block without a language behind it."""
    found: list[Block] = []
    for _, kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "sh":
            found.append(Block(body, ""))
        elif not kind:
            found[-1] = Block(found[-1].commands, body)
    return found


def shows(printed: str, page: str) -> bool:
    """Whether the page's lines were printed, in this order. Numbers may differ, as may spaces; `…`
    stands for anything, and for any lines if it is alone."""
    wanted = [line for line in page.splitlines() if line.strip() not in ("", "…")]
    lines = iter(printed.splitlines())
    return all(any(_like(line, pattern) for line in lines) for pattern in map(_pattern, wanted))


def _pattern(line: str) -> str:
    pattern = re.escape(re.sub(r"\s+", " ", line.strip())).replace("…", ".*")
    pattern = re.sub(rf"\b{USER}\b", r"\\S+", pattern)
    pattern = re.sub(r"GPU\\-e0000000\S*", r"GPU-\\S+", pattern)
    return re.sub(r"\d+(\\?[.:]\d+)*", r"[\\d.:]+", pattern)


def _like(line: str, pattern: str) -> bool:
    return re.match(pattern, re.sub(r"\s+", " ", line.strip())) is not None


class Shell:
    """A bash that reads commands from a pipe, so that what they start may read the next ones."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.run(f"trap 'echo {FAILED} $BASH_COMMAND' ERR")

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()

    def follow(self, page: Path, faster: float = 1.0) -> None:
        """Run the page's commands, the seconds that its jobs take divided by `faster`."""
        for block in blocks(page):
            commands = re.sub(
                r"--seconds (\d+)", lambda m: f"--seconds {int(m[1]) / faster}", block.commands
            )
            again_until = time.monotonic() + (PATIENCE_S if _looks(commands) else 0)
            while not shows(printed := self.run(commands), block.printed):
                assert time.monotonic() < again_until, f"{commands}printed:\n{printed}"
                time.sleep(AGAIN_S)

    def run(self, commands: str) -> str:
        """What they print. None of them may fail."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{commands}\necho {DONE}\n".encode())
        self._bash.stdin.flush()
        printed, until = "", time.monotonic() + 2 * PATIENCE_S  # for all of them
        while f"{DONE}\n" not in printed:
            ready, _, _ = select.select([self._bash.stdout], [], [], until - time.monotonic())
            read = os.read(self._bash.stdout.fileno(), 1 << 16) if ready else b""
            assert read, f"{commands}neither ended nor said more than:\n{printed}"
            printed += read.decode(errors="replace")
        assert FAILED not in printed, f"{commands}printed:\n{printed}"
        return printed.removesuffix(f"{DONE}\n")


def _looks(commands: str) -> bool:
    """Whether they change nothing, and so may be repeated until they print what is wanted."""
    lines = [line.split() for line in commands.splitlines() if line.strip()]
    return all(words[0] == "carma" and words[1] in LOOKS for words in lines)
