"""A check with PyTorch, in whatever Python has it: how much memory its context takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache

from carmad.contexts import Context, find_context
from carmad.selftest.bench import Bench, Probe, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown

WITHIN_S = 90.0  # importing torch takes long where its files are not cached
SOURCE = "carma doctor --gpu"
CONTEXT_OFF = 0.25  # of the constant that estimates reckon with
HAS_TORCH = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"
FINDS_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"
# A first tensor, a matrix product (cuBLAS), a convolution (cuDNN): it waits for a line after each.
CONTEXT = """\
import json, sys, torch
if not torch.cuda.is_available():
    sys.exit(f"PyTorch {torch.__version__} finds no GPU")
one = torch.ones(1024, 1024, device="cuda")
picture, kernel = (torch.ones(1, 1, size, size, device="cuda") for size in (64, 3))
pairs = (one, one), (one, one), (picture, kernel)
for run, tensors in zip((torch.add, torch.matmul, torch.conv2d), pairs):
    run(*tensors)
    torch.cuda.synchronize()
    found = {"mib": torch.cuda.memory_reserved() / 2**20, "version": torch.__version__}
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
"""


def context(bench: Bench) -> Seen:
    program = start(bench, "-c", CONTEXT)
    beside: list[int] = []  # the tensors: with the context, with cuBLAS too, and with cuDNN too
    for _ in range(3):
        found = program.answer(WITHIN_S)
        use = bench.use(program)
        if use is None or use.memory_mib is None:
            return unknown("the driver does not list the process by its pid, or not its memory")
        beside.append(round(use.memory_mib - found["mib"]))
        program.begin("go on")
    bare, with_cublas, constant = beside
    card, version = bench.gpu.name, found["version"]
    here = Context(card, version, bare, with_cublas - bare, constant - with_cublas, SOURCE)
    chosen = bench.settings.estimation
    table = find_context(card, version) if chosen.context_mib is None else None
    expected = table.mib if table else chosen.any_context_mib
    return judge(
        abs(constant - expected) <= CONTEXT_OFF * expected,
        f"PyTorch {version} takes {constant} MiB beside its tensors; {expected} MiB are reckoned"
        f" with. As a row of carmad/contexts.csv: {here.row}",
        {"estimation.context_mib": constant},
        context_mib=constant,
        cublas_mib=here.cublas_mib,
        cudnn_mib=here.cudnn_mib,
        torch=version,
    )


def start(bench: Bench, *words: str, more: dict[str, str] | None = None) -> Probe:
    """A program for a Python with PyTorch, as a probe. Raises ProbeFailed."""
    program = python()
    if not program:
        raise ProbeFailed("no Python on PATH has a PyTorch that finds a GPU")
    return bench.run([program, *words], bench.environment() | (more or {}))


@cache
def python() -> str:
    """The first Python, of this one and those on PATH, whose PyTorch finds a GPU; "" for none."""
    for name in (sys.executable, "python3", "python"):
        found = shutil.which(name)
        if found and _says(found, HAS_TORCH, 10.0) and _says(found, FINDS_GPU, WITHIN_S):
            return found
    return ""


def _says(program: str, code: str, within_s: float) -> bool:
    try:
        tried = subprocess.run(
            [program, "-c", code], timeout=within_s, capture_output=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.returncode == 0
