"""CPython's own tests of executors, for an executor of jobs: `python -m unittest` runs them, with a
Python that has its tests. Of a class that is named, it runs all."""

from __future__ import annotations

import unittest
from typing import Any

try:
    from test.test_concurrent_futures import executor, test_as_completed, test_shutdown, test_wait
except ImportError:  # before 3.12 they are one module
    from test import test_concurrent_futures as executor

    test_as_completed = test_shutdown = test_wait = executor

from carma_client import Executor

# They import the executor from `concurrent.futures`, in a program of theirs.
OF_POOLS = {
    "test_hang_gh83386",
    "test_interpreter_shutdown",
    "test_submit_after_interpreter_shutdown",
}
# They take for granted that a call has started within a second or two; or start fifty.
OF_SECONDS = {
    "test_cancel_futures",
    "test_first_completed",
    "test_first_exception",
    "test_first_exception_one_already_failed",
    "test_first_exception_some_already_complete",
    "test_future_times_out",
    "test_hang_issue12364",
    "test_map_timeout",
    "test_timeout",
    "test_zero_timeout",
}


class Jobs(unittest.TestCase):
    worker_count = 2
    executor_type = Executor

    def setUp(self) -> None:
        self.executor = Executor(self.worker_count, gpus=0)

    def tearDown(self) -> None:
        self.executor.shutdown()


class ExecutorTest(executor.ExecutorTest, Jobs): ...


class AsCompletedTest(test_as_completed.AsCompletedTests, Jobs): ...


class WaitTest(test_wait.WaitTests, Jobs): ...


class ShutdownTest(test_shutdown.ExecutorShutdownTest, Jobs): ...


def load_tests(loader: Any, tests: Any, pattern: Any) -> unittest.TestSuite:
    found = unittest.TestSuite()
    for case in (ExecutorTest, AsCompletedTest, WaitTest, ShutdownTest):
        names = set(loader.getTestCaseNames(case)) - OF_POOLS - OF_SECONDS
        found.addTests(map(case, sorted(names)))
    return found
