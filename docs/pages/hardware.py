"""hardware.md: what CARMA relies on, and on which GPUs that was seen, by committed reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from carmad.selftest.report import Verdict
from docs.pages.text import cell
from lab.hardware.visit import Entry, Visit
from lab.selftest.facts import SECTIONS, Assumption

REPORTS = Path(__file__).parents[2] / "lab/results/hardware"

HEAD = """\
# Verified on hardware, or not yet

{status}

What CARMA assumes about NVIDIA's software comes from headers, manuals and reports. The tables list
these assumptions, and on which GPUs each was seen to hold, or not to.

Most can be checked on an idle GPU in a few minutes, as root or as a user, without a daemon: those
on which settings depend by the first command, the others by the second, in a copy of the
repository.

```sh
carma doctor --gpu
python -m lab.selftest
```

The column *Check* has the name that a fact has there. Where a self-test on one server cannot tell,
it says what to try by hand. What the self-test does, and what it leaves alone, is in the
[administrators' guide](admins.md#test-the-gpu). Please send us what `--json` prints.

Sources are abbreviated: *nvml.h* is the header of the NVML API, v13; *MPS manual* is
[docs.nvidia.com/deploy/mps](https://docs.nvidia.com/deploy/mps/), release 615; *DCGM guide* is the
DCGM user guide, "Feature Overview".
"""
NOWHERE = """\
CARMA was built and tested on machines without a GPU. Its self-test has been tried on fakes of
NVIDIA's software only: no report of a real GPU has been committed."""
SOMEWHERE = """\
CARMA was built and tested on machines without a GPU. Its self-test has been run on these since:

{}"""
COLUMNS = "| CARMA relies on | Source | If it is not so | Check | Verified |\n|---|---|---|---|---|"


def page(reports: Path = REPORTS) -> str:
    found = list(_entries(reports))
    seen = {(e["gpu"], e["driver"], e["date"][:10]) for e in found}
    servers = "\n".join(f"- {gpu}, driver {driver}, {day}" for gpu, driver, day in sorted(seen))
    parts = [HEAD.format(status=SOMEWHERE.format(servers) if seen else NOWHERE)]
    for title, facts in SECTIONS.items():
        rows = (_row(fact, [e for e in found if e["fact"] == fact.name]) for fact in facts)
        parts.append(f"## {title}\n\n{COLUMNS}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _entries(reports: Path) -> Iterator[Entry]:
    """The last of each fact and GPU."""
    for folder in sorted(reports.glob("*/")):
        yield from Visit(folder, "facts", rehearse=False).entries().values()


def _row(fact: Assumption, entries: Iterable[Entry]) -> str:
    check = f"`{fact.name}`" if fact.check else ""
    check += f"{'; ' if fact.check and fact.by_hand else ''}{fact.by_hand}"
    where = [_verified(each) for each in entries if each["verdict"] != Verdict.UNKNOWN]
    cells = (fact.relies_on, fact.source, fact.otherwise, check, "; ".join(where) or "not yet")
    return f"| {' | '.join(map(cell, cells))} |"


def _verified(entry: Entry) -> str:
    where = f"{entry['gpu']}, driver {entry['driver']}, {entry['date'][:10]}"
    if entry["verdict"] == Verdict.HOLDS:
        return where
    return f"**differs** on {where}: {entry['detail']}"
