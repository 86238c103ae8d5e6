"""Fake tensors on `cuda` that also work in the backward pass, on machines without a GPU.

A fake tensor has a device, a shape, strides and a dtype, and no data. PyTorch makes them in any
build, but its autograd engine asks the CUDA side for devices, streams and contexts before it goes
backward, and where there is no GPU the answer is an exception. `install` gives this process the
answers of a machine with one GPU, through `ctypes`, in memory only:

- the *device guard* of CUDA, an entry in a table of c10, becomes an object of ours;
- the *hooks*, a C++ object of ATen, get a copy of their table of virtual functions in which
  `isBuilt` (in torch 2.6 `hasCUDA`) and `hasPrimaryContext` say yes.

Which function has which place is read from the headers that come with PyTorch. Nearly all of them
return device 0 of type CUDA, the default stream, the count 1, or true: in registers these are one
and the same, a 1 and then a 0, and so one piece of code does for all.
"""

import atexit
import ctypes
import mmap
import platform
import re
import time
from pathlib import Path
from typing import Any, List

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

OLDEST = (2, 6)  # of torch
_CUDA = 1  # c10::DeviceType
_ENTRIES = 160  # more than any of the tables has
_CODE = {  # return 1, and 0 in the second register; return 0
    "x86_64": (b"\xb8\x01\x00\x00\x00\x31\xd2\xc3", b"\x31\xc0\xc3"),
    "aarch64": (
        b"\x20\x00\x80\xd2\x01\x00\x80\xd2\xc0\x03\x5f\xd6",
        b"\x00\x00\x80\xd2\xc0\x03\x5f\xd6",
    ),
}
_Table = ctypes.c_void_p * _ENTRIES
_installed: List[bool] = []


class Unfit(Exception):
    """Fake CUDA tensors cannot be had in this process; the message says why."""


def install() -> None:
    """Make fake CUDA tensors usable; does nothing the second time, or where there is a GPU.
    Raises Unfit."""
    if _installed or (torch.backends.cuda.is_built() and torch.cuda.is_available()):
        return
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        raise Unfit(f"torch {torch.__version__} is too old: a trace needs 2.6 or newer")
    if platform.machine() not in _CODE:
        raise Unfit(f"fake CUDA tensors are not known to work on {platform.machine()}")
    _installed.append(True)
    FakeTensorMode.avoid_device_init = True  # it would ask torch.cuda, which scripts see patched
    for name in ("init_cuda_context", "init_gpu_context"):  # by version
        if hasattr(fake_tensor, name):
            setattr(fake_tensor, name, lambda *device: None)
    torch.cuda._lazy_init = lambda: None  # called for by every `device="cuda"`
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_current_stream_capturing = lambda: False
    # Autograd's thread may still be letting go of tensors, for which it must not find Python gone.
    atexit.register(time.sleep, 0.1)
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    one_code, zero_code = _CODE[platform.machine()]
    code.write(one_code + zero_code)
    one = ctypes.addressof(ctypes.c_char.from_buffer(code))
    _keep(code)
    lib, include = (Path(torch.__file__).parent / name for name in ("lib", "include"))
    _set_guard(ctypes.CDLL(str(lib / "libc10.so")), one, one + len(one_code), include)
    _set_hooks(ctypes.CDLL(str(lib / "libtorch_cpu.so")), one, include)


def _keep(thing: Any) -> None:
    """The libraries point to it from now on, and still do when Python has ended."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _set_guard(c10: Any, one: int, zero: int, include: Path) -> None:
    table = _Table(*[one] * _ENTRIES)
    functions = _virtual_functions(include / "c10/core/impl/DeviceGuardImplInterface.h")
    if "isStreamCapturing" in functions:
        table[functions.index("isStreamCapturing")] = zero
    guard = ctypes.c_void_p(ctypes.addressof(table))  # an object without fields
    _keep(table)
    _keep(guard)
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(
        c10, "_ZN3c104impl26device_guard_impl_registryE"
    )
    registry[_CUDA] = ctypes.addressof(guard)


def _set_hooks(cpu: Any, one: int, include: Path) -> None:
    get_hooks = cpu._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    head = 2  # words before the first function: an offset, and the object's type
    start = hooks[0] - head * ctypes.sizeof(ctypes.c_void_p)
    table = _Table(*_Table.from_address(start))
    folder = include / "ATen" / "detail"
    functions = _virtual_functions(
        folder / "AcceleratorHooksInterface.h", folder / "CUDAHooksInterface.h"
    )
    for name in ("isBuilt" if "isBuilt" in functions else "hasCUDA", "hasPrimaryContext"):
        if name not in functions:
            raise Unfit(f"torch {torch.__version__} does not say how its CUDA hooks look")
        table[head + functions.index(name)] = one
    _keep(table)
    hooks[0] = ctypes.addressof(table) + head * ctypes.sizeof(ctypes.c_void_p)


def _virtual_functions(*headers: Path) -> List[str]:
    """Those of a class in the order of its table; its header comes after its base's. A destructor
    has two places, and what overrides a function has that function's."""
    names: List[str] = []
    for header in headers:
        text = re.sub(r"//.*|/\*.*?\*/", "", header.read_text())
        for name in re.findall(r"virtual\s[^;{()]*?(~?\w+)\(", text):
            if name.startswith("~"):
                names.extend(() if "~" in names else ("~", "~"))
            elif name not in names:
                names.append(name)
    return names
