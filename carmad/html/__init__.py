"""What all of CARMA's HTML shares: the style sheet, the macros, and how templates are read. The
simulator's report, the week's report and `carma web` are made of these."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from carmad.readable import clean, duration, energy, gib

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment(package: str) -> Environment:
    """Templates of `package/templates`, and what they share: `parts` has the macros. Whatever a
    template prints is escaped, and a name that is not defined raises."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("carmad.html")]),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # an upgrade must not mix its templates with code that runs
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"clean": clean, "duration": duration, "energy": energy, "gib": gib}
    # A global, since the parts of a page are also rendered on their own, without its imports.
    made.globals["parts"] = made.get_template("parts.html.j2").module
    return made


def style() -> str:
    """The style sheet, for pages that must stand alone."""
    return files(__package__).joinpath("look.css").read_text(encoding="utf-8")
