"""Processes that a script starts, which are traced as well."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from carmad.plugin import Refusal
from estimators.tracer.attempts import _outcome
from estimators.tracer.report import Message, No, Report, Stop
from estimators.tracer.script import PARTLY
from tests.estimators.tracer.test_tracer_script import job, looked, loop, needs, report, written
from tests.reports import a_report

__all__ = ["job"]

MIB = 2**20
TORCH = ("-m", "torch.distributed.run")
ACCELERATE = ("-m", "accelerate.commands.accelerate_cli", "launch")
LINEAR = 4 * (4096 * 4096 + 4096)  # bytes
TRAIN = """
import os, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def train(device, size=4096):
    model = torch.nn.Linear(size, size).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, size, device=device)).sum().backward()
        optimizer.step()
    return size
"""


def script(job: Path, text: str) -> str:
    return written(job, TRAIN + textwrap.dedent(text))


def test_processes_on_one_gpu_add_up(job: Path) -> None:
    """Of three that act for ever, what they hold when the one that learns is done."""
    text = """
        def act(queue, model):
            assert model.weight.sum() is not None
            model = torch.nn.Linear(4096, 4096).cuda()
            while True:
                queue.put((torch.randn(8, 4096), model(torch.randn(8, 4096).cuda())))

        if __name__ == "__main__":
            mp.set_start_method("spawn")
            queue, model = mp.Queue(4), torch.nn.Linear(4096, 4096).share_memory()
            for _ in range(3):
                mp.Process(target=act, args=(queue, model), daemon=True).start()
            model = model.cuda()
            optimizer = torch.optim.Adam(model.parameters())
            while True:
                seen, acted = queue.get()
                assert seen.shape == (8, 4096) and acted.is_cuda
                model(seen.cuda()).sum().backward()
                optimizer.step()
        """
    found = report(job, script(job, text))
    assert (found.steps, found.processes) == (2, 4)
    assert found.parts["parameters"] + found.parts["activations"] >= 4 * LINEAR
    assert found.parts["optimizer"] >= 2 * LINEAR
    assert found.notes[0] == "4 processes on one GPU, with a context each"


def test_the_gpu_with_most_is_the_answer(job: Path) -> None:
    """Two are on the second one, each with a third of the memory."""
    text = """
        def work(rank):
            torch.cuda.set_device(max(rank, 1) - 1)
            train("cuda", 4096 if rank < 2 else 5120)

        if __name__ == "__main__":
            mp.start_processes(work, nprocs=3, start_method="forkserver")
        """
    found = report(job, script(job, text), gpus=2)
    assert (found.steps, found.processes) == (2, 2)
    assert 3 * 2 * LINEAR > found.floor >= 2 * 2 * LINEAR


def test_the_first_rank_stands_for_all(job: Path) -> None:
    text = """
        def work(rank, world):
            dist.init_process_group("nccl", rank=rank, world_size=world)
            assert rank == 0, "the others end here"
            assert dist.get_world_size() == 4
            train(rank)

        if __name__ == "__main__":
            mp.spawn(work, args=(4,), nprocs=4)
        """
    found = report(job, script(job, text), gpus=4)
    assert (found.steps, found.processes, found.notes[0][:24]) == (2, 1, "one of several processes")


def test_programs_and_pools_are_followed(job: Path) -> None:
    """A program that starts another, which becomes a third, whose pool's worker trains."""
    text = """
        stage = sys.argv[1] if len(sys.argv) > 1 else ""
        if __name__ != "__main__":
            pass
        elif not stage:
            open("config", "w").write("5000")
            done = subprocess.run([sys.executable, "-u", __file__, "1", "a b"], env={
                **os.environ, "STAGE": "one"}, text=True, capture_output=True, check=True)
            open("gone")
        elif stage == "1":
            assert (os.environ["STAGE"], sys.argv[2]) == ("one", "a b")
            python = os.path.dirname(sys.executable) + "/python"
            assert os.system(f"STAGE=two nohup {python} {__file__} 2") == 0
        elif stage == "2":
            assert (os.environ["STAGE"], open("config").read()) == ("two", "5000")
            told = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"]
            both = [subprocess.Popen(told, stdin=subprocess.PIPE) for _ in range(2)]
            assert not any(one.communicate(b"")[0] or one.returncode for one in both)
            os.execv(sys.executable, [sys.executable, __file__, "3"])
        else:
            context = mp.get_context("spawn")
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                print(pool.submit(train, "cuda").result())
        """
    found = report(job, script(job, text))
    assert (found.steps, found.processes) == (2, 1) and found.floor >= 2 * LINEAR


def test_a_program_may_be_started_in_a_folder_that_was_made(job: Path) -> None:
    text = "os.mkdir('out'); subprocess.run(['pwd'], cwd='out', check=True); train('cuda')"
    assert report(job, script(job, text)).steps == 2


def test_processes_after_each_other_do_not_add_up_and_nobody_waits_for_ever(job: Path) -> None:
    text = """
        def work(queue):
            train("cuda")
            queue.put("ended")

        def wait_in_c():
            import ctypes
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)

        deaf = mp.Process(target=wait_in_c)
        deaf.start()
        deaf.join(0.5)
        deaf.terminate()  # as Pool.terminate: no handler of Python's runs there
        deaf.join()
        queue = mp.SimpleQueue()
        for _ in range(2):
            process = mp.Process(target=work, args=(queue,))
            process.start()
            process.join()
        train("cuda")
        queue.get()
        """
    found = report(job, script(job, text))
    assert (found.steps, found.processes) == (2, 1) and found.seconds < 60


def test_models_in_turn_and_then_a_program(job: Path) -> None:
    """Of models that are trained in turn, one is held at a time. A process that is started after a
    backward pass counts as far as its own; the script goes on after another that fails."""
    text = """
        me = [sys.executable, __file__]
        if sys.argv[1:] == ["look"]:
            torch.zeros(1, device="cuda")
            sys.exit(3)
        if sys.argv[1:]:
            train("cuda", 5120)
        else:
            assert subprocess.call([*me, "look"]) == 3
            for _ in range(2):
                train("cuda")
            subprocess.run([*me, "train"], check=True)
        """
    found = report(job, script(job, text))
    assert (found.steps, found.processes) == (2, 2)
    assert 3.5 * LINEAR < found.floor < 4 * LINEAR
    assert f"another process: {PARTLY}" in found.notes
    assert found.rest is not None and not found.rest.end


@pytest.mark.parametrize(
    "start",
    [
        "mp.spawn(work, nprocs=2)",
        "mp.Pool(2).map(work, range(2))",
        "p = mp.Process(target=work, args=(0,)); p.start(); p.join(); assert p.exitcode == 0",
    ],
)
def test_where_a_process_stops_the_script_stops(start: str, job: Path) -> None:
    text = """
        def work(rank):
            model = torch.nn.Linear(8, 8).cuda()
            return model(torch.randn(4, 9).cuda())

        if __name__ == "__main__":
        """
    path = script(job, f"{textwrap.dedent(text)}    {start}\n")
    answer = looked(job, path)
    line = 1 + Path(path).read_text().splitlines().index(
        "    return model(torch.randn(4, 9).cuda())"
    )
    assert isinstance(answer, Refusal)
    assert answer.crash.startswith(f"at {path}:{line}: RuntimeError: "), answer


# -- launchers

CHECK = """
import os, sys
told = [sys.argv[1:], *map(os.environ.get, {names})]
assert told == {told}, told
while True: step()
"""
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def checks(told: object, *names: str) -> str:
    return loop(CHECK.format(names=names, told=told))


@pytest.mark.parametrize(
    ("words", "world"),
    [
        (["--nproc_per_node=4", "--nnodes", "2", "--rdzv-endpoint=h:1"], "8"),
        (["--standalone", "--nproc-per-node", "gpu"], "4"),
    ],
)
def test_torchrun(words: list[str], world: str, job: Path) -> None:
    told = checks([["--nnodes", "9"], "0", "0", world], *RANKS)
    found = report(job, *TORCH, *words, written(job, told), "--nnodes", "9", gpus=4)
    assert found.processes == 1


def test_the_older_launcher_and_a_module(job: Path) -> None:
    (job.parent / "training.py").write_text(
        checks([["--local-rank=0", "-x"], "0", "0", "2"], *RANKS)
    )
    report(
        *(job, "-m", "torch.distributed.launch", "--nproc_per_node=2", "-m", "training", "-x"),
        env=(("PYTHONPATH", str(job.parent)),),
        gpus=2,
    )


@needs("accelerate")
def test_accelerate_launch(job: Path) -> None:
    alone = written(job, checks([["-x"], None, "bf16"], "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"))
    options = ("--num_processes=1", "--mixed_precision", "bf16")
    report(job, *ACCELERATE, *options, alone, "-x")
    config = job.parent / "config.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: fp16\n"
        "num_machines: 1\nnum_processes: 4\nmachine_rank: 0\nuse_cpu: false\n"
    )
    names = ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP")
    script = written(job, checks([[], "2", "fp16", "true"], *names))
    changed = ("--config_file", str(config), "--use_fsdp", "--num_processes", "2")
    report(job, *ACCELERATE, *changed, script, gpus=2)


@needs("deepspeed")
def test_deepspeed(job: Path) -> None:
    script = written(job, checks([["--local_rank=0", "-x"], "0", "0", "2"], *RANKS))
    report(job, "-m", "deepspeed.launcher.runner", "--num_gpus=2", script, "-x", gpus=2)


# -- what comes of their answers


def message(answer: Report | No, gpu: str = "0", born: float = 0.0, said: float = 9.0) -> Message:
    kind = "report" if isinstance(answer, Report) else "no"
    return Message(False, born, said, 1.0, gpu, trains=True, **{kind: answer})


def stop(why: str, gpu: str = "0", said: float = 9.0) -> Message:
    how = Stop(why, crash=f"at {why}")
    return replace(message(No(why), gpu, said=said), stop=how)


def mib_of(*messages: Message) -> tuple[int, int]:
    found = _outcome(list(messages)).report
    assert found
    return found.reserved // MIB, found.processes


def reserved(mib: int, steps: int = 2) -> Report:
    return a_report(reserved=mib * MIB, steps=steps)


def test_the_most_that_processes_hold_at_once() -> None:
    one, other = message(reserved(300)), message(reserved(200))
    assert mib_of(one) == (300, 1)
    assert mib_of(one, other) == (500, 2)
    assert mib_of(one, message(reserved(200), gpu="1")) == (300, 1)
    after = message(reserved(400), born=9, said=12)
    assert mib_of(one, other, after) == (500, 2)
    assert mib_of(one, other, after, message(reserved(300), born=10, said=12)) == (700, 2)


def test_who_stops_first_decides_unless_a_process_has_trained() -> None:
    child, parent = stop("a.py:3", said=4), stop("a.py:9", gpu="", said=5)
    found = _outcome([parent, child]).stop
    assert found is not None and found.why == "a.py:3"
    assert mib_of(child, parent, message(reserved(300))) == (300, 1)
    found = _outcome([child, message(reserved(300, steps=0))]).stop
    assert found is not None and found.crash == "at a.py:3"
    ended = replace(message(reserved(300, steps=0)), is_first=True)
    assert mib_of(stop("no module", gpu=""), ended) == (300, 1)
    assert _outcome([child, ended]).stop is not None
    nothing = message(No("it put nothing on a GPU"), gpu="", said=3)
    late = message(No("it took no step", late=True))
    assert _outcome([nothing, late]).answer == late.no
