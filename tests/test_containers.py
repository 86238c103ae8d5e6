"""Jobs in containers: the command lines of the engines, and real podman on emulated cards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carmad.attempt import containers
from tests.daemon import NO_KERNELS, OVER, ROOT, Carmad, train
from tests.waiting import until

IMAGE = "localhost/carma-test"
ENV = {"HOME": "/home/ada", "PATH": "/opt/bin", "API": "secret", "CUDA_VISIBLE_DEVICES": "GPU-1"}
USUAL: dict[str, Any] = {"cwd": "/home/ada/x", "uid": 1000, "gpus": ("GPU-1",), "mps": False}


def argv(engine: str, image: str = "torch", env: dict[str, str] = ENV, **change: Any) -> list[str]:
    return list(containers.argv(engine, image, ("python", "a b"), env, **USUAL | change))


def test_podman_gets_the_users_rights_folders_and_gpus() -> None:
    words = argv("podman")
    assert words[-3:] == ["torch", "python", "a b"]
    assert {"--userns=keep-id", "--cgroups=disabled", "--ipc=host", "--rm"} <= set(words)
    assert "--device=nvidia.com/gpu=GPU-1" in words
    assert [word for word in words if "volume" in word] == ["--volume=/home/ada:/home/ada"]
    assert {"--env=API", "--env=CUDA_VISIBLE_DEVICES"} <= set(words)
    assert not any("secret" in word or word == "--env=PATH" for word in words)
    assert not any("privileged" in word for word in words)


def test_root_has_no_user_namespace_of_its_own() -> None:
    assert "--userns=keep-id" not in argv("podman", uid=0)


@pytest.mark.parametrize(("engine", "flag"), (("podman", "--volume"), ("apptainer", "--bind")))
def test_what_a_job_needs_of_the_host_is_mounted(engine: str, flag: str) -> None:
    env = ENV | {containers.PIPE: "/run/pipe"}
    words = argv(engine, env=env, cwd="/data", mps=True, script="/var/job7")
    mounted = [
        "/home/ada:/home/ada",
        "/data:/data",
        "/run/pipe:/run/pipe",
        "/var/job7:/var/job7:ro",
    ]
    assert [word for word in words if word.startswith(flag)] == [f"{flag}={m}" for m in mounted]
    assert not any(w.startswith(flag) for w in argv(engine, env=ENV | {"HOME": "/"}, cwd="/"))


def test_apptainer() -> None:
    assert argv("apptainer", gpus=())[:2] == ["apptainer", "exec"]
    assert argv("apptainer")[-3:] == ["docker://torch", "python", "a b"]
    assert argv("apptainer", "/images/a.sif")[-3] == "/images/a.sif"
    assert ("--nv" in argv("apptainer"), "--nv" in argv("apptainer", gpus=())) == (True, False)


# with podman

# On a machine with both versions of cgroups, crun refuses to start anything: show it only the new.
_SETUP = """
[ -f /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /dev/mqueue
exec "$@"
"""
NAMESPACE = ("unshare", "-m", "sh", "-c", _SETUP, "sh")


def an_image(path: Path) -> None:
    """A shell, Python and the emulated job."""
    python = Path("/usr/bin/python3").resolve()
    stdlib = Path("/usr/lib") / python.name
    loaded = subprocess.run(["ldd", python], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in loaded.split() if word.startswith("/")]

    def ours(name: str) -> bool:
        return name.endswith((".py", ".so")) and "test" not in name

    with tarfile.open(path, "w") as tar:
        tar.add("/bin/busybox", "bin/busybox")
        for name in ("sh", "id", "sleep", "cat", "env", "touch", "true"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        tar.add(python, "usr/bin/python3")
        for library in libraries:
            tar.add(Path(library).resolve(), library)
        for folder in ("", "encodings", "collections", "re", "importlib", "lib-dynload"):
            for file in (stdlib / folder).iterdir():
                if file.is_file() and ours(file.name):
                    tar.add(file.resolve(), str(file))
        for file in ("__init__.py", "gpu/__init__.py", "gpu/card.py", "gpu/emulated_job.py"):
            tar.add(ROOT / "carmad" / file, f"carma/carmad/{file}")


class Contained(Carmad):
    """A carmad whose user's podman keeps its images in the test's folder."""

    def podman_env(self) -> dict[str, str]:
        return {
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.work),
        }

    def contained(self, *argv: str, image: str = IMAGE, **fields: Any) -> int:
        fields = {"memory_mib": 1000, "container": image, **fields}
        return self.submit(*argv, export=self.podman_env(), **fields)

    def train(self, **options: object) -> tuple[str, ...]:
        """The emulated job, of the image's own Python."""
        return ("env", "PYTHONPATH=/carma", "/usr/bin/python3", *train(**options)[1:])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contained]:
    tools = ("podman", "crun", "unshare", "ldd")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    files = ("/bin/busybox", "/usr/libexec/podman/catatonit")
    missing += [file for file in files if not Path(file).exists()]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing or tools)}")
    folder = tmp_path_factory.mktemp("containers")
    made = Contained(folder, "2xA100-40GB", **NO_KERNELS)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    an_image(folder / "image.tar")
    env = os.environ | made.podman_env()
    subprocess.run(["podman", "import", "-q", folder / "image.tar", IMAGE], env=env, check=True)
    try:
        made.start_cold(*NAMESPACE)
        yield made
    finally:
        made.clear_away()


def test_a_podman_job_beside_a_native_one(daemon: Contained) -> None:
    native = daemon.submit(*train(memory_mib=2000, seconds=60), memory_mib=2000)
    inside = daemon.contained(*daemon.train(memory_mib=3000, seconds=60), memory_mib=3000)

    def on_cards() -> list[tuple[int, int]]:
        """Memory and host pid of each process on the cards."""
        tenants = [one for card in daemon.cards() for one in card.read().tenants]
        return sorted((one.memory_mib, one.pid) for one in tenants)

    def grown() -> bool:
        assert daemon.job(inside)["state"] not in OVER, daemon.output(inside)
        return [mib for mib, _ in on_cards()] == [2000, 3000]

    until(grown, "both jobs to be on the cards")
    of_container = on_cards()[1][1]
    assert of_container in daemon.processes()
    # The daemon has attributed the container's memory to the job.
    until(
        lambda: (daemon.job(inside)["memory"]["peak_mib"] or 0) >= 3000, "the job's peak to be seen"
    )
    daemon.cancel(native)
    daemon.cancel(inside)
    assert {daemon.ended(native)["state"], daemon.ended(inside)["state"]} == {"cancelled"}
    until(lambda: not daemon.processes(), "all processes to be gone")


def test_a_container_has_the_jobs_directory_environment_output_and_exit_code(
    daemon: Contained,
) -> None:
    (daemon.work / "here").write_text("mine")
    job = daemon.contained("/bin/sh", "-c", "cat here; id; echo $CARMA_JOB_ID=; exit 7")
    ended = daemon.ended(job)
    assert (ended["state"], ended["exit"]["code"]) == ("failed", 7), daemon.output(job)
    out = daemon.output(job)
    assert "mine" in out and "uid=0" in out and f"{job}=" in out


def test_a_job_that_ignores_sigterm_is_killed_with_its_container(daemon: Contained) -> None:
    job = daemon.contained("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    daemon.await_output(job, "up")
    daemon.cancel(job)
    assert daemon.ended(job)["state"] == "cancelled"
    assert not daemon.processes()


def test_an_image_that_cannot_be_pulled_is_the_reason(daemon: Contained) -> None:
    job = daemon.contained("true", image="localhost:1/none")
    ended = daemon.ended(job)
    assert ended["state"] == "failed"
    assert "cannot pull the image localhost:1/none" in str(daemon.why(job))


def test_out_of_memory_restarts_in_a_fresh_container(daemon: Contained) -> None:
    script = "[ -e /made ] && echo again; touch /made; "
    words = " ".join(daemon.train(memory_mib=45_000, seconds=1))
    job = daemon.contained("/bin/sh", "-c", script + words)
    until(lambda: daemon.job(job)["attempt"] > 1 or daemon.job(job)["state"] == "failed", "an end")
    assert "CUDA out of memory" in daemon.output(job)
    daemon.call("POST", "/v1/cancel", {"select": str(job)})
    daemon.ended(job)
    assert "again" not in daemon.output(job)


def test_no_container_survives_its_supervisor(daemon: Contained) -> None:
    job = daemon.contained("/bin/sh", "-c", "echo up; sleep 1000", requeue=False)
    daemon.await_output(job, "up")
    os.kill(daemon.supervisor(job), signal.SIGKILL)
    daemon.ended(job)
    until(lambda: not daemon.processes(), "the container to be gone")


def test_a_container_outlives_the_daemon(daemon: Contained) -> None:
    job = daemon.contained("/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.1; done; exit 3")
    daemon.await_output(job, "up")
    daemon.kill()
    (daemon.work / "go").touch()
    daemon.start_cold(*NAMESPACE)
    assert daemon.ended(job)["exit"]["code"] == 3


def test_nobody_joins_a_container_from_outside(daemon: Contained) -> None:
    job = daemon.contained("/bin/sh", "-c", "echo up; sleep 1000")
    daemon.await_output(job, "up")
    assert "in a container" in daemon.carma("exec", str(job), "true", rc=None)
    daemon.cancel(job)
    daemon.ended(job)
