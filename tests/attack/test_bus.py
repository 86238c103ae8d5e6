"""systemd hangs, or its sockets are gone: jobs go on, and can be stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.booted import Machine, booted
from tests.daemon import until

SYSTEMD_S_OWN = "/run/systemd/private"  # where root's systemd-run asks


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with booted(tmp_path) as machine:
        machine.systemctl("start", "carmad")
        yield machine


def a_running_job(machine: Machine, out: str) -> int:
    job = machine.sh("echo up; exec sleep 1000", stdout=out)
    machine.await_line(f"/home/ada/{out}", "up")
    return job


def test_while_systemd_hangs_a_job_is_stopped_and_none_is_lost(machine: Machine) -> None:
    """PID 1 also answers who is in which group, on Debian."""
    one, other = (a_running_job(machine, out) for out in ("one", "other"))
    limited = machine.sh("echo up; exec sleep 1000", stdout="limited", time_limit_s=5)
    machine.await_line("/home/ada/limited", "up")
    os.kill(machine.pid1, signal.SIGSTOP)
    try:
        waits = machine.sh("echo ran")  # carmad is at it now
        machine.call("POST", "/v1/cancel", {"select": str(one)})
        assert machine.await_end(one)["state"] == "cancelled"
        assert machine.await_end(limited)["state"] == "timed_out"
        mistaken = machine.sh("echo ran too", stdout="mistaken")
        machine.call("POST", "/v1/cancel", {"select": str(mistaken)})
        assert machine.await_end(mistaken)["state"] == "cancelled"
        assert machine.call("GET", f"/v1/jobs/{other}")["state"] in ("starting", "running")
    finally:
        os.kill(machine.pid1, signal.SIGCONT)
    assert machine.await_end(waits)["state"] == "succeeded"
    assert "ran too" not in machine.read("/home/ada/mistaken")
    machine.call("POST", "/v1/cancel", {"select": str(other)})
    assert machine.await_end(other)["state"] == "cancelled"


@pytest.mark.long
def test_jobs_wait_until_the_socket_of_systemd_is_back(machine: Machine) -> None:
    runs = a_running_job(machine, "runs")
    machine.run("mv", SYSTEMD_S_OWN, f"{SYSTEMD_S_OWN}.gone")
    assert machine.await_end(machine.sh("true"))["state"] == "succeeded", "nobody asks systemd"
    for pid in machine.run("pgrep", "-f", "carmad.attempt.forkserver .*/forkserver$").split():
        machine.run("kill", "-KILL", pid)
    waits = machine.sh("echo ran")
    until(lambda: "launches are postponed" in machine.log(), "the log to say so")
    machine.call("POST", "/v1/cancel", {"select": str(runs)})
    assert machine.await_end(runs)["state"] == "cancelled"
    machine.run("mv", f"{SYSTEMD_S_OWN}.gone", SYSTEMD_S_OWN)
    assert machine.await_end(waits)["state"] == "succeeded"
