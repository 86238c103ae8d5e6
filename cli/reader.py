"""Reads words of a command line by a table of options, with argparse: what scripts call by the
thousand, lines of job scripts, and other programs' commands. Imports stay light."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cli.options import parser_of
from cli.problems import Usage, no_option, no_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from carmad.options import Option


HELP = ("-h", "--help", "--help-all", "--usage")


class _Formatter(argparse.HelpFormatter):
    """argparse makes one for each option, and otherwise imports shutil to learn the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=80)


class Parser(argparse.ArgumentParser):
    """Knows which of its options take a value, and raises instead of exiting. An option that is not
    given is None."""

    def __init__(self, prog: str, table: Mapping[str, Option] | None = None, **more: Any) -> None:
        super().__init__(
            prog, add_help=False, allow_abbrev=False, formatter_class=_Formatter, **more
        )
        for name, option in (table or {}).items():
            self.add(name, option)

    def add(self, name: str, option: Option) -> None:
        about: dict[str, Any] = {"dest": name, "default": None}
        if isinstance(option.default, bool):
            both = argparse.BooleanOptionalAction if option.default else "store_true"
            about["action"] = both
        else:
            about |= {"metavar": option.metavar, "type": parser_of(option)}
            about["action"] = "append" if option.repeated else "store"
        self.add_argument(*option.flags, help=option.help.replace("%", "%%"), **about)

    def error(self, message: str) -> NoReturn:
        if (unknown := message.removeprefix("unrecognized arguments: ")) != message:
            flag = unknown.partition(" ")[0].partition("=")[0]
            if flag.startswith("-"):
                raise no_option(self.prog, flag, self._option_string_actions)
            message = f"{self.prog} takes no word {unknown}"
        flags, colon, why = message.removeprefix("argument ").partition(": ")
        if why.startswith("ignored explicit argument"):
            raise no_value(flags.rpartition("/")[2])
        if message.startswith("argument ") and colon:
            message = f"{flags.rpartition('/')[2]}: {why}"
        raise Usage(message, f"see `{self.prog} --help`")

    def split(self, words: Sequence[str]) -> tuple[list[str], list[str], bool]:
        """The options, the command that follows them, and whether `--` separates them."""
        options, at = [], 0
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
            word = words[at]
            value = words[at + 1 : at + 2] if self.takes_next(word) else []
            if value and value[0].startswith("-"):  # `--sort -jobid`, which argparse refuses
                options.append(word + "=" * word.startswith("--") + value[0])
            else:
                options += [word, *value]
            at += 1 + len(value)
        marked = list(words[at : at + 1]) == ["--"]
        return options, list(words[at + marked :]), marked

    def sort_out(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The options and the other words, which may stand in any order."""
        options: list[str] = []
        others: list[str] = []
        while words:
            own, words, marked = self.split(words)
            options += own
            others += words if marked else words[:1]
            words = [] if marked else words[1:]
        return options, others

    def asks_for_help(self, words: Sequence[str]) -> bool:
        """Whether one of these options does, as in -h, -Wh or --help."""
        return any(self._asks(word) for word in words if not self.knows(word))

    def _asks(self, word: str) -> bool:
        if word in HELP or word.startswith("--") or word[:1] != "-":
            return word in HELP
        before, found, _ = word[1:].partition("h")
        asks = bool(found) and not self.knows("-h")
        return asks and not any(self._has_value(f"-{letter}") for letter in before)

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
        """Not one whose value may be left out: that is never the next word, as with sbatch."""
        action = self._option_string_actions.get(option)
        return action is not None and action.nargs not in (0, "?")
