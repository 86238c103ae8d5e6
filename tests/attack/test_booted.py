"""carmad under systemd, in its unit as shipped: what the sandbox blocks, and what it must allow."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.booted import SOCKET, USERS, Json, Machine, booted
from tests.carmad.metrics.test_metrics_served import free_port, got
from tests.daemon import CARMA, ROOT, train, until
from tests.here import shebang
from tests.messages import Target
from tests.storm import SUSPENDS

TRAIN = """
    import _socket, contextlib, os, sys, tempfile, torch
    if os.path.exists("/dev/shm/carma-booted"):
        sys.exit("its /dev/shm is everybody's")
    with contextlib.suppress(PermissionError):
        _socket.socket()
        sys.exit("the tracer could not confine itself")
    model = torch.nn.Linear(1024, 1024).cuda()
    adam = torch.optim.Adam(model.parameters())
    for step in range(3):
        loss = model(torch.randn(64, 1024, device="cuda")).sum()
        loss.backward()
        adam.step()
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file)
    open("checkpoint", "w").write("done")
"""
WAITS = "echo up; while [ ! -e ~/go ]; do sleep 0.1; done; exit 42"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("booted")
    with booted(folder, **SUSPENDS, CARMA_ESTIMATION__WITHIN_S="100") as machine:
        yield machine


def cgroup_of(machine: Machine, job: int) -> str:
    """Below the unit of the fork server."""
    found = machine.run("find", "/sys/fs/cgroup", "-name", f"carma-job-{job}-1", check=False)
    (path,) = {line for line in found.splitlines() if "/carma.slice/carma-jobs-" in line} or {""}
    return path


def main_pid(machine: Machine) -> str:
    return machine.show("carmad.service", "MainPID")


def in_sandbox(machine: Machine, *words: str, check: bool = True) -> str:
    """A root shell with carmad's mounts, to see what it sees."""
    return machine.run("nsenter", f"--target={main_pid(machine)}", "--mount", *words, check=check)


def is_in(line: str, job: int) -> bool:
    """Whether this line of /proc/PID/cgroup is of the job's processes."""
    return bool(
        re.fullmatch(rf"0::/carma\.slice/carma-jobs-[0-9a-f]+\.service/carma-job-{job}-1", line)
    )


def start(machine: Machine) -> None:
    """Start carmad by a user's first request, unless it is running."""
    machine.call("GET", "/v1/health")


def test_a_users_request_starts_it_and_it_tells_systemd_when_it_is_ready(machine: Machine) -> None:
    machine.systemctl("stop", "carmad.service")
    assert machine.show("carmad.service", "ActiveState") == "inactive"
    start(machine)
    # `activating` until READY=1 has come.
    until(lambda: machine.show("carmad.service", "ActiveState") == "active", "READY=1")


def test_each_users_job_has_a_cgroup_of_its_own_outside_of_the_sandbox(machine: Machine) -> None:
    """It writes its home, /tmp and /var/tmp, may gain privileges, and sees what its user sees."""
    script = """
        id -u; cat /proc/self/cgroup
        touch ~/mine /tmp/carma-booted-$$ /var/tmp/carma-booted-$$ && echo wrote
        rm /tmp/carma-booted-$$ /var/tmp/carma-booted-$$
        grep -E "NoNewPrivs|Seccomp:|CapBnd" /proc/self/status
        ls /home
    """
    bounding = machine.run("sed", "-n", "s/^CapBnd:\\t//p", "/proc/1/status")
    for user, uid in USERS.items():
        job = machine.sh(script, user)
        assert machine.await_end(job, user)["exit"]["code"] == 0
        said = machine.read(f"/home/{user}/carma-{job}.out").split("\n")
        assert said[0] == str(uid)
        assert [line for line in said if is_in(line, job)], said
        assert "wrote" in said
        assert {"NoNewPrivs:\t0", "Seccomp:\t0", f"CapBnd:\t{bounding}"} <= set(said)
        assert set(USERS) <= set(said)
        assert machine.run("stat", "--format=%u", f"/home/{user}/mine") == str(uid)


def test_what_a_job_asks_of_the_host_is_a_limit_of_its_cgroup(machine: Machine) -> None:
    """Not of its supervisor's, beside it. Two users share the CPUs: the second waits, and is told
    for how many and for whom."""
    cpus = len(os.sched_getaffinity(0))
    first = machine.sh(WAITS, "ada", gpus=0, cpus=cpus, host_memory_mib=512)
    machine.await_line(f"/home/ada/carma-{first}.out", "up")
    cgroup = cgroup_of(machine, first)
    unit = cgroup.rpartition("/")[0]
    controllers = machine.read(f"{unit}/cgroup.controllers").split()
    if "cpu" in controllers:
        assert machine.read(f"{cgroup}/cpu.max") == f"{cpus * 100_000} 100000"
        assert machine.read(f"{unit}/supervisors/cpu.max").startswith("max")
    if "memory" in controllers:
        assert machine.read(f"{cgroup}/memory.max") == str(512 << 20)
        assert machine.read(f"{cgroup}/memory.swap.max") == "0"
        assert machine.read(f"{unit}/supervisors/memory.max") == "max"
    ours = machine.read(f"{unit}/supervisors/cgroup.procs").split()
    assert machine.show(unit.rpartition("/")[2], "MainPID") in ours
    second = machine.sh("echo $CARMA_CPUS", "bob", gpus=0)
    why = machine.call("GET", f"/v1/jobs/{second}/why", user="bob")["headline"]
    assert why.endswith(f"0 of {cpus} are free: job {first} has {cpus}"), why
    machine.run("touch", "/home/ada/go", user="ada")
    assert machine.await_end(first, "ada")["exit"]["code"] == 42
    machine.run("rm", "/home/ada/go")
    assert machine.await_end(second, "bob")["exit"]["code"] == 0
    assert machine.read(f"/home/bob/carma-{second}.out") == "1"


def test_a_look_at_a_script_works_in_the_sandbox_and_is_confined(machine: Machine) -> None:
    machine.run("tee", "/tmp/carma-booted.py", user="ada", stdin=textwrap.dedent(TRAIN))
    machine.run("touch", "/dev/shm/carma-booted")
    body = {"argv": [sys.executable, "/tmp/carma-booted.py"], "cwd": "/home/ada", "env": {}}
    estimates = machine.call("POST", "/v1/estimate", body)["estimates"]
    machine.run("rm", "/tmp/carma-booted.py", "/dev/shm/carma-booted")
    [traced] = [each for each in estimates if each["source"] == "trace"]
    assert traced["mib"] is not None, traced["why"]
    assert traced["parts"]["parameters"] > 0
    assert "checkpoint" not in machine.run("ls", "/home/ada")


def test_the_daemon_can_write_nothing_but_its_own_directories(machine: Machine) -> None:
    start(machine)
    cgroup = "/sys/fs/cgroup/system.slice/carmad.service"
    new = f"carma-test-{os.getpid()}"  # /tmp and others are this machine's: anything may be there
    for own in ("/var/lib/carma", "/run/carma", "/var/cache/carma", cgroup):
        in_sandbox(machine, "mkdir", f"{own}/{new}")
        in_sandbox(machine, "rmdir", f"{own}/{new}")
    closed = ["/etc", "/usr", "/home", "/home/ada", "/root", "/tmp", "/var/tmp", "/var/lib"]
    kernels = ["/proc/sys/kernel/printk", "/sys/fs/cgroup/cgroup.procs"]
    for other in [*(f"{folder}/{new}" for folder in closed), *kernels]:
        said = in_sandbox(machine, "sh", "-c", f": 2>&1 >>{other}", check=False)
        assert "Read-only file system" in said, (other, said)


def test_the_daemon_sees_every_device(machine: Machine) -> None:
    """A device list would hide those that the driver creates later; ProtectClock= implies one."""
    start(machine)
    assert machine.show("carmad.service", "DevicePolicy") == "auto"
    assert machine.show("carmad.service", "DeviceAllow") == ""
    assert machine.show("carmad.service", "PrivateDevices") == "no"


def test_the_kernel_holds_the_daemon_to_its_unit(machine: Machine) -> None:
    start(machine)
    status = dict(
        line.split(":\t", 1)
        for line in machine.read(f"/proc/{main_pid(machine)}/status").splitlines()
        if ":\t" in line
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    kept = {"chown", "dac_override", "fowner", "kill", "setgid", "setuid", "sys_ptrace"}
    kept |= {"mknod", "sys_admin"}
    names = machine.run("systemd-analyze", "capability").split("\n")[1:]
    number = {words[0].removeprefix("cap_"): int(words[1]) for words in map(str.split, names)}
    assert int(status["CapBnd"], 16) == sum(1 << number[name] for name in kept)


def test_a_killed_daemon_comes_back_and_its_jobs_never_noticed(machine: Machine) -> None:
    jobs = {user: machine.sh(WAITS, user) for user in USERS}
    for user, job in jobs.items():
        machine.await_line(f"/home/{user}/carma-{job}.out", "up")
    before = main_pid(machine)
    machine.systemctl("kill", "--signal=KILL", "carmad.service")
    until(lambda: main_pid(machine) not in ("0", before), "systemd to start it again")
    assert int(machine.show("carmad.service", "NRestarts")) > 0
    for user, job in jobs.items():
        machine.run("touch", f"/home/{user}/go", user=user)
        ended = machine.await_end(job, user)
        assert (ended["exit"]["code"], ended["attempt"]) == (42, 1)
        machine.run("rm", f"/home/{user}/go")


def test_a_stop_leaves_jobs_and_the_next_request_finds_them(machine: Machine) -> None:
    job = machine.sh(WAITS)
    machine.await_line(f"/home/ada/carma-{job}.out", "up")
    machine.systemctl("stop", "carmad.service")
    assert cgroup_of(machine, job)
    machine.run("touch", "/home/ada/go", user="ada")
    until(
        lambda: not cgroup_of(machine, job),
        "the job to end while the daemon is away",
    )
    ended = machine.await_end(job)
    assert (ended["exit"]["code"], ended["attempt"]) == (42, 1)
    machine.run("rm", "/home/ada/go")


def test_a_suspended_job_is_frozen_and_may_have_its_memory_on_the_host(machine: Machine) -> None:
    """By its supervisor, as carmad's sandbox has all cgroups read-only; and by nobody else."""

    def ask(verb: str) -> None:
        (said,) = machine.call("POST", f"/v1/{verb}", {"select": str(id), "user": None})["results"]
        assert said["ok"], said

    def await_state(state: str) -> Json:
        def there() -> Json | None:
            job = machine.call("GET", f"/v1/jobs/{id}")
            return job if job["state"] == state else None

        found: Json = until(there, f"job {id} to be {state}: {machine.log()}")
        return found

    def is_frozen() -> bool:
        return "frozen 1" in machine.read(f"{cgroup}/cgroup.events")

    def limit_mib() -> int:
        return int(machine.read(f"{cgroup}/memory.max")) >> 20

    argv = train(memory_mib=2000, seconds=600, warmup=0)
    body = {"argv": argv, "cwd": "/home/ada", "env": {"PYTHONPATH": str(ROOT)}}
    id = machine.call("POST", "/v1/jobs", {**body, "host_memory_mib": 512})["id"]
    until(lambda: machine.call("GET", f"/v1/jobs/{id}")["memory"]["peak_mib"] == 2000, "its memory")
    cgroup = cgroup_of(machine, id)
    limited = "memory" in machine.read(f"{cgroup.rpartition('/')[0]}/cgroup.controllers").split()
    ask("suspend")
    await_state("suspended")
    until(is_frozen, "it to be frozen")
    assert not limited or limit_mib() == 2512
    for path in (f"{cgroup}/cgroup.freeze", f"/var/lib/carma/jobs/{id}.1/control"):
        said = machine.run("sh", "-c", f"echo 0 2>&1 >{path} || :", user="ada")
        assert "Permission denied" in said, said
    before = main_pid(machine)
    machine.systemctl("kill", "--signal=KILL", "carmad.service")
    until(lambda: main_pid(machine) not in ("0", before), "systemd to start it again")
    await_state("suspended")
    assert is_frozen()
    ask("resume")
    job = await_state("running")
    assert not is_frozen() and (not limited or limit_mib() == 512)
    assert not [note for note in job["notes"] if "refuse" in note or "suspend" in note], job
    ask("suspend")
    await_state("suspended")
    until(is_frozen, "it to be frozen again")
    machine.call("POST", "/v1/cancel", {"select": str(id)})
    assert machine.await_end(id)["state"] == "cancelled"


def server_unit(machine: Machine) -> str:
    """The fork server's unit that is active."""
    words = ("list-units", "--plain", "--no-legend", "--state=active", "carma-jobs-*")
    found = machine.systemctl(*words).split()
    return found[0] if found else ""


def test_a_killed_fork_server_is_replaced_and_its_jobs_never_noticed(machine: Machine) -> None:
    before = machine.sh(WAITS)
    machine.await_line(f"/home/ada/carma-{before}.out", "up")
    unit = server_unit(machine)
    machine.systemctl("kill", "--kill-whom=main", "--signal=KILL", unit)
    after = machine.sh(WAITS)
    machine.await_line(f"/home/ada/carma-{after}.out", "up")
    assert server_unit(machine) not in ("", unit)
    machine.run("touch", "/home/ada/go", user="ada")
    for job in (before, after):
        ended = machine.await_end(job)
        assert (ended["exit"]["code"], ended["attempt"]) == (42, 1)
        assert not cgroup_of(machine, job)
    machine.run("rm", "/home/ada/go")


def test_a_shutdown_tells_jobs_and_gives_them_time(machine: Machine) -> None:
    """As a stop of the unit does. They are run again when the server is up."""
    script = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    job = machine.sh(script)
    machine.await_line(f"/home/ada/carma-{job}.out", "up")
    machine.systemctl("stop", server_unit(machine))
    assert "saved" in machine.read(f"/home/ada/carma-{job}.out")
    assert machine.await_end(job)["exit"]["code"] == 0
    assert machine.await_end(machine.sh("exit 5"))["exit"]["code"] == 5, "another one is started"


def test_a_job_has_a_unit_of_its_own_where_an_administrator_limits_these(machine: Machine) -> None:
    folder = "/etc/systemd/system/carma-job-.service.d"
    machine.run("mkdir", "-p", folder)
    machine.run("tee", f"{folder}/limits.conf", stdin="[Service]\nLimitNPROC=4242\n")
    machine.systemctl("daemon-reload")
    try:
        job = machine.sh("ulimit -p; grep ^0:: /proc/self/cgroup")
        machine.await_end(job)
        said = machine.read(f"/home/ada/carma-{job}.out").splitlines()
        assert said == ["4242", f"0::/carma.slice/carma-job-{job}-1.service/job"]
    finally:
        machine.run("rm", "-r", folder)
        machine.systemctl("daemon-reload")


def test_systemctl_reload_takes_good_settings_and_refuses_broken_ones(machine: Machine) -> None:
    def write(toml: str) -> None:
        machine.run("tee", "/etc/carma/carma.toml", stdin=toml)

    def quota() -> object:
        return machine.call("GET", "/v1/config")["settings"]["limits"]["gpus_per_user"]

    start(machine)
    before = main_pid(machine)
    machine.run("mkdir", "/etc/carma")
    write("[limits]\ngpus_per_user = 3\n")
    machine.systemctl("reload", "carmad.service")
    until(lambda: quota() == 3, "the quota to change")
    write("[limits]\ngpus_per_user = -3\n")
    with pytest.raises(AssertionError, match="systemctl"):
        machine.systemctl("reload", "carmad.service")
    assert (quota(), main_pid(machine)) == (3, before)
    machine.run("rm", "-r", "/etc/carma")


@pytest.mark.long
def test_the_doctor_of_root_has_an_ordinary_user_submit_its_job(machine: Machine) -> None:
    """On a server that others use, where root may not submit jobs."""
    start(machine)  # it makes the emulated GPUs
    shared = "/etc/systemd/system/carmad.service.d/zz-shared.conf"
    carmad = Path(sys.executable).with_name("carmad")
    cards = "Environment=CARMA_MONITOR__SOURCE=emulated:/var/lib/carma/emulated"
    drop_in = f"[Service]\n{cards}\nExecStart=\nExecStart={carmad}\n"
    machine.run("tee", shared, stdin=drop_in)
    try:
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", "carmad.service")
        said = machine.run(*CARMA, "doctor", "--json", check=False)
        (job,) = (each for each in json.loads(said)["checks"] if each["name"] == "job")
        assert job["ok"] is True, job
        history = json.loads(machine.run(*CARMA, "history", "--json", "carma-doctor"))["jobs"]
        assert (history[0]["user"], history[0]["state"]) == ("nobody", "succeeded")
    finally:
        machine.run("rm", shared)
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", "carmad.service")


def test_systemd_may_be_upgraded_while_jobs_start(machine: Machine) -> None:
    jobs = []
    for _ in range(2):
        jobs += [machine.sh("exit 7") for _ in range(5)]
        machine.systemctl("daemon-reexec")
    ends = [machine.await_end(job) for job in jobs]
    assert [(end["exit"]["cause"], end["exit"]["code"]) for end in ends] == [("failure", 7)] * 10


def test_nobody_reads_what_is_the_daemons(machine: Machine, tmp_path: Path) -> None:
    start(machine)
    pid = main_pid(machine)
    for path in ("/var/lib/carma/carma.db", "/var/cache/carma/x", f"/proc/{pid}/environ"):
        assert machine.run("sh", "-c", f"cat {path} || echo refused", user="ada") == "refused"
    hidden = machine.sh("exit 0", "bob", export={"API_KEY": "s3cret"})
    machine.await_end(hidden, "bob")
    shown = json.dumps(machine.call("GET", "/v1/status")) + json.dumps(
        machine.call("GET", "/v1/jobs")
    )
    assert "s3cret" not in shown


@pytest.mark.long
def test_mps_daemons_are_outside_and_are_reached_from_inside(tmp_path: Path) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"  # a stand-in for NVIDIA's
    body = (ROOT / "tests/fake_mps" / control.name).read_text().split("\n", 1)[1]
    control.write_text(f"{shebang()}{body}")
    control.chmod(0o755)
    path = f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin"
    with booted(tmp_path, CARMA_COLLOCATION__MPS="true", PATH=path) as machine:
        for _ in range(2):
            machine.systemctl("restart", "carmad.service")  # the second finds the first one's
            job = machine.await_end(machine.sh("ls $CUDA_MPS_PIPE_DIRECTORY"))
            assert job["mode"] == "mps"
            assert not [note for note in job["notes"] if "MPS" in note]
            gpu = job["gpus"][0]["id"]
            assert machine.show(f"carma-mps-{gpu}.service", "ActiveState") == "active"
            assert "control" in machine.read(f"/home/ada/carma-{job['id']}.out")
        assert len((tmp_path / "starts").read_text().splitlines()) == 1


def test_a_job_at_a_terminal_and_who_joins_it_are_in_the_jobs_cgroup(machine: Machine) -> None:
    """The user's own process is moved there; a scope of its own would be a second unit."""
    look = "grep ^0:: /proc/self/cgroup"
    script = f"{look}; {CARMA[0]} attach $CARMA_JOB_ID {look}"
    command = f"cd /; CARMA_SOCKET={SOCKET} {CARMA[0]} run -Q sh -c '{script}'"
    said = machine.run("sh", "-c", command, user="ada").splitlines()
    job = machine.call("GET", "/v1/jobs?select=last")["jobs"][0]
    assert [is_in(line, job["id"]) for line in said] == [True, True], said
    assert (job["state"], job["exit"]["code"]) == ("succeeded", 0)


def test_messages_are_sent_by_units_of_their_own_as_their_users(machine: Machine) -> None:
    """carmad's own sandbox has no network but this machine."""
    start(machine)
    with Target() as target:
        write = "umask 077; mkdir -p ~/.config/carma; cat > ~/.config/carma/notify.conf"
        environment = ["env", "HOME=/home/ada", "sh", "-c", write]
        machine.run(*environment, user="ada", stdin=target.url)
        job = machine.sh("exit 3", "ada", notify="fail")
        until(lambda: target.got, "a message")
        assert f"job {job} " in target.got[0]["title"]
        assert "exit code 3" in target.got[0]["title"]
        target.shutdown()


def test_the_metrics_are_served_from_a_unit_of_their_own_that_ends_with_carmad(
    machine: Machine,
) -> None:
    """Its own, as carmad's sandbox answers nobody but this machine."""
    port = free_port()
    machine.run("mkdir", "-p", "/etc/carma")
    toml = f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
    machine.run("tee", "/etc/carma/carma.toml", stdin=toml)
    machine.systemctl("restart", "carmad.service")
    page = until(lambda: got(f"http://127.0.0.1:{port}/metrics"), f"the metrics: {machine.log()}")
    assert b"\ncarma_up 1.0\n" in page
    unit = f"carma-metrics-{main_pid(machine)}.service"
    assert machine.show(unit, "ActiveState") == "active"
    pid = machine.show(unit, "MainPID")
    assert machine.run("stat", "--format=%U", f"/proc/{pid}") == "nobody"
    machine.run("rm", "-r", "/etc/carma")
    machine.run("kill", "-KILL", main_pid(machine))
    until(lambda: machine.show(unit, "ActiveState") != "active", "the unit to end")
