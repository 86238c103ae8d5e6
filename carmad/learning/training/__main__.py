"""Trains models from a copy of the daemon's database:
`python -m carmad.learning.training COPY DIRECTORY`.

Writes DIRECTORY/NAME.json for each model with enough data. Progress goes to standard output,
warnings to standard error. For the daemon it runs as a separate process: at low priority, with
limits on memory and time, and only while the other end of its standard input is open.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from carmad import apart


def main(argv: Sequence[str]) -> None:
    database, directory = map(Path, argv)
    apart.limit()
    # Imported only now, so that the limits apply to these imports, too.
    from carmad.learning.training.retraining import retrain
    from carmad.store.sql import SqlStore

    with closing(SqlStore.open(database)) as store:
        for said in retrain(store, directory, time.time()):
            print(said.text, file=sys.stderr if said.alarming else sys.stdout, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
