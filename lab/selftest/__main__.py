"""What CARMA relies on and no setting depends on, checked on an idle GPU, without a daemon: what
`carma doctor --gpu` leaves out. Ends with 1 if anything differs."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path

from carmad import paths
from carmad.configfile import load
from carmad.configwriting import settings_text
from carmad.errors import CarmaError
from carmad.selftest.run import run
from cli import output
from cli.commands.doctor import findings_table
from lab.selftest import PROBE
from lab.selftest.facts import EXPLAINING


def main() -> int:
    parser = ArgumentParser("python -m lab.selftest", description=__doc__)
    parser.add_argument("--device", default="", help="the GPU's index or UUID; the others are used")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    path = Path(paths.config_path())
    settings = load(path if path.exists() else None, os.environ)
    try:
        report = run(settings, options.device, facts=EXPLAINING, probe=PROBE)
    except CarmaError as error:
        sys.exit("\n".join(filter(None, (error.message, error.hint))))
    if options.json:
        print(report.to_json())
    else:
        output.show(findings_table(report, EXPLAINING))
        if report.settings:
            print(f"\nSettings that fit what was found:\n\n{settings_text(report.settings)}")
    return int(report.differs)


if __name__ == "__main__":
    sys.exit(main())
