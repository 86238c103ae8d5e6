"""MPS daemons, with a fake of NVIDIA's control program (fake_mps)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu import mps as mps_daemon
from carmad.gpu.mps import Mps, MpsDaemon, ServerState
from tests.here import shebang
from tests.waiting import until

FAKE = (Path(__file__).parents[2] / "fake_mps") / "nvidia-cuda-mps-control"
GPU = GpuId("GPU-5d5e1b0a-7f31-4e11-9a3e-0123456789ab")
OTHER = GpuId("MIG-7a5e1b0a-7f31-4e11-9a3e-0123456789ab")

SYSTEMD_RUN = """\
import os, subprocess, sys
words = sys.argv[1:]
first = next(n for n, word in enumerate(words) if not word.startswith("--"))
options, command = words[:first], words[first:]
with open(os.path.dirname(__file__) + "/options", "a") as file:
    print(*options, sep="\\n", file=file)
env = dict(word.removeprefix("--setenv=").split("=", 1) for word in options if "--setenv" in word)
subprocess.Popen(command, env=env, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
"""


class Bench:
    """A short directory (sockets!) with a copy of the fake, and helpers for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.control = root / "nvidia-cuda-mps-control"
        body = FAKE.read_text().split("\n", 1)[1]
        self.control.write_text(f"{shebang()}{body}")
        self.control.chmod(0o755)

    def mps(
        self,
        *,
        multiuser: bool = False,
        systemd: bool = False,
        node: tuple[GpuId, ...] | None = None,
    ) -> Mps:
        """As created by a carmad that has just started."""
        return Mps(
            self.root / "mps",
            multiuser=multiuser,
            systemd=systemd,
            control=str(self.control),
            node=None if node is None else lambda: node,
        )

    @property
    def starts(self) -> list[dict[str, Any]]:
        file = self.root / "starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def pid(self) -> int:
        return int(self.starts[-1]["pid"])

    def serve(self, of: str = GPU, **servers: tuple[str, list[int]]) -> None:
        """What the daemon `of` has: s100=("ACTIVE", [11])."""
        state = {
            name.removeprefix("s"): {"status": status, "clients": clients}
            for name, (status, clients) in servers.items()
        }
        (self.root / "mps" / of / "log" / "fake.json").write_text(json.dumps(state))


@pytest.fixture
def bench() -> Iterator[Bench]:
    root = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    bench = Bench(root)
    yield bench
    for start in bench.starts:
        try:
            os.kill(start["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue
    shutil.rmtree(root)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mps_daemon, "ANSWER_WITHIN_S", 0.2)
        patch.setattr(mps_daemon, "START_WITHIN_S", 0.2)
        yield


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_each_gpu_has_a_daemon_of_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    mps = bench.mps()
    assert not mps.daemon(GPU).healthy()
    mps.start(GPU)
    assert mps.daemon(GPU).healthy()
    assert not mps.daemon(OTHER).healthy()
    mps.start(OTHER)
    one, two = bench.starts
    env = dict(one["env"])
    assert env.pop("CUDA_VISIBLE_DEVICES") == GPU
    assert env.pop("CUDA_MPS_PIPE_DIRECTORY") == str(mps.daemon(GPU).pipe)
    assert env.pop("CUDA_MPS_LOG_DIRECTORY") == str(mps.daemon(GPU).log)
    assert env.keys() <= {"PATH", "LD_LIBRARY_PATH", "LC_CTYPE", "PWD"}, "nothing of carmad's"
    assert one["flags"] == ["-f"]
    assert two["env"]["CUDA_VISIBLE_DEVICES"] == OTHER
    assert mps.daemon(OTHER).pipe != mps.daemon(GPU).pipe


def test_one_daemon_serves_the_whole_node(bench: Bench) -> None:
    mps = bench.mps(node=(GPU, OTHER))
    mps.start(OTHER)
    mps.start(GPU, OTHER)
    assert [start["env"]["CUDA_VISIBLE_DEVICES"] for start in bench.starts] == [f"{GPU},{OTHER}"]
    assert mps.daemon(GPU).pipe == mps.daemon(OTHER).pipe == bench.root / "mps/node/pipe"
    bench.serve("node", s100=("FAULT", [11]))
    assert mps.daemon(GPU).clients() == mps.daemon(OTHER).clients() == {11}
    assert mps.daemon(OTHER).state() is ServerState.FAULT
    assert mps.daemon(OTHER).terminate(11)
    assert mps.stop(GPU)
    assert not mps.daemon(OTHER).healthy()


def test_a_gpu_that_came_later_is_served_once_nobody_needs_the_old_daemon(bench: Bench) -> None:
    """MIG was switched off, for example."""
    bench.mps(node=(GPU,)).start(GPU)
    bench.serve("node", s100=("ACTIVE", [11]))
    mps = bench.mps(node=(GPU, OTHER))
    mps.start(GPU)
    with pytest.raises(CarmaError, match=f"without {OTHER}, and is in use"):
        mps.start(GPU, OTHER)
    bench.serve("node")
    mps.start(GPU, OTHER)
    served = [start["env"]["CUDA_VISIBLE_DEVICES"] for start in bench.starts]
    assert served == [GPU, f"{GPU},{OTHER}"]


def test_a_daemon_for_the_node_waits_until_its_gpus_are_known(bench: Bench) -> None:
    """After a restart, an owed launch may come before the first reading. With a daemon for its GPU
    alone, jobs on all others would run without MPS for as long as it has a client."""
    with pytest.raises(CarmaError, match="not known yet"):
        bench.mps(node=()).start(GPU)
    assert not bench.starts
    bench.mps(node=(GPU, OTHER)).start(GPU)
    bench.mps(node=()).start(GPU)
    assert len(bench.starts) == 1, "one that runs will do"


@pytest.mark.parametrize("before", ["gpu", "node"])
def test_a_changed_scope_waits_for_the_last_client(bench: Bench, before: str) -> None:
    """Until then, it is the old daemon that knows the clients."""
    node = (GPU, OTHER)
    old, new = (bench.mps(node=its) for its in ((node, None) if before == "node" else (None, node)))
    home = "node" if before == "node" else GPU
    old.start(GPU)
    bench.serve(home, s100=("ACTIVE", [11]))
    with pytest.raises(CarmaError, match="mps_scope, and is in use"):
        new.start(GPU)
    assert new.daemon(GPU).healthy() and new.daemon(GPU).clients() == {11}
    assert new.daemon(GPU).log == old.daemon(GPU).log
    bench.serve(home)
    new.start(GPU)
    assert not (bench.root / "mps" / home / "pipe").exists()
    served = [start["env"]["CUDA_VISIBLE_DEVICES"] for start in bench.starts]
    assert sorted(served) == [GPU, f"{GPU},{OTHER}"]


def test_a_daemon_of_the_other_scope_that_has_died_is_in_nobody_s_way(bench: Bench) -> None:
    old, new = bench.mps(), bench.mps(node=(GPU, OTHER))
    old.start(GPU)
    os.kill(bench.pid, signal.SIGKILL)
    until(lambda: not old.daemon(GPU).healthy())
    new.start(GPU)
    assert new.daemon(GPU).healthy()
    bench.serve("node", s100=("ACTIVE", [11]))
    with pytest.raises(CarmaError, match="in use"):
        old.start(GPU)
    assert old.daemon(GPU).healthy() and old.daemon(GPU).clients() == {11}, (
        "no pipe of the dead one misleads"
    )


def test_every_user_reaches_the_pipe_and_none_can_take_it_away(bench: Bench) -> None:
    mps = bench.mps()
    before = os.umask(0o077)
    try:
        mps.start(GPU)
    finally:
        os.umask(before)
    assert mode(mps.daemon(GPU).pipe) == 0o1777
    for directory in (
        mps.daemon(GPU).log,
        mps.daemon(GPU).pipe.parent,
        mps.daemon(GPU).pipe.parent.parent,
    ):
        assert mode(directory) == 0o755


def test_a_daemon_that_is_stopped_leaves_nothing_behind(bench: Bench) -> None:
    mps = bench.mps()
    assert mps.stop(GPU), "there was none"
    mps.start(GPU)
    assert mps.stop(GPU)
    assert not mps.daemon(GPU).healthy()
    until(lambda: not Path(f"/proc/{bench.pid}").exists())
    mps.start(GPU)
    assert mps.daemon(GPU).healthy()


def test_a_daemon_whose_clients_stay_is_not_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps = bench.mps()
    mps.start(GPU)
    bench.serve(s100=("ACTIVE", [11]))
    monkeypatch.setattr(mps_daemon, "START_WITHIN_S", 0.1)
    assert not mps.stop(GPU)
    assert mps.daemon(GPU).healthy()


def test_starting_twice_starts_once(bench: Bench) -> None:
    mps = bench.mps()
    mps.start(GPU)
    mps.start(GPU)
    assert len(bench.starts) == 1


def test_it_outlives_carmad_and_is_adopted(bench: Bench) -> None:
    program = (
        "import sys; from pathlib import Path; from carmad.gpu.mps import Mps\n"
        f"mps = Mps(Path({str(bench.root / 'mps')!r}), multiuser=False, systemd=False,"
        f" control={str(bench.control)!r})\n"
        f"mps.start({GPU!r}); print('up', flush=True); sys.stdin.read()\n"
    )
    carmad = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with carmad:
        assert carmad.stdout is not None
        assert carmad.stdout.readline() == b"up\n"
        os.killpg(carmad.pid, signal.SIGKILL)
    mps = bench.mps()
    assert mps.daemon(GPU).healthy()
    mps.start(GPU)
    assert len(bench.starts) == 1


def test_a_dead_daemon_is_found_out_and_replaced(bench: Bench) -> None:
    mps = bench.mps()
    mps.start(GPU)
    os.kill(bench.pid, signal.SIGKILL)
    until(lambda: not mps.daemon(GPU).healthy())
    assert (mps.daemon(GPU).pipe / "control").exists(), "what it leaves behind is no sign of life"
    mps.start(GPU)
    assert mps.daemon(GPU).healthy()
    assert len(bench.starts) == 2


def test_an_impostor_is_not_believed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may write to the pipe directory could bind a socket in place of the daemon's."""
    mps = bench.mps()
    mps.start(GPU)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert not mps.daemon(GPU).healthy()


def test_a_silent_daemon_is_left_to_its_jobs(bench: Bench) -> None:
    mps = bench.mps()
    mps.start(GPU)
    os.kill(bench.pid, signal.SIGSTOP)
    with impatient():
        assert not mps.daemon(GPU).healthy()
        assert mps.daemon(GPU).clients() == frozenset()
        assert mps.daemon(GPU).state() is None
        assert not mps.daemon(GPU).terminate(11)
        with pytest.raises(CarmaError, match="has not answered") as raised:
            mps.start(GPU)
    assert str(mps.daemon(GPU).pipe) in raised.value.hint
    os.kill(bench.pid, signal.SIGCONT)
    mps.start(GPU)
    assert len(bench.starts) == 1


def test_a_daemon_that_refuses_is_not_taken_for_a_dead_one(bench: Bench) -> None:
    """After a driver upgrade, for example, the jobs under it are better left alone."""
    mps = bench.mps()
    mps.start(GPU)
    (bench.root / "mismatch").touch()
    assert not mps.daemon(GPU).healthy()
    with pytest.raises(CarmaError, match="another version"):
        mps.start(GPU)
    assert len(bench.starts) == 1


def test_clients_of_all_servers(bench: Bench) -> None:
    mps = bench.mps()
    assert mps.daemon(GPU).clients() == frozenset(), "without a daemon there are none"
    mps.start(GPU)
    assert mps.daemon(GPU).clients() == frozenset()
    bench.serve(s100=("ACTIVE", [11, 12]), s200=("INITIALIZING", [13]), s300=("ACTIVE", []))
    assert mps.daemon(GPU).clients() == {11, 12, 13}


def test_terminate_cuts_off_one_client(bench: Bench) -> None:
    mps = bench.mps()
    mps.start(GPU)
    bench.serve(s100=("ACTIVE", [11, 12]), s200=("ACTIVE", [13]))
    assert mps.daemon(GPU).terminate(13)
    assert mps.daemon(GPU).clients() == {11, 12}
    assert not mps.daemon(GPU).terminate(13), "it is gone already"


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ([], None),
        (["ACTIVE"], ServerState.ACTIVE),
        (["INITIALIZING", "ACTIVE"], ServerState.INITIALIZING),
        (["ACTIVE", "FAULT"], ServerState.FAULT),
        (["Status: FAULT."], ServerState.FAULT),
        (["DEFAULT"], None),
    ],
)
def test_server_state(bench: Bench, states: list[str], worst: ServerState | None) -> None:
    mps = bench.mps()
    mps.start(GPU)
    bench.serve(**{f"s{n}": (state, []) for n, state in enumerate(states)})
    assert mps.daemon(GPU).state() is worst


def test_no_job_is_sent_to_a_faulted_server(bench: Bench) -> None:
    mps = bench.mps()
    mps.start(GPU)
    bench.serve(s100=("FAULT", [11]))
    with pytest.raises(CarmaError, match="fault") as raised:
        mps.start(GPU)
    assert "server.log" in raised.value.hint
    assert mps.daemon(GPU).healthy()
    bench.serve(s100=("ACTIVE", []))
    mps.start(GPU)
    assert len(bench.starts) == 1


def test_a_changed_multiuser_waits_for_the_last_client(bench: Bench) -> None:
    bench.mps().start(GPU)
    bench.serve(s100=("ACTIVE", [11]))
    with pytest.raises(CarmaError, match="mps_multiuser"):
        bench.mps(multiuser=True).start(GPU)
    assert len(bench.starts) == 1
    bench.serve()
    old = bench.pid
    bench.mps(multiuser=True).start(GPU)
    assert not Path(f"/proc/{old}").exists()
    assert [start["flags"] for start in bench.starts] == [["-f"], ["-f", "-multiuser-server"]]


def test_a_missing_program_is_named(bench: Bench) -> None:
    mps = Mps(bench.root / "mps", multiuser=False, systemd=False, control="no-such-mps-control")
    with pytest.raises(CarmaError, match="no-such-mps-control is not on PATH") as raised:
        mps.start(GPU)
    assert "mps = false" in raised.value.hint
    assert not mps.daemon(GPU).healthy()
    assert mps.daemon(GPU).clients() == frozenset()


def test_a_daemon_that_ends_at_once(bench: Bench) -> None:
    (bench.root / "broken").touch()
    mps = bench.mps()
    with pytest.raises(CarmaError, match="ended at once") as raised:
        mps.start(GPU)
    assert str(mps.daemon(GPU).log) in raised.value.hint
    assert "unrecognized option" in (mps.daemon(GPU).log / "console.log").read_text()
    (bench.root / "broken").unlink()
    mps.start(GPU)
    assert mps.daemon(GPU).healthy()


def test_a_daemon_that_never_answers_is_not_left_behind(bench: Bench) -> None:
    bench.control.write_text("#!/bin/sh\nexec sleep 60\n")
    mps = bench.mps()
    before = children()
    with impatient(), pytest.raises(CarmaError, match="is silent"):
        mps.start(GPU)
    assert children() <= before  # other tests' may have ended meanwhile


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_path_too_long_for_a_socket(bench: Bench) -> None:
    mps = Mps(bench.root / ("x" * 60), multiuser=False, systemd=False, control=str(bench.control))
    with pytest.raises(CarmaError, match="too long"):
        mps.start(GPU)
    assert bench.starts == []


def test_old_names_of_mig_instances_are_no_directories(bench: Bench) -> None:
    mps = bench.mps()
    old = GpuId("MIG-GPU-5d5e1b0a-7f31-4e11-9a3e-0123456789ab/1/0")
    mps.start(old)
    assert mps.daemon(old).healthy()
    assert mps.daemon(old).pipe.parent.parent == bench.root / "mps"
    assert bench.starts[0]["env"]["CUDA_VISIBLE_DEVICES"] == old


@pytest.fixture
def systemd(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on PATH with a systemd-run that runs things, and a systemctl that does not."""
    programs = bench.root / "bin"
    programs.mkdir()
    (programs / "systemd-run").write_text(f"{shebang()}{SYSTEMD_RUN}")
    (programs / "systemctl").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


def test_under_systemd_it_is_a_unit(bench: Bench, systemd: Path) -> None:
    bench.mps(systemd=True, multiuser=True).start(GPU)
    bench.mps(systemd=True, multiuser=True).start(GPU)
    assert len(bench.starts) == 1
    options = (systemd / "options").read_text().splitlines()
    assert f"--unit=carma-mps-{GPU}" in options
    assert "--property=LimitNOFILE=65536" in options
    assert ("--user" in options) == (os.geteuid() != 0)
    assert bench.starts[0]["flags"] == ["-f", "-multiuser-server"]
    assert bench.starts[0]["env"]["CUDA_VISIBLE_DEVICES"] == GPU
    bench.mps(systemd=True).start(GPU)
    assert [start["flags"] for start in bench.starts[1:]] == [["-f"]]


def test_systemd_that_refuses(bench: Bench, systemd: Path) -> None:
    (systemd / "systemd-run").write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    with pytest.raises(CarmaError, match="no bus"):
        bench.mps(systemd=True).start(GPU)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_name_like_its_sockets_does_not_make_a_dead_daemon_look_alive(
    bench: Bench, kind: socket.SocketKind
) -> None:
    """Anybody may give an abstract socket any name, or use the path in a namespace of their own."""
    mps = bench.mps()
    mps.start(GPU)
    os.kill(bench.pid, signal.SIGKILL)
    os.waitpid(bench.pid, 0)
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(f"\0carma {mps.daemon(GPU).pipe}/control")
        other.listen()
        assert f" {mps.daemon(GPU).pipe}/control\n" in Path("/proc/net/unix").read_text()
        bench.mps().start(GPU)
        assert len(bench.starts) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_socket_in_its_place_that_somebody_else_listens_at_is_not_the_daemon(
    bench: Bench,
) -> None:
    mps = bench.mps()
    mps.start(GPU)
    os.kill(bench.pid, signal.SIGKILL)
    os.waitpid(bench.pid, 0)
    path = mps.daemon(GPU).pipe / "control"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        os.seteuid(65534)  # who listens is what counts, not whose the file is
        try:
            other.listen()
        finally:
            os.seteuid(0)
        assert path.stat().st_uid == 0
        (bench.root / "mismatch").touch()  # the control program fails, whoever listens
        its = MpsDaemon(
            mps.daemon(GPU).pipe.parent, ("-f",), systemd=False, control=str(bench.control)
        )
        assert not its.answers()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_live_daemon_that_the_control_program_cannot_ask_is_left_alone(
    bench: Bench, kind: socket.SocketKind
) -> None:
    its = MpsDaemon(bench.root / "mps" / GPU, ("-f",), systemd=False, control=str(bench.control))
    its.pipe.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(its.pipe / "control"))
        listener.listen()
        (bench.root / "mismatch").touch()
        with pytest.raises(CarmaError, match="refused"):
            its.answers()
