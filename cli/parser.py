"""How words of a command line are read with argparse."""

from __future__ import annotations

import argparse
import sys

from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Options that CARMA does not have, and what to do instead.
INSTEAD = {"--priority": "use --nice: the higher, the later"}


NEAR = 0.7  # how alike a misspelt option and the right one are


class Parser(argparse.ArgumentParser):
    """Knows which of its options take a value, and raises instead of exiting."""

    help_width = 80
    runs_command = False  # whether a command, with options of its own, follows the options

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        for action in self._actions:  # -h, if argparse adds it
            action.help = "show this help"

    def format_help(self) -> str:
        from shutil import get_terminal_size

        self.help_width = get_terminal_size().columns - 2
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown.startswith("-"):
            message = f"{self.prog} has no option {unknown.partition(' ')[0]}"
        raise Usage(message, self._hint(unknown))

    def _hint(self, unknown: str) -> str:
        option = unknown.partition(" ")[0].partition("=")[0]
        if option in INSTEAD:
            return INSTEAD[option]
        if not option.startswith("-"):
            return f"see `{self.prog} --help`"
        from difflib import get_close_matches

        names = [name[2:] for a in self._actions for name in a.option_strings if name[:2] == "--"]
        near = get_close_matches(option.lstrip("-"), names, n=1, cutoff=NEAR)
        known = f"did you mean --{near[0]}? " if near else ""
        if self.runs_command:
            known += (
                f"options of your program go after it: {self.prog} -- python train.py {option} …"
            )
        return known.strip() or f"see `{self.prog} --help`"

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

    def _get_formatter(self) -> argparse.HelpFormatter:
        """argparse makes one for each argument, and imports shutil to learn the width."""
        return _Formatter(self.prog, width=self.help_width)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Unlike argparse, an option's value may begin with a dash: `--sort -jobid`."""
        words = list(sys.argv[1:] if args is None else args)
        for at in range(len(words) - 2, -1, -1):
            word, value = words[at : at + 2]
            dashed = word[:1] == value[:1] == "-" != value and not self.knows(value)
            if dashed and self.takes_next(word):
                words[at : at + 2] = [word + "=" * word.startswith("--") + value]
        return super().parse_known_args(words, namespace)

    def knows(self, word: str) -> bool:
        """Whether it is one of the options, perhaps with its value: --gpus=2."""
        return word.partition("=")[0] in self._option_string_actions

    def asks_for_help(self, words: list[str]) -> bool:
        """Whether the options of these words ask for help, as in -h, -Wh or --help."""
        at = 0
        while at < len(words) and words[at] != "--":
            if any(isinstance(each, argparse._HelpAction) for each in self._actions_of(words[at])):
                return True
            at += 2 if self.takes_next(words[at]) else 1
        return False

    def _actions_of(self, word: str) -> list[argparse.Action]:
        """Of an option, or of short ones in one word, up to the first that takes a value."""
        options = [word]
        if not word.startswith("--"):
            options = [f"-{letter}" for letter in word[1:]] if word.startswith("-") else []
        found = []
        for option in options:
            action = self._option_string_actions.get(option)
            if action:
                found.append(action)
            if self._has_value(option):
                break
        return found

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
        return any(option in a.option_strings and a.nargs not in (0, "?") for a in self._actions)


class _Formatter(argparse.HelpFormatter):
    """One look of all help: what must be given is in the usage, titles are capitalized."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        if usage is None:
            self._prog += " [OPTION…]"
            actions = [each for each in actions if each.required or not each.option_strings]
        super().add_usage(usage, actions, [], prefix or "Usage: ")

    def start_section(self, heading: Any) -> None:
        if heading == "positional arguments":
            heading = "arguments"
        super().start_section(heading and heading[0].upper() + heading[1:])

    def _format_args(self, action: Any, default_metavar: str) -> str:
        several = {"+": "{}…", "*": "[{}…]"}.get(action.nargs)
        if several is None:
            return super()._format_args(action, default_metavar)
        return several.format(action.metavar or default_metavar)
