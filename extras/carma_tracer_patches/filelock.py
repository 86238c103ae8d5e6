"""filelock: nobody else sees the files. One that lives in memory has no link, by which the package
takes it for removed, and tries again for ever."""

from __future__ import annotations

import os
from typing import Any

MADE_FOR = "4.2"


def lock_nothing(module: Any, tracer: Any) -> None:
    def acquire(lock: Any) -> None:
        lock._context.lock_file_fd = os.open(os.devnull, os.O_RDWR)

    tracer.replace(module.UnixFileLock, _acquire=acquire)


PATCHES = {"filelock._unix": lock_nothing}
