"""How much time a trace has taken: by the clock, and of a processor without its imports.

Imports may take a minute from a cold disk, and say little about how long two steps take. So does
the clock on a machine that others keep busy.
"""

import sys
import threading
import time
from typing import Any, Optional


class Clock:
    def __init__(self, started: float) -> None:
        """`started`: by the monotonic clock. What the process has done so far counts as import."""
        self._started = started
        self._imports_s = time.process_time()
        self._importing: Optional[float] = None  # processor time when the import began

    @property
    def seconds(self) -> float:
        """By the clock."""
        return time.monotonic() - self._started

    @property
    def own_s(self) -> float:
        """Of a processor, by all threads, except for imports in the main thread."""
        importing = self._importing
        return (time.process_time() if importing is None else importing) - self._imports_s

    def works(self) -> None:
        """From now on an import that is in progress counts: the script trains in it."""
        if self._importing is not None:
            self._imports_s += time.process_time() - self._importing
            self._importing = None

    def install(self) -> None:
        """Notice imports from now on."""
        importlib: Any = sys.modules["_frozen_importlib"]
        find = importlib._find_and_load  # the interpreter calls it by this name
        main = threading.get_ident()

        def find_and_load(*args: Any) -> Any:
            if self._importing is not None or threading.get_ident() != main:
                return find(*args)
            self._importing = time.process_time()
            try:
                return find(*args)
            finally:
                self.works()

        importlib._find_and_load = find_and_load
