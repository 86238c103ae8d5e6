"""What carmad keeps of the memory that a request took."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTINGS = """
from concurrent.futures import ThreadPoolExecutor
from resource import RUSAGE_SELF, getrusage
from threading import Barrier
from pydantic_core import to_json
from carmad.daemon.main import give_memory_back

def write():
    to_json("x" * 1023 for _ in range(17 << 10))

def most_mib():
    return getrusage(RUSAGE_SELF).ru_maxrss >> 10

THREADS = 4
give_memory_back()
write()
before, started = most_mib(), Barrier(THREADS)
with ThreadPoolExecutor(THREADS) as pool:
    list(pool.map(lambda _: started.wait(), range(THREADS)))  # each thread is there
    for _ in range(4 * THREADS):
        pool.submit(write).result()
print(most_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_long_listings_one_after_another_take_no_more_than_one() -> None:
    """Each thread that had written one kept its buffer."""
    ran = subprocess.run(
        [sys.executable, "-c", LISTINGS], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 20
