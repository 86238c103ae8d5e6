"""carmad in what it may be installed in: a container that boots systemd, a rootless one, a chroot.

In each, the daemon and its supervisors may see different things (boot ids, /proc, cgroups), and yet
every job starts once and ends once, as what it was.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.daemon.booted import Machine, mounts
from carmad.attempt.proc import read_file, with_descendants
from tests.attack.booted import booted
from tests.daemon import CARMA, until

BOOT_ID = "/proc/sys/kernel/random/boot_id"
CODES = (0, 3, 42)
LINKS = ("bin", "sbin", "lib", "lib64")  # to /usr, on a system of today
# A daemon of its own, some jobs that outlive a moment, and the doctor.
SCRIPT = """
set -e
export CARMA_SOCKET=/tmp/c.sock HOME=/tmp
cd /tmp
carma() { {carma} "$@"; }
carma daemon start --emulated 1xA100-40GB --state-dir /tmp/state --socket /tmp/c.sock >&2
for code in 0 3 42; do
    carma submit -Q --gpus 0 -o out-$code sh -c "echo began; sleep 2; echo ended; exit $code" >&2
done
carma wait 1 2 3 >&2 || true
for job in 1 2 3; do carma show --json $job; echo @; done
carma doctor --json || true
echo @
cat out-0 out-3 out-42
carma daemon stop >&2
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with booted(tmp_path) as machine:
        yield machine


@pytest.mark.long
def test_in_a_container_that_boots_systemd(machine: Machine) -> None:
    """systemd-nspawn shows a boot id of its own, but not behind its unit's ProtectProc=."""
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("systemd-nspawn is not here (systemd-container)")
    with nspawned(machine) as inner:
        assert inner.read("/proc/sys/kernel/random/boot_id") not in ("", machine.read(BOOT_ID))
        inner.welcome()
        inner.install()
        inner.systemctl("start", "carmad.socket")
        began_and_ended = "echo began >> ~/ledger; sleep 2; echo ended >> ~/ledger; exit "
        jobs = {code: inner.sh(f"{began_and_ended}{code}", "ada", gpus=0) for code in CODES}
        for code, job in jobs.items():
            ended = inner.await_end(job, "ada")
            assert (ended["exit"]["code"], ended["attempt"]) == (code, 1), ended
        ledger = inner.read("/home/ada/ledger").split()
        assert (ledger.count("began"), ledger.count("ended")) == (len(CODES), len(CODES))
        assert doctors_job(inner.run(*CARMA, "doctor", "--json", check=False))["ok"] is True


@contextmanager
def nspawned(machine: Machine) -> Iterator[Machine]:
    """A container below that machine, with the same files but for /run, /home and /var."""
    tree, folder = "/run/tree", machine.folder
    machine.run("mkdir", tree)
    machine.run("mount", "--bind", "/", tree)
    nspawn = ["systemd-nspawn", f"--directory={tree}", "--volatile=overlay", "--boot"]
    nspawn += ["--register=no", "--keep-unit", "--private-users=no", "--console=pipe"]
    closed = mounts()["CLOSED"].split("\n")
    nspawn += [f"--tmpfs={each}:mode=755" for each in closed if each]
    nspawn += [f"--bind-ro={each}" for each in needed()]
    nspawn += [f"--bind={folder}", "--machine=inner", "systemd.unit=basic.target"]
    log = f"{folder}/nspawn.log"
    unit = ["-pDelegate=yes", f"-pStandardOutput=file:{log}", f"-pStandardError=file:{log}"]
    machine.run("systemd-run", "--unit=inner", *unit, *nspawn)
    try:
        pid = until(lambda: _pid1_in(machine.pid1), f"systemd in nspawn: {machine.read(log)}")
        inner = replace(machine, pid1=pid)
        until(
            lambda: inner.systemctl("is-system-running", check=False) in ("running", "degraded"),
            f"the container to boot: {machine.read(log)}",
        )
        yield inner
    finally:
        machine.systemctl("kill", "--signal=KILL", "inner.service", check=False)


def _pid1_in(outer: int) -> int | None:
    """The process that is the first in a pid namespace below that of `outer`."""
    for pid in with_descendants({outer: 0}):
        try:
            status = read_file(f"/proc/{pid}/status").decode()
        except OSError:
            continue
        numbers = status.partition("\nNSpid:")[2].partition("\n")[0].split()
        if len(numbers) == 3 and numbers[-1] == "1" and "Name:\tsystemd\n" in status:
            return pid
    return None


def doctors_job(said: str) -> dict[str, object]:
    (found,) = (each for each in json.loads(said)["checks"] if each["name"] == "job")
    return dict(found)


@pytest.mark.long
def test_in_a_rootless_container(machine: Machine) -> None:
    if shutil.which("podman") is None or shutil.which("newuidmap") is None:
        pytest.skip("podman or newuidmap is not here")
    tree = "/home/ada/tree"
    machine.run("sh", "-ec", plant(tree), user="ada")
    for ids in ("subuid", "subgid"):
        machine.run("tee", f"/etc/{ids}", stdin="ada:300000:65536\n")
    machine.run("install", "-d", "-oada", "-gada", "-m700", "/run/ada")
    volumes = [f"--volume={each}:{each}:ro" for each in ("/usr", *needed())]
    machine.run("umount", BOOT_ID)  # else the kernel would not give a user a /proc without it
    podman = ["podman", "run", "--rm", "--cgroups=disabled", "--network=none"]
    env = "HOME=/home/ada XDG_RUNTIME_DIR=/run/ada PATH=/usr/bin:/bin:/usr/sbin:/sbin"
    words = shlex.join([*podman, *volumes, "--rootfs", tree, "sh", "-c", script()])
    check(machine.run("sh", "-c", f"cd; exec env -i {env} {words}", user="ada"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root")
def test_in_a_chroot(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    binds = "".join(
        f"mkdir -p {tree}{each}; mount --rbind {each} {tree}{each}; "
        for each in ("/usr", "/proc", "/sys", "/dev", *needed())
    )
    enter = f"{plant(str(tree))} {binds} exec chroot {tree} sh -c {shlex.quote(script())}"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", enter], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran
    check(ran.stdout)


def plant(tree: str) -> str:
    """Makes a root directory that has nothing of its own."""
    links = "".join(f"ln -s usr/{each} {tree}/{each}; " for each in LINKS)
    folders = " ".join(f"{tree}/{each}" for each in ("tmp", "proc", "sys", "dev", "etc", "usr"))
    passwd = f"echo root:x:0:0::/tmp:/bin/sh > {tree}/etc/passwd; "
    return f"mkdir -p {folders}; chmod 1777 {tree}/tmp; {passwd} {links}"


def needed() -> list[str]:
    """CARMA and its Python."""
    return mounts()["NEEDED"].split("\n")


def script() -> str:
    return SCRIPT.replace("{carma}", shlex.join(CARMA))


def check(said: str) -> None:
    *jobs, doctor, ledger = said.split("@\n")
    ends = [(job["exit"]["code"], job["attempt"]) for job in map(json.loads, jobs)]
    assert ends == [(code, 1) for code in CODES], said
    assert doctors_job(doctor)["ok"] is True, said
    assert ledger.split() == ["began", "ended"] * len(CODES), said
