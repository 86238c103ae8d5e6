"""What jobs use of processors and networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.daemon import hostuse
from carmad.daemon.hostuse import CPU, MIB, RX, TX, HostUse

ONE, OTHER = JobId(1), JobId(2)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds between two readings, on eight cores."""
    ticks = iter(range(10, 100, 2))
    monkeypatch.setattr(hostuse.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(hostuse.os, "cpu_count", lambda: 8)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def use_cpu(cgroup: Path, seconds: float) -> str:
    write(cgroup / "cpu.stat", f"usage_usec {seconds * 1e6:.0f}\nuser_usec 1\nsystem_usec 2\n")
    return str(cgroup)


def send(sys: Path, mib: float, port: str = "") -> None:
    """As much has been received as sent, and half as much again."""
    for name, moved in (("tx", mib), ("rx", 1.5 * mib)):
        write(sys / f"class/net/eth0/statistics/{name}_bytes", f"{moved * MIB:.0f}\n")
        if port:
            word = {"tx": "xmit", "rx": "rcv"}[name]
            counter = f"class/infiniband/mlx5_0/ports/{port}/counters/port_{word}_data"
            write(sys / counter, f"{10 * moved * MIB / 4:.0f}\n")
    (sys / "class/net/eth0/device").mkdir(exist_ok=True)
    write(sys / "class/net/lo/statistics/tx_bytes", "999999999\n")


def reading(*jobs: JobId, gpu: str = "a") -> GpuSample:
    uses = tuple(ProcessUse(pid, 10, job=job) for pid, job in enumerate(jobs))
    return GpuSample(GpuId(gpu), 0.0, processes=uses, more=(("fp32_active", 0.5),))


def test_a_job_has_its_own_processor_time_and_the_servers_traffic(tmp_path: Path) -> None:
    send(tmp_path, 100)
    host, cgroups = HostUse(tmp_path), {ONE: use_cpu(tmp_path / "one", 5)}
    assert host.add([reading(ONE)], cgroups) == (reading(ONE),), "there is nothing before it"
    use_cpu(tmp_path / "one", 9)
    send(tmp_path, 120)
    first, idle = host.add([reading(ONE), reading(gpu="b")], cgroups)
    assert dict(first.more) == {
        "fp32_active": 0.5,
        CPU: pytest.approx(2 / 8),  # two cores of eight
        TX: pytest.approx(10.0),
        RX: pytest.approx(15.0),
    }
    assert idle == reading(gpu="b")


def test_of_two_jobs_nobody_knows_whose_the_traffic_is(tmp_path: Path) -> None:
    send(tmp_path, 100)
    host = HostUse(tmp_path)
    cgroups = {ONE: use_cpu(tmp_path / "one", 5), OTHER: use_cpu(tmp_path / "other", 0)}
    apart = [reading(ONE), reading(OTHER, gpu="b"), reading(ONE, OTHER, gpu="c")]
    host.add(apart, cgroups)
    use_cpu(tmp_path / "other", 16)
    names = [dict(sample.more).keys() - {"fp32_active"} for sample in host.add(apart, cgroups)]
    assert names == [{CPU}, {CPU}, set()]


def test_where_there_is_infiniband_it_is_what_counts(tmp_path: Path) -> None:
    send(tmp_path, 100, port="1")
    host = HostUse(tmp_path)
    host.add([reading(ONE)], {})
    send(tmp_path, 120, port="1")
    (found,) = host.add([reading(ONE)], {})
    assert dict(found.more)[TX] == pytest.approx(100.0)


def test_what_cannot_be_read_or_starts_anew_is_unknown(tmp_path: Path) -> None:
    host = HostUse(tmp_path)
    cgroups = {ONE: use_cpu(tmp_path / "one", 5), OTHER: str(tmp_path / "gone")}
    host.add([reading(ONE)], cgroups)
    use_cpu(tmp_path / "one", 1)  # the next attempt's
    assert host.add([reading(ONE)], cgroups) == (reading(ONE),)
