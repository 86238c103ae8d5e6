"""Generates pages of docs from the code, hardware.md also from the reports in lab/results/hardware,
and the client's stubs: `python docs/generate.py`; `--check` only compares.

Each page is a module in `docs/pages`, which also has the text that is not in the code, such as
the remedy for each reason. `tests/docs/test_docs` checks that nothing is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from docs.pages import (
    client_stubs,
    commands,
    hardware,
    http_api,
    metrics,
    reasons,
    settings,
    states,
)

DOCS = Path(__file__).parent
NOTICE = "Written by docs/generate.py from the code. Do not edit."


PAGES = {  # by their paths below docs
    "reference/settings.md": settings.page,
    "reference/commands.md": commands.page,
    "reference/http-api.md": http_api.page,
    "reference/metrics.md": metrics.page,
    "reference/reasons.md": reasons.page,
    "reference/states.md": states.page,
    "hardware.md": hardware.page,
    **{f"../packaging/client/stubs/{name}": stub for name, stub in client_stubs.STUBS.items()},
}


def page(name: str) -> str:
    """The text of a generated page."""
    os.environ["TZ"] = "UTC"  # one of the examples has a time of day
    time.tzset()
    notice = f"<!-- {NOTICE} -->\n\n" if name.endswith(".md") else f"# {NOTICE}\n"
    return notice + PAGES[name]().rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only report pages that differ")
    check = parser.parse_args().check
    stale = []
    for name in PAGES:
        path, text = DOCS / name, page(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/{name} {'is not up to date' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
