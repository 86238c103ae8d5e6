"""How words of a command line are read with argparse. Imports stay light."""

from __future__ import annotations

import argparse

from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import NoReturn

# Options of sbatch that CARMA does not have, and what to do instead.
OF_SLURM = {
    **dict.fromkeys(
        ("--mem-per-cpu", "--mem-per-gpu"),
        "give the host memory of the whole job: --mem 32G; for GPU memory, use --gpu-mem 8G",
    ),
    **dict.fromkeys(
        ("-n", "--ntasks", "-N", "--nodes", "-p", "--partition"),
        "CARMA runs jobs on this server only: leave this out; for CPUs, use --cpus",
    ),
}


class Parser(argparse.ArgumentParser):
    """Knows which of its options take a value, and raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise Usage(message, self._hint(message.removeprefix("unrecognized arguments: ")))

    def _hint(self, unknown: str) -> str:
        option = unknown.partition(" ")[0].partition("=")[0]
        if option in OF_SLURM:
            return OF_SLURM[option]
        if option.startswith("--"):
            from difflib import get_close_matches

            known = [name for action in self._actions for name in action.option_strings]
            if near := get_close_matches(option, known, n=1):
                return f"did you mean {near[0]}?"
        return f"see `{self.prog} --help`"

    def split(self, args: list[str]) -> tuple[list[str], list[str], bool]:
        """The options, the command that follows them, and whether `--` separates them.

        argparse.REMAINDER behaves differently in every Python version, and parses options that
        belong to the command.
        """
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            at += 2 if self.takes_next(args[at]) else 1
        marked = args[at : at + 1] == ["--"]
        return args[:at], args[at + marked :], marked

    def knows(self, word: str) -> bool:
        """Whether it is one of the options, perhaps with its value: --gpus=2."""
        return word.partition("=")[0] in self._option_string_actions

    def takes_next(self, word: str) -> bool:
        """Whether the option's value is the next word."""
        if word.startswith("--"):
            return "=" not in word and self._has_value(word)
        for position, letter in enumerate(word[1:], 1):  # -HW, -G2, -HG 2
            if self._has_value("-" + letter):
                return position == len(word) - 1
        return False

    def _has_value(self, option: str) -> bool:
        return any(option in a.option_strings and a.nargs != 0 for a in self._actions)
