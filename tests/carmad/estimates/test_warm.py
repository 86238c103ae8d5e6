"""Warm tracers: a trial in one says what a trial in a new process says, and leaves as little."""

from __future__ import annotations

import getpass
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import a_spec
from carmad.attempt.proc import descendants, process_stat, running
from carmad.config import Estimation, Settings
from carmad.core.ports import Trial, Warm
from carmad.estimates.experience import try_program
from carmad.estimates.tracers import Tracers
from carmad.plugin import JobSpec, Refusal
from estimators.look import TRACER, look
from estimators.tracer.report import Report
from tests.waiting import until

pytest.importorskip("torch")

SCRIPTS = Path(__file__).parents[2] / "scripts"
# These machines may be busy, and how far the rest of a run is followed is a matter of time.
PATIENT = Settings(estimation=Estimation(within_s=200.0, rest_s=0.0))
TRAIN = """
    import torch
    model = torch.nn.Linear(64, 64).cuda()
    adam = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        adam.step()
"""


class Server:
    """Estimators' `Server`: its trials are forked, or not."""

    gpu, driver, explain = "NVIDIA A100-SXM4-40GB", "", False

    def __init__(self, tracers: Tracers | None) -> None:
        self._tracers = tracers
        self.last = Trial(b"", "")

    def users(self) -> list[Any]:
        return []

    def runs(self, owner: object) -> list[Any]:
        return []

    def trial(self, spec: JobSpec, argv: Any, within_s: float, warm: Warm | None = None) -> Trial:
        self.last = try_program(
            spec, argv, within_s, lambda: False, tracers=self._tracers, warm=warm
        )
        return self.last


@contextmanager
def fresh() -> Iterator[Tracers]:
    before = of_tracers()
    with closing(Tracers()) as tracers:
        yield tracers
    until(lambda: of_tracers().keys() <= before.keys(), "the tracers to end")


@pytest.fixture
def tracers() -> Iterator[Tracers]:
    with fresh() as tracers:
        yield tracers


@pytest.fixture(scope="module")
def shared() -> Iterator[Tracers]:
    """For tests that do not mind what was tried before."""
    with fresh() as tracers:
        yield tracers


def of_tracers() -> dict[int, int]:
    """Live processes of ours, or that started out as such, that run a tracer."""
    found = {}
    for pid, start in descendants().items():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(TRACER) in words and running(pid, start):
            found[pid] = start
    return found


def spec(folder: Path, *words: str, **env: str) -> JobSpec:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("CARMA_")}
    mine["PYTHONUNBUFFERED"] = "1"  # a tracer leaves at once: what is in a buffer is not printed
    return a_spec(
        argv=(sys.executable, *words),
        cwd=str(folder),
        uid=os.getuid(),
        user=getpass.getuser(),
        env=tuple((mine | env).items()),
        umask=0o027,
    )


def looked(tracers: Tracers | None, spec: JobSpec) -> tuple[object, str]:
    """The report without what differs in each run, or why there is none; and what it printed."""
    server = Server(tracers)
    found = look(spec, PATIENT, server)
    if isinstance(found, Report):
        return replace(found, seconds=0.0), server.last.output
    assert isinstance(found, Refusal)
    return (found.why, found.crash, found.late), server.last.output


def write(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


@pytest.mark.parametrize(
    "words",
    [
        ("gan.py",),
        ("gpt.py", "--eval_iters=50", "--gradient_accumulation_steps=10"),
        ("image_training.py", "--amp", "--channels-last", "--model-ema"),
        ("run_glue.py", "--output_dir=out", "--fp16"),
        ("-c", "import torch; x = torch.ones(2).cuda() @ torch.ones(3).cuda()"),
        ("-c", "import numpy, no_such_package"),
        ("-m", "json.tool", "--no-such-option"),
    ],
    ids=lambda words: words[0] + words[1][:9] if words[1:] else words[0],
)
def test_it_says_what_a_new_process_says(
    shared: Tracers, tmp_path: Path, words: tuple[str, ...]
) -> None:
    if words[0] == "run_glue.py":
        pytest.importorskip("transformers")
    if words[0].endswith(".py"):
        words = (str(SCRIPTS / words[0]), *words[1:])
    cold, _ = looked(None, spec(tmp_path, *words))
    first, _ = looked(shared, spec(tmp_path, *words))
    second, _ = looked(shared, spec(tmp_path, *words))
    assert first == cold
    assert second == cold, "with all that the first one imported at hand"
    assert not any(tmp_path.iterdir())


STATE = """
    import json, os, random, resource, signal, sys, warnings
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__,
        "flags": str(sys.flags), "cwd": os.getcwd(), "nice": os.nice(0),
        "umask": (os.umask(0), os.umask(0))[0], "stdin": os.readlink("/proc/self/fd/0"),
        "env": dict(sorted(os.environ.items())),
        "limits": [resource.getrlimit(one) for one in limits if one != resource.RLIMIT_NPROC],
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "handlers": [str(signal.getsignal(n)) for n in range(1, 32)],
        "filters": str(warnings.filters), "seccomp": status["Seccomp"],
        "privileges": status["NoNewPrivs"], "threads": status["Threads"],
        "main": sorted(vars(sys.modules["__main__"])), "tty": sys.stdout.isatty(),
        "modules": sorted(name for name in sys.modules if not name.startswith("carma_tracer")),
        "finders": [type(each).__name__ for each in sys.meta_path],
        "attributes": sorted(vars(sys.modules["torch"])),
    }, default=str))
"""


def test_a_script_finds_what_it_would_find_in_a_new_process(
    tracers: Tracers, tmp_path: Path
) -> None:
    script = write(tmp_path, STATE)
    one = spec(tmp_path, script, "--lr", "0.1", MINE="3")
    _, cold = looked(None, one)
    uses = "import torch.utils.tensorboard, xml.dom.minidom, torch._dynamo, warnings"
    for _ in range(2):
        _, warm = looked(tracers, one)
        assert _told(warm) == _told(cold)
        looked(tracers, spec(tmp_path, "-c", uses, MINE="3"))
    assert len(tracers._idle) == 1


def _told(output: str) -> dict[str, Any]:
    import json

    told: dict[str, Any] = json.loads(output)
    # That of the warm one waits for orders, and `shelf` is there to hide what others have imported.
    told["modules"] = [name for name in told["modules"] if name not in ("_socket", "socket")]
    told["finders"] = [name for name in told["finders"] if name != "Shelf"]
    return told


def test_what_an_earlier_script_imported_changes_no_verdict(
    tracers: Tracers, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    leaves = write(tmp_path, "import sys\nsys.exit(3)\n")
    with_hub = "import huggingface_hub, sys\nsys.exit(3)\n"
    cold, _ = looked(None, spec(tmp_path, leaves))
    assert cold == (
        "the script stops at train.py:2: exit status 3",
        "at train.py:2: exit status 3",
        False,
    )
    of_hub, _ = looked(None, spec(tmp_path, "-c", with_hub))
    for _ in range(3):
        assert looked(tracers, spec(tmp_path, "-c", with_hub))[0] == of_hub
        assert looked(tracers, spec(tmp_path, leaves))[0] == cold
    asks = "import sys\nprint([n for n in sys.modules if n.startswith('huggingface_hub')])"
    assert looked(tracers, spec(tmp_path, "-c", asks))[1] == "[]\n"
    assert len(tracers._idle) == 1, "one tracer has served all of them"


def packages(folder: Path, **modules: str) -> str:
    """A folder for PYTHONPATH, where packages could be installed."""
    place = folder / "some-packages" / "site-packages"
    place.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        write(place, text, f"{name}.py")
    return str(place)


def test_a_module_of_the_scripts_own_is_preferred_as_ever(tracers: Tracers, tmp_path: Path) -> None:
    place = packages(
        tmp_path,
        shadowed_one="told = 'installed'",
        uses_one="import shadowed_one\ntold = shadowed_one.told",
    )
    (tmp_path / "job").mkdir()
    both = "import uses_one, shadowed_one; print(uses_one.told, shadowed_one.told)"
    elsewhere = write(tmp_path, both, "elsewhere.py")
    for _ in range(2):
        assert looked(tracers, spec(tmp_path, elsewhere, PYTHONPATH=place))[1] == (
            "installed installed\n"
        )
    write(tmp_path / "job", "told = 'own'", "shadowed_one.py")
    only = write(tmp_path / "job", "import shadowed_one; print(shadowed_one.told)", "only.py")
    write(tmp_path / "job", both)
    for script, says in ((only, "own\n"), ("train.py", "own own\n")):
        for server in (None, tracers):
            one = spec(tmp_path / "job", script, PYTHONPATH=place)
            assert looked(server, one)[1] == says, server


def test_what_a_module_makes_without_an_import_comes_with_it(
    tracers: Tracers, tmp_path: Path
) -> None:
    """As pyexpat, in C, makes `pyexpat.model`."""
    makes = """
        import sys, types
        part = types.ModuleType("makes_one.part")
        sys.modules["makes_one.part"] = part
    """
    place = packages(
        tmp_path,
        makes_one=makes,
        uses_it="import makes_one",
        takes_all="from makes_one import *\npart.told = 3",
    )
    for name in ("uses_it", "takes_all", "uses_it", "takes_all"):
        text = f"import {name}\nraise ValueError('mine')"
        (_, crash, _), _ = looked(tracers, spec(tmp_path, "-c", text, PYTHONPATH=place))
        assert crash == "at <string>:2: ValueError: mine"
    assert len(tracers._idle) == 1


def test_what_a_library_changes_in_others_comes_and_goes_with_it(
    tracers: Tracers, tmp_path: Path
) -> None:
    changes = """
        import functools, json, logging, warnings
        warnings.simplefilter("error")
        logging.Logger.shout = functools.lru_cache(None)(lambda self: None)
        real = json.dumps
        json.dumps = lambda *args, **kwargs: real(*args, **kwargs) + "!"
    """
    place = packages(tmp_path, changes_others=changes)
    state = """
        import json, logging, warnings
        print(hasattr(logging.Logger, "shout"), json.dumps(3), warnings.filters[0][0] == "error")
    """
    script = write(tmp_path, state)
    with_it = write(tmp_path, f"import changes_others{textwrap.dedent(state)}", "with_it.py")
    for _ in range(2):
        assert looked(tracers, spec(tmp_path, script, PYTHONPATH=place))[1] == "False 3 False\n"
        told = looked(tracers, spec(tmp_path, with_it, PYTHONPATH=place))[1]
        assert told.startswith("True 3! ")
    assert len(tracers._idle) == 1


def test_what_is_noted_of_a_librarys_import_is_noted_of_no_other_script(
    tracers: Tracers, tmp_path: Path
) -> None:
    place = packages(tmp_path, decorates="import torch\n@torch.jit.script\ndef f(x: int): return x")
    train = write(tmp_path, TRAIN)
    with_it = write(tmp_path, f"import decorates{textwrap.dedent(TRAIN)}", "with_it.py")
    for _ in range(2):
        for script in (train, with_it):
            found, _ = looked(tracers, spec(tmp_path, script, PYTHONPATH=place))
            assert isinstance(found, Report) and found.notes == ()
    assert len(tracers._idle) == 1


def test_a_changed_package_is_loaded_anew(tracers: Tracers, tmp_path: Path) -> None:
    place = packages(tmp_path, changes="told = 1")
    one = spec(tmp_path, "-c", "import changes; print(changes.told)", PYTHONPATH=place)
    assert [looked(tracers, one)[1] for _ in range(2)] == ["1\n", "1\n"]
    packages(tmp_path, changes="told = 'two'")
    assert looked(tracers, one)[1] == "two\n"


def test_a_package_that_starts_a_thread_does_not_stay(tracers: Tracers, tmp_path: Path) -> None:
    text = """
        import threading, time
        threading.Thread(target=time.sleep, args=[999], daemon=True).start()
    """
    one = spec(tmp_path, write(tmp_path, "import has_thread" + TRAIN.replace("\n    ", "\n")))
    one = replace(one, env=(*one.env, ("PYTHONPATH", packages(tmp_path, has_thread=text))))
    answers = [looked(tracers, one)[0] for _ in range(3)]
    assert answers == [looked(None, one)[0]] * 3


def test_what_a_script_leaves_running_is_ended_and_the_tracer_goes_on(
    tracers: Tracers, tmp_path: Path
) -> None:
    leaves = """
        import os, subprocess, sys, time
        for how in range(2):
            child = subprocess.Popen(["sleep", "9999"], start_new_session=bool(how))
            print(child.pid)
        if os.fork() == 0 and os.fork() == 0:
            os.setsid()
            print(os.getpid(), flush=True)
            time.sleep(9999)
        time.sleep(0.5)
        sys.exit(4)
    """
    one = spec(tmp_path, write(tmp_path, leaves))
    for _ in range(2):
        answer, said = looked(tracers, one)
        assert "exit status 4" in str(answer) or "status 4" in str(answer)
        assert all(process_stat(int(pid)) is None for pid in said.split() if pid.isdigit())
    (keeper,) = tracers._idle
    assert not keeper.has_ended()


def test_a_script_that_takes_too_long_is_ended_and_the_next_is_served(
    tracers: Tracers, tmp_path: Path
) -> None:
    warm = spec(tmp_path, "-c", "print(1)")
    assert looked(tracers, warm)[1] == "1\n"
    hangs = replace(PATIENT, estimation=replace(PATIENT.estimation, within_s=0.5))
    server = Server(tracers)
    found = look(spec(tmp_path, "-c", "while True: pass"), hangs, server)
    assert isinstance(found, Refusal) and found.late
    assert looked(tracers, warm)[1] == "1\n"
    assert len(tracers._idle) == 1


def test_a_script_that_kills_its_tracer_is_tried_in_a_new_process(
    tracers: Tracers, tmp_path: Path
) -> None:
    kills = "import os\nos.kill(os.getppid(), 9)\nprint(1)"
    answer, _ = looked(tracers, spec(tmp_path, "-c", kills))
    assert isinstance(answer, tuple)
    assert looked(tracers, spec(tmp_path, "-c", "print(2)"))[1] == "2\n"


def test_another_environment_has_a_tracer_of_its_own_and_not_many_are_kept(
    tracers: Tracers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked(tracers, spec(tmp_path, "-c", "print(1)", SHLVL="1"))
    looked(tracers, spec(tmp_path, "-c", "print(1)", SHLVL="2"))
    assert len(tracers._idle) == 1
    looked(tracers, spec(tmp_path, "-c", "print(1)", ANOTHER="1"))
    assert len(tracers._idle) == 2
    monkeypatch.setattr("carmad.estimates.tracers.MOST", 1)
    looked(tracers, spec(tmp_path, "-c", "print(1)", ANOTHER="1"))
    (kept,) = tracers._idle
    looked(tracers, spec(tmp_path, "-c", "print(1)", ANOTHER="1"))
    assert tracers._idle == [kept], "the one that was used last"


@pytest.mark.parametrize(
    "argv",
    [("bash", "-c", "{python} train.py"), ("env", "A=b", "{python}", "train.py")],
    ids=["shell", "env"],
)
def test_what_cannot_be_forked_is_started(
    tracers: Tracers, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    write(tmp_path, TRAIN)
    one = spec(tmp_path)
    words = tuple(word.replace("{python}", sys.executable) for word in argv)
    assert isinstance(looked(tracers, replace(one, argv=words))[0], Report)
    assert not tracers._idle


def test_a_python_without_torch_is_told_as_ever(tracers: Tracers, tmp_path: Path) -> None:
    hides = packages(tmp_path, torch="raise ImportError('no torch here', name='torch')")
    one = spec(tmp_path, write(tmp_path, TRAIN), PYTHONPATH=hides)
    assert looked(tracers, one) == looked(None, one)
    assert not tracers._idle
    one = spec(tmp_path, write(tmp_path, "from jax import numpy"), PYTHONPATH=hides)
    (why, crash, _), _ = looked(tracers, one)
    assert why.startswith("it uses JAX, and only PyTorch is traced: give --gpu-mem") and not crash


def test_nothing_is_left_in_the_shared_memory_for_the_next_script(
    tracers: Tracers, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts one for each")
    leaves = """
        import os, _posixshmem
        print(sorted(os.listdir("/dev/shm")), flush=True)
        os.close(_posixshmem.shm_open(f"/left", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600))
    """
    script = write(tmp_path, leaves)
    for _ in range(2):
        _, said = looked(tracers, spec(tmp_path, script))
        if (left := Path("/dev/shm/left")).exists():
            left.unlink()
            pytest.skip("it cannot be mounted here")
        assert said == "[]\n"


def test_a_tracer_ends_with_its_keeper(tracers: Tracers, tmp_path: Path) -> None:
    before = of_tracers()
    looked(tracers, spec(tmp_path, "-c", "print(1)"))
    (tracer,) = of_tracers().keys() - before.keys()
    os.kill(tracers._idle[0].process.pid, signal.SIGKILL)
    until(lambda: tracer not in of_tracers(), "the tracer to end")
    assert looked(tracers, spec(tmp_path, "-c", "print(2)"))[1] == "2\n"
