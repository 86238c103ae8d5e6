"""A machine with GPUs that are not there: fake NVML, CUDA and MPS that show one and the same world.

`environment` is all that a program needs to run on it, unawares. Scripted deviations (see the C
files) make the driver behave otherwise than it is documented to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.here import shebang

HERE = Path(__file__).parent
LIBRARIES = {
    "libnvidia-ml.so.1": HERE / "fake_nvml/fake_nvml.c",
    "libcuda.so.1": HERE / "fake_cuda/fake_cuda.c",
}
GPU = "GPU-5d5e1b0a-7f31-4e11-9a3e-{:012x}"
WORLD = """\
gpu {uuid}
name NVIDIA H100 80GB HBM3
pci 0 {bus:x} 0
memory 81559 600 0
util 0 0
power 70000
energy 1000000
temperature 30
gpm 0 0 0
gpm_metric 1 0
gpm_metric 20 0
gpm_metric 21 0
"""


def uuid(index: int = 0) -> str:
    return GPU.format(index + 1)


def environment(folder: Path, gpus: int = 1, dcgm: bool = False) -> dict[str, str]:
    """The whole environment of a process on that machine, this one's with what makes it so.
    `dcgm`: it has DCGM, which knows the first GPU.

    Compiles both libraries into `folder`, which every user must be able to enter if other users'
    processes are to run there, and whose path must be short (below 60 characters), for the sockets
    of MPS. Raises FileNotFoundError without gcc."""
    folder = folder.absolute()
    library, programs = folder / "lib", folder / "bin"
    for each in (library, programs):
        each.mkdir(parents=True, exist_ok=True)
    for name in ("processes", "faults", "terminated", "checkpoints", "running"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(0o1777)  # processes of every user
    for name, source in LIBRARIES.items():
        compile_library(source, library / name)
    for name in ("fake_mps/nvidia-cuda-mps-control", *(("fake_dcgm/dcgmi",) if dcgm else ())):
        _program(HERE / name, programs)
    way = programs / "world"
    way.unlink(missing_ok=True)
    way.symlink_to(folder)
    world = folder / "world"
    world.write_text("".join(WORLD.format(uuid=uuid(n), bus=0x10 + n) for n in range(gpus)))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("CUDA_")},
        "FAKE_GPU": str(folder),
        "FAKE_NVML_WORLD": str(world),
        "LD_LIBRARY_PATH": _first(library, "LD_LIBRARY_PATH"),
        "PATH": _first(programs, "PATH"),
    }


def _first(folder: Path, variable: str) -> str:
    """Where to look, and then wherever this process looks."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get(variable))))


def deviate(folder: Path, *words: str) -> None:
    """From now on, the driver does these things otherwise; none: it is as documented."""
    (folder / "deviations").write_text("".join(f"{word}\n" for word in words))


def compile_library(source: Path, library: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        raise FileNotFoundError("there is no gcc to compile the fake driver with")
    if library.exists() and library.stat().st_mtime > source.stat().st_mtime:
        return
    soname = f"-Wl,-soname,{library.name}"
    subprocess.run([gcc, "-shared", "-fPIC", soname, "-o", library, source], check=True)


def _program(source: Path, folder: Path) -> None:
    """Under this Python, which starts faster than what `env` finds."""
    body = source.read_text().split("\n", 1)[1]
    program = folder / source.name
    program.write_text(f"{shebang()}{body}")
    program.chmod(0o755)
