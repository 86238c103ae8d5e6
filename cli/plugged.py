"""What installed packages plug into `carma`, by their entry points. Reads these itself: to import
`importlib.metadata` takes longer than most commands."""

from __future__ import annotations

import os
import sys

from carmad import DISTRIBUTION

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

OWN = DISTRIBUTION.replace("-", "_") + "-"  # how the name of CARMA's begins
OF_PACKAGES = (".dist-info", ".egg-info")  # how the folders end in which pip writes what it knows


class Point:
    """An entry point. `value`: "package.module:name"."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value

    def load(self) -> Any:
        """Raises whatever foreign code may raise."""
        module, _, name = self.value.partition(":")
        return getattr(__import__(module, fromlist=(name,)), name)  # importlib takes longer


def points(group: str) -> list[Point]:
    """The entry points of a group, by name. Of several with one name, it is CARMA's own, or the one
    that Python's path has first."""
    found: dict[str, Point] = {}
    for point in _all(group):
        found.setdefault(point.name, point)
    return [found[name] for name in sorted(found)]


def point(group: str, name: str) -> Point | None:
    """Likewise, the one of this name."""
    return next((each for each in _all(group) if each.name == name), None)


def _all(group: str) -> Iterator[Point]:
    for text in _declared():
        if f"[{group}]" in text:
            yield from _section(text, group)


def _declared() -> Iterator[str]:
    """What each package declares, CARMA first."""
    found: list[tuple[str, str]] = []
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - pathlib is slow to import
        except OSError:  # it is an archive, or not there
            continue
        found += [(folder or ".", name) for name in names if name.endswith(OF_PACKAGES)]
    found.sort(key=lambda each: not each[1].startswith(OWN))
    for folder, name in found:
        try:
            with open(f"{folder}/{name}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123
                yield file.read()
        except (OSError, ValueError):  # most declare nothing
            continue


def _section(text: str, group: str) -> Iterator[Point]:
    header = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            header = line
        elif header == f"[{group}]" and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield Point(name.strip(), value.strip())
