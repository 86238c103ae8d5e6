"""Checks that packages add to `carma doctor`, by entry points of the group `carma.checks`: each is
named as the option that asks for it alone. Imports stay light."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from carmad.api.checks import CheckOut


class Checks:
    """`summary`: the help of the option. `run`: does the checks, one after the other.
    `take_over`: whether they are what to check on this machine, which has no daemon."""

    def __init__(
        self,
        summary: str,
        run: Callable[[], Iterable[CheckOut]],
        take_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.summary = summary
        self.run = run
        self.take_over = take_over


# Options of `carma doctor` itself.
OWN = frozenset(
    ("device", "estimators", "gpu", "help", "json", "model", "models", "notify", "train", "write")
)


def load_checks() -> dict[str, Checks]:
    """By name. What cannot be loaded is left out, as is what would take an option of ours."""
    from carmad import installed

    found = installed.load_each("carma.checks", quietly=True)
    return {name: its for name, its in found if isinstance(its, Checks) and name not in OWN}


def takes_over(its: Checks) -> bool:
    """False, too, if that cannot be told."""
    try:
        return its.take_over()
    except (Exception, SystemExit):  # noqa: BLE001 - foreign code
        return False
