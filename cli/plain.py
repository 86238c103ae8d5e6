"""Reads plain words of a command line without argparse, whose import takes longer than half of
`python -c pass`. Imports stay light."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Options(Protocol):
        """What options are declared to: argparse's parser, or `Plain`."""

        def add_argument(self, *names: str, **about: Any) -> Any: ...


class Read:
    """As `argparse.Namespace`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


class _Hard(Exception):
    """It takes argparse to read that, or to say what is wrong."""


def read(declare: Callable[[Options], object], words: list[str]) -> Read | None:
    """The values of the options that `declare` adds. None: read them with argparse."""
    try:
        plain = Plain()
        declare(plain)
        return plain.read(words)
    except _Hard:
        return None


class Plain:
    """Knows flags, options with a text as their value, and words that may be texts, too."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._flags: dict[str, str] = {}  # each name with the value's
        self._texts: dict[str, str] = {}
        self._words: list[tuple[str, bool]] = []  # names of values, and whether it takes several

    def add_argument(self, *names: str, **about: Any) -> None:
        text = about.keys() <= {"metavar", "help", "default", "dest"}
        if not names[0].startswith("-"):
            if about.keys() - {"metavar", "help", "nargs", "default"}:
                raise _Hard
            if about.get("nargs") not in (None, "+", "?"):
                raise _Hard
            self._words.append((names[0], about.get("nargs") == "+"))
            if about.get("nargs") == "?":
                self._values[names[0]] = about.get("default")
            return
        long = next((name for name in names if name.startswith("--")), names[0])
        value = about.get("dest") or long.lstrip("-").replace("-", "_")
        flag = about.get("action") == "store_true"
        self._values[value] = about.get("default", False if flag else None)
        if about.get("required") or self._values[value] == "==SUPPRESS==":
            raise _Hard
        if flag:
            self._flags |= dict.fromkeys(names, value)
        elif text:
            self._texts |= dict.fromkeys(names, value)

    def add_argument_group(self, *_: object, **__: object) -> Plain:
        return self

    def read(self, words: list[str]) -> Read:
        left = iter(words)
        own: list[str] = []
        last = ""
        for word in left:
            name, given, text = word.partition("=")
            if not word.startswith("-"):
                if own and own[-1] != last:
                    raise _Hard  # they are apart
                own.append(word)
            elif word in self._flags:
                self._values[self._flags[word]] = True
            elif name not in self._texts or (given and not name.startswith("--")):
                raise _Hard
            else:
                text = text if given else next(left, "-")
                if text.startswith("-") and not given:
                    raise _Hard
                self._values[self._texts[name]] = text
            last = word
        self._take(own)
        return Read(self._values)

    def _take(self, own: list[str]) -> None:
        several = [name for name, several in self._words if several]
        wanted = [name for name, _ in self._words]
        if not own and wanted and all(name in self._values for name in wanted):
            return
        if several and len(self._words) == 1 and own:
            self._values[several[0]] = own
        elif several or len(own) != len(self._words):
            raise _Hard
        else:
            self._values |= zip([name for name, _ in self._words], own, strict=True)
