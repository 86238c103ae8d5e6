"""Where CARMA's programs begin, with nothing of the user's on Python's path: what `PYTHONPATH` adds
is for the user's own programs, and may have a `cli.py`, or a `logging.py`.

It is in this package, whose name is CARMA's alone, and first imports what Python itself has.
"""

from __future__ import annotations

import os
import sys


def carma() -> None:
    _prepare_path()
    from cli.main import main

    main()


def carmad() -> int:
    _prepare_path()
    from carmad.daemon.main import main

    return main()


def _prepare_path() -> None:
    _clear_path()
    from carmad.paths import find_own

    find_own()


def _clear_path() -> None:
    """Drop what `PYTHONPATH` has added, but for the folder from which CARMA itself is imported
    (`pip install --target`) and those of Python's own packages."""
    if not (given := os.environ.get("PYTHONPATH")):
        return
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    added = {os.path.abspath(each) for each in given.split(os.pathsep)}  # noqa: PTH100
    own = tuple(f"{prefix}/lib" for prefix in {sys.prefix, sys.base_prefix})
    sys.path[:] = [
        each
        for each in sys.path
        if each == home or each.startswith(own) or os.path.abspath(each) not in added  # noqa: PTH100
    ]
