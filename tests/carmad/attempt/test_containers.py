"""Jobs in containers: what their supervisors are told, and a user's podman on emulated cards."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from carma_testing.builders import a_job, a_spec
from carmad.attempt import containers
from carmad.attempt.environment import ATTEMPT_VARIABLE, HOOKS, MPS_PIPE
from carmad.core.jobs.job import Job
from carmad.errors import CarmaError
from cli.missing import refuse_missing_image
from cli.problems import Usage
from tests.api_server import as_uid
from tests.daemon import NO_KERNELS, OVER, ROOT, Carmad, train
from tests.waiting import until

IMAGE = "localhost/carma-test"
ENV = {
    "HOME": "/home/ada",
    "PATH": "/opt/bin",
    "API": "secret",
    "CUDA_VISIBLE_DEVICES": "GPU-1",
    ATTEMPT_VARIABLE: "/state/jobs/7.1",
}


def contained(gpus: tuple[str, ...] = ("GPU-1",), **change: Any) -> Job:
    fields: dict[str, Any] = {"uid": 1000, "cwd": "/home/ada/x", "container": "torch", **change}
    return a_job(7, spec=a_spec(**fields), gpus=gpus, attempt=1)


def words(
    engine: str = "podman", env: dict[str, str] = ENV, cards: str = "", **change: Any
) -> list[str]:
    command = ("python", "a b")
    return containers.wrap(f"/usr/bin/{engine}", contained(**change), command, env, cards, None)


def mounts(found: list[str]) -> list[str]:
    return [word.partition("=")[2] for word in found if word.startswith(("--volume", "--bind"))]


def test_podman_gets_the_users_rights_folders_and_gpus() -> None:
    found = words(umask=0o077)
    assert found[-3:] == ["torch", "python", "a b"]
    keeps = {"--userns=keep-id", "--group-add=keep-groups", "--umask=0077", "--cgroups=disabled"}
    assert keeps | {"--user=1000:1000", "--no-healthcheck", "--pid=private"} <= set(found)
    assert "--device=nvidia.com/gpu=GPU-1" in found
    assert mounts(found) == ["/home/ada:/home/ada"]
    assert {"--env=API", "--env=CUDA_VISIBLE_DEVICES"} <= set(found)
    assert not any("secret" in word or word == "--env=PATH" for word in found)
    assert not any("privileged" in word for word in found)
    assert not {"--userns=keep-id", "--group-add=keep-groups"} & set(words(uid=0))


@pytest.mark.parametrize("engine", containers.ENGINES)
def test_what_a_job_needs_of_the_host_is_mounted(engine: str) -> None:
    env = ENV | {MPS_PIPE: "/run/pipe", "PYTHONPATH": f"{HOOKS}:/x"}
    found = containers.wrap(engine, contained(cwd="/data"), ("x",), env, script="/var/job7")
    assert mounts(found) == [
        "/home/ada:/home/ada",
        "/data:/data",
        "/run/pipe:/run/pipe",
        f"{HOOKS}:{HOOKS}:ro",
        "/var/job7:/var/job7:ro",
    ]
    assert not mounts(words(engine, env=ENV | {"HOME": "/"}, cwd="/"))
    with pytest.raises(CarmaError, match="cannot be mounted"):
        words(engine, cwd="/a:/etc")


def test_only_the_daemon_says_that_gpus_are_emulated() -> None:
    hostile = ENV | {"CARMA_EMULATED_DIR": "/etc", "*": "", "CONTAINER_HOST": "ssh://elsewhere"}
    found = words(env=hostile)
    assert mounts(found) == ["/home/ada:/home/ada"]
    assert "--device=nvidia.com/gpu=GPU-1" in found
    assert not {"--env=*", "--env=CONTAINER_HOST"} & set(found)
    emulated = words(env=hostile, cards="/cards")
    assert mounts(emulated)[1:] == ["/cards:/cards", "/proc:/carma/proc"]
    assert not any(word.startswith("--device=") for word in emulated)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error: torch: image not known", "ada has no image torch on this server"),
        ("Error: mkdir /run/user/1000: denied", "podman cannot make the container: Error: mkdir"),
    ],
)
def test_why_there_is_no_container(tmp_path: Path, said: str, told: str) -> None:
    podman = tmp_path / "podman"
    podman.write_text(f"#!/bin/sh\necho {said} >&2; exit 1\n")
    podman.chmod(0o755)
    found = containers.wrap(str(podman), contained(gpus=()), ("x",), ENV)
    words = ["sh", "-c", 'exec "$@" 9>&1', "sh", *found]
    ran = subprocess.run(words, env={"USER": "ada"}, capture_output=True, text=True)
    assert ran.stdout.startswith(told)


def test_apptainer() -> None:
    assert words("apptainer")[:3] == ["/usr/bin/apptainer", "exec", "--nv"]
    assert words("apptainer")[-3:] == ["docker://torch", "python", "a b"]
    assert words("apptainer", container="/images/a.sif")[-3] == "/images/a.sif"


def test_an_image_that_is_not_there_is_refused_at_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse_missing_image("torch")  # without podman, nobody knows
    podman = tmp_path / "podman"
    for code, refused in ((0, False), (1, True), (125, False)):
        podman.write_text(f"#!/bin/sh\nexit {code}\n")
        podman.chmod(0o755)
        with pytest.raises(Usage, match="no image torch") if refused else nullcontext():
            refuse_missing_image("torch")
    monkeypatch.setattr("cli.missing.PODMAN_S", 0.2)
    podman.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    refuse_missing_image("torch")  # nor if it hangs, as with a home directory that is away


# with podman, of a user who is not root

USER = "news"  # every Debian has it, with its own group, and it runs nothing

# On a machine with both versions of cgroups, crun refuses to start anything: show it only the new.
_SETUP = """
[ -f /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /dev/mqueue
for ids in subuid subgid; do
  [ -e /etc/$ids ] || touch /etc/$ids
  mount --bind "$1/ids" /etc/$ids
done
mkdir -p /etc/cdi
mount --bind "$1/cdi" /etc/cdi
shift
exec "$@"
"""


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
        anyone = tarfile.TarInfo("tmp")
        anyone.type, anyone.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(anyone)
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
    """A carmad of root's, and a user whose podman keeps its images in the test's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "1xA100-40GB", **NO_KERNELS, CARMA_LIMITS__KILL_GRACE_S="5")
        entry = pwd.getpwnam(USER)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid
        folder.chmod(0o755)
        os.chown(self.work, self.uid, self.gid)
        (folder / "ids").write_text(f"{USER}:300000:65536\n")
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\nrunroot = "{self.work}/run"\n'
            f'graphroot = "{self.work}/graph"\n'
        )
        (folder / "cdi").mkdir()
        specification = folder / "nvidia.yaml"
        (folder / "cdi" / "nvidia.yaml").symlink_to(specification)
        specification.write_text(
            "{cdiVersion: 0.5.0, kind: nvidia.com/gpu, devices: "
            "[{name: GPU-1, containerEdits: {env: [DEVICE_OF=GPU-1]}}]}"
        )
        (folder / "data").mkdir()
        (folder / "data" / "there").write_text("data\n")
        own = self.work / ".config" / "containers"
        own.mkdir(parents=True)
        for each in (own, own.parent):
            os.chown(each, self.uid, self.gid)
        (own / "containers.conf").write_text(
            f'[containers]\nvolumes = ["{folder}/data:/data:ro"]\n'
        )
        self.namespace = ("unshare", "-m", "sh", "-ec", _SETUP, "sh", str(folder))
        self.user_env = {
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.work),
            "XDG_RUNTIME_DIR": str(self.work),
        }

    def as_user(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Where the daemon is, too."""
        ids = ("setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups")
        return subprocess.run(
            [*self.namespace, *ids, *argv],
            env=self.user_env,
            cwd=self.work,
            capture_output=True,
            text=True,
            **options,
        )

    def contained(self, *argv: str, image: str = IMAGE, **fields: Any) -> int:
        fields = {"memory_mib": 1000, "container": image, **fields}
        body = self.submission(*argv, **fields) | {"env": self.user_env}
        status, out = as_uid(self.uid, self.socket, "POST", "/v1/jobs", body)
        assert status < 300, out
        return int(out["id"])

    def sh_contained(self, script: str, **fields: Any) -> int:
        return self.contained("/bin/sh", "-c", script, **fields)

    def train(self, **options: object) -> tuple[str, ...]:
        """The emulated job, of the image's own Python."""
        return ("env", "PYTHONPATH=/carma", "/usr/bin/python3", *train(**options)[1:])

    def there(self) -> tuple[list[int], str]:
        """The processes, containers and volumes of its jobs."""
        both = "podman ps --all --quiet && podman volume ls --quiet"
        processes, listed = self.processes(), self.as_user("sh", "-c", both)
        return processes, listed.stdout if listed.returncode == 0 else listed.stderr

    def left(self) -> tuple[list[int], str]:
        """As `there`; then all is removed, so that the next job finds no namespace of podman's."""
        found = self.there()
        self.as_user("podman", "system", "migrate")
        return found


@pytest.fixture(scope="module")
def daemon() -> Iterator[Contained]:
    tools = ("podman", "crun", "newuidmap", "setpriv", "unshare", "ldd")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    files = ("/bin/busybox", "/usr/libexec/podman/catatonit")
    missing += [file for file in files if not Path(file).exists()]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing or tools)}")
    with tempfile.TemporaryDirectory(prefix="carma-containers-") as folder:  # the user gets there
        made = Contained(Path(folder))
        an_image(made.folder / "image.tar")
        try:
            # As those of services have them, and those of notebooks a user of their own.
            changes = ("--change=USER 1000", "--change=VOLUME /volume")
            image = str(made.folder / "image.tar")
            ran = made.as_user("podman", "import", "--quiet", *changes, image, IMAGE)
            if ran.returncode:
                pytest.skip(f"users cannot run podman here: {ran.stderr}")
            assert made.left() == ([], "")
            made.start_cold(*made.namespace)
            yield made
        finally:
            made.clear_away()
            made.as_user("podman", "system", "migrate")


def on_cards(daemon: Contained) -> list[tuple[int, int]]:
    """Memory and host pid of each process on the cards."""
    tenants = [one for card in daemon.cards() for one in card.read().tenants]
    return sorted((one.memory_mib, one.pid) for one in tenants)


def test_a_podman_job_beside_a_native_one(daemon: Contained) -> None:
    native = daemon.submit(*train(memory_mib=2000, seconds=60), memory_mib=2000)
    inside = daemon.contained(*daemon.train(memory_mib=3000, seconds=60), memory_mib=3000)

    def grown() -> bool:
        assert daemon.job(inside)["state"] not in OVER, daemon.output(inside)
        return [mib for mib, _ in on_cards(daemon)] == [2000, 3000]

    until(grown, "both jobs to be on the card")
    of_container = on_cards(daemon)[1][1]
    assert of_container in daemon.processes()
    status = Path(f"/proc/{of_container}/status").read_text()
    assert f"Uid:\t{daemon.uid}\t{daemon.uid}\t{daemon.uid}" in status
    assert "CapEff:\t0000000000000000" in status

    def peaks() -> list[int]:
        return [daemon.job(each)["memory"]["peak_mib"] or 0 for each in (native, inside)]

    until(lambda: peaks() == [2000, 3000], "each job's memory to be seen")
    daemon.cancel(native)
    daemon.cancel(inside)
    assert {daemon.ended(native)["state"], daemon.ended(inside)["state"]} == {"cancelled"}
    assert daemon.left() == ([], "")


def test_a_container_has_the_jobs_directory_environment_output_and_exit_code(
    daemon: Contained,
) -> None:
    (daemon.work / "here").write_text("mine")
    script = (
        "cat here; id -un; cat /data/there; touch /data/x || umask; env; echo made > made; exit 125"
    )
    id = daemon.sh_contained(script, umask="027")
    ended = daemon.ended(id)
    assert (ended["state"], ended["exit"]["code"]) == ("failed", 125), daemon.output(id)
    lines = daemon.output(id).splitlines()
    assert lines[:2] == [f"mine{USER}", "data"] and lines[3] == "0027"
    assert not any("podman" in line for line in lines if "=" not in line)
    assert {f"CARMA_JOB_ID={id}", f"HOME={daemon.work}", f"PWD={daemon.work}"} <= set(lines)
    made = (daemon.work / "made").stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (daemon.uid, daemon.gid, 0o640)


def test_a_stopped_program_gets_one_sigterm_and_then_sigkill(daemon: Contained) -> None:
    script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done"
    id = daemon.sh_contained(script)
    daemon.await_output(id, "up")
    daemon.cancel(id)
    assert daemon.ended(id)["state"] == "cancelled"
    assert daemon.output(id).count("asked") == 1
    assert daemon.left() == ([], "")


def test_a_stopped_program_may_save_its_work(daemon: Contained) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    id = daemon.sh_contained(script)
    daemon.await_output(id, "up")
    daemon.cancel(id)
    assert daemon.ended(id)["state"] == "cancelled"
    assert "saved" in daemon.output(id)
    assert daemon.left() == ([], "")


def test_an_image_that_is_not_there_is_the_reason(daemon: Contained) -> None:
    id = daemon.contained("true", image="localhost/none")
    assert daemon.ended(id)["state"] == "failed"
    assert f"{USER} has no image localhost/none on this server" in str(daemon.why(id))


def test_out_of_memory_is_tried_again_in_a_fresh_container(daemon: Contained) -> None:
    native = daemon.submit(*train(memory_mib=30_000, seconds=60), memory_mib=30_000)
    until(lambda: [mib for mib, _ in on_cards(daemon)] == [30_000], "the native job's memory")
    train_ = shlex.join(daemon.train(memory_mib=20_000, seconds=0.1))
    again = "[ -e /tmp/made ] && echo again; touch /tmp/made; "
    id = daemon.sh_contained(again + train_)
    until(lambda: "out of memory" in daemon.output(id), "it to crash")
    until(lambda: daemon.job(id)["state"] in ("queued", *OVER), "its end to be noticed")
    daemon.cancel(native)
    ended = daemon.ended(id)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2), daemon.output(id)
    assert "again" not in daemon.output(id)


def test_a_job_cancelled_at_any_moment_leaves_nothing(daemon: Contained) -> None:
    for begun in ("create", "start", "conmon"):
        id = daemon.sh_contained("sleep 1000")
        supervisor = psutil.Process(daemon.supervisor(id))

        def there(what: str, parent: psutil.Process) -> bool:
            return any(what in _words(each) for each in parent.children(recursive=True))

        until(lambda: there(begun, supervisor), f"podman's {begun}")  # noqa: B023
        daemon.cancel(id)
        assert daemon.ended(id)["state"] == "cancelled"
        assert daemon.left() == ([], "")


def _words(process: psutil.Process) -> list[str]:
    try:
        return [process.name(), *process.cmdline()]
    except psutil.Error:
        return []


def test_no_container_survives_its_supervisor(daemon: Contained) -> None:
    id = daemon.sh_contained("echo up; sleep 1000", requeue=False)
    daemon.await_output(id, "up")
    os.kill(daemon.supervisor(id), signal.SIGKILL)
    daemon.ended(id)
    until(lambda: daemon.there() == ([], ""), "the container to be gone")


def test_a_container_outlives_the_daemon(daemon: Contained) -> None:
    id = daemon.sh_contained("echo up; until [ -e go ]; do sleep 0.1; done; exit 3")
    daemon.await_output(id, "up")
    daemon.kill()
    (daemon.work / "go").touch()
    daemon.start_cold(*daemon.namespace)
    assert daemon.ended(id)["exit"]["code"] == 3
    assert daemon.left() == ([], "")


def test_nobody_joins_a_container_from_outside(daemon: Contained) -> None:
    id = daemon.sh_contained("echo up; sleep 1000")
    daemon.await_output(id, "up")
    status, out = as_uid(daemon.uid, daemon.socket, "POST", f"/v1/jobs/{id}/join")
    assert status == 409 and "runs in a container" in out["error"]
    daemon.cancel(id)
    daemon.ended(id)


def test_a_container_has_the_devices_of_its_gpus(daemon: Contained) -> None:
    assert "DEVICE_OF=GPU-1\n" in run(daemon, "GPU-1")
    assert "cannot use GPU-2: no CDI specification" in run(daemon, "GPU-1", "GPU-2")


def test_no_systemd_is_asked_to_take_a_container_out_of_the_job(daemon: Contained) -> None:
    """Podman asks for its pause process anywhere, and for itself where PID 1 is systemd."""
    path, calls = daemon.work / "bus", []
    assert daemon.left() == ([], "")  # so that podman has to make a pause process

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            while True:
                calls.append(bus.accept()[1])

    with socket.create_server(str(path), family=socket.AF_UNIX) as bus:
        path.chmod(0o777)
        threading.Thread(target=hang_up).start()
        try:
            assert "container=podman" in run(daemon)
        finally:
            bus.shutdown(socket.SHUT_RDWR)
            path.unlink()
    assert not calls


def test_a_user_without_a_range_of_ids_is_told(daemon: Contained) -> None:
    ids = daemon.folder / "ids"
    kept = ids.read_text()
    assert daemon.left() == ([], "")  # so that podman has to make a namespace
    ids.write_text("")
    try:
        assert f"podman has no user ids for containers of {USER}" in run(daemon)
    finally:
        ids.write_text(kept)
        daemon.left()


def run(daemon: Contained, *gpus: str) -> str:
    """What a container on real GPUs prints, or why there is none."""
    env = daemon.user_env | {"USER": USER, ATTEMPT_VARIABLE: "/state/jobs/7.1"}
    of_gpus = contained(container=IMAGE, cwd="/tmp", gpus=gpus, uid=daemon.uid)
    found = containers.wrap(shutil.which("podman") or "", of_gpus, ("env",), env)
    return daemon.as_user("env", f"USER={USER}", "sh", "-c", 'exec "$@" 9>&1', "sh", *found).stdout
