"""Sizes, durations and untrusted text as people read them, in terminals, pages and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class TimeUnit(NamedTuple):
    name: str
    seconds: float
    digits: int  # after the point


_TIME_UNITS = (  # with the number of seconds up to which each is used
    (90.0, TimeUnit("s", 1.0, 0)),
    (5400.0, TimeUnit("min", 60.0, 0)),
    (129_600.0, TimeUnit("h", 3600.0, 1)),
)
_DAYS = TimeUnit("days", 86_400.0, 1)


def time_unit(seconds: float) -> TimeUnit:
    """The most readable unit for this many seconds."""
    return next((unit for limit, unit in _TIME_UNITS if seconds < limit), _DAYS)


def duration(seconds: float) -> str:
    """To about two digits: 45 s, 12 min, 3.5 h, 2.0 days."""
    seconds = max(0.0, seconds)
    unit = time_unit(seconds)
    return f"{seconds / unit.seconds:.{unit.digits}f} {unit.name}"


def gib(mib: float) -> str:
    """MiB as GiB: 30.0G."""
    return f"{mib / 1024:.1f}G"


def energy(kwh: float) -> str:
    """Such as 1.25 kWh, 312 Wh or 0.8 Wh."""
    if kwh >= 1:
        return f"{kwh:.2f} kWh"
    return f"{kwh * 1000:.{0 if kwh >= 0.01 else 1}f} Wh"


def number(value: float) -> str:
    """Three digits, or the whole integer part: 12,345, 678, 9.01, 0.0234."""
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    size = float(f"{abs(value):.3g}")
    for decimals, limit in ((0, 100), (1, 10), (2, 1), (3, 0.1)):
        if size >= limit:
            return f"{value:,.{decimals}f}"
    return f"{value:.3g}"


def change(value: float, before: float) -> str:
    """Relative to `before`: -35%, +4.6%, or ×12 from tenfold on; "" if that is meaningless."""
    if before == 0:
        return ""
    share = (value - before) / abs(before)
    if share >= 9:
        return f"×{value / before:,.0f}"
    return f"{share:+.1%}" if abs(share) < 0.0995 else f"{share:+.0%}"


def clean(text: object) -> str:
    """Without control characters: names and commands are untrusted. Of None, nothing."""
    words = "" if text is None else str(text)
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else "?" for c in words)


def clean_lines(text: str) -> str:
    """As `clean`, but its lines stay lines."""
    return "\n".join([clean(line) for line in text.split("\n")])


def count(text: str) -> int:
    """Of a resource as Slurm writes it: 80, or 2K for 2048."""
    digits = text.rstrip("KMGTP")
    return int(digits) << 10 * " KMGTP".index(text[len(digits) :] or " ")


def gpumem_count(gres: str) -> int | None:
    """N of gpumem in "gpu:2,gpumem:a100:80(S:0)"; None: there is none."""
    for one in gres.replace("gres:", "").replace("gres/", "").split(","):
        parts = one.partition("(")[0].replace("=", ":").split(":")
        if parts[0] == "gpumem" and parts[-1][:1].isdigit():
            return count(parts[-1])
    return None


def job_name(argv: Sequence[str]) -> str:
    """Of a job without one: the program's, or that of the script or module that an interpreter or
    a launcher is given. Code (`python -c …`) has no name."""
    import re

    name = argv[0].rpartition("/")[2]
    if re.fullmatch(r"python[0-9.]*t?|bash|sh|zsh|torchrun|accelerate|deepspeed", name):
        name = _script_name(argv[1:], name) or name
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", name)[:256] or "job"


SCRIPTS = (".py", ".sh", ".bash", ".ipynb")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")  # their options may have values


def _script_name(words: Sequence[str], program: str) -> str:
    """ "" if it is given none."""
    before = ""
    for word in words:
        name = word.rpartition("/")[2]
        if before in ("-m", "-um", "--module"):
            return name
        if program not in LAUNCHERS:
            if word[:1] == "-" != word[:2] and word.endswith("c"):
                return ""  # code follows
            if word[:1] != "-" and before not in ("-W", "-X", "-o"):
                return name
        elif word[:1] != "-" and name.endswith(SCRIPTS):
            return name
        before = word
    return ""
