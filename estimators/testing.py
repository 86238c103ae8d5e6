"""For a repository's own tests: does its training still fit on the GPU that it is meant for?

    from estimators.testing import assert_fits

    def test_training_fits():
        assert_fits("24GB", make_model, torch.empty(64, 3, 224, 224))

Needs PyTorch, and no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.tracer.report import Report

MIB = 1 << 20
CONTEXT_MIB = 500  # CUDA and its libraries; between 300 and 800 on most servers
_UNITS = {"M": MIB, "MB": 10**6, "MIB": MIB, "G": 1 << 30, "GB": 10**9, "GIB": 1 << 30}


def assert_fits(
    memory: str,
    model: Any,
    inputs: Any,
    optimizer: Callable[[Iterable[Any]], Any] | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    context_mib: int = CONTEXT_MIB,
) -> Report:
    """Trace two training steps, and raise AssertionError if a GPU may be too small for them.

    memory: of the GPU: "24GB" is 24·10⁹ bytes, "24G" and "24GiB" are 24·2³⁰.
    model, inputs, optimizer, loss: as for `estimators.trace`.
    context_mib: what CUDA and its libraries take besides.

    Judged by what the trace would keep free: 5 % and 384 MiB more than expected, and what
    cudnn.benchmark may take. The message names who holds the memory and what would help. Returns
    the report. Raises ValueError if `memory` is not a size.
    """
    from estimators import trace

    limit = _bytes(memory)
    report = trace(model, inputs, optimizer, loss=loss, explain=True)
    needed = report.safe + context_mib * MIB
    if needed > limit:
        raise AssertionError(_message(report, memory, needed))
    return report


def _bytes(text: str) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a size: write 24GB or 24GiB")
    return int(float(found[1]) * unit)


def _message(report: Report, memory: str, needed: int) -> str:
    found = report.explanation
    assert found is not None
    lines = [f"training needs {needed / (1 << 30):.1f} GiB to be safe, more than {memory}"]
    parts = sorted(report.parts.items(), key=lambda part: -part[1])
    lines += [f"  {nbytes // MIB:>7} MiB  {part}" for part, nbytes in parts if nbytes >= MIB]
    lines += ["most activations are held by"]
    lines += [f"  {one.nbytes // MIB:>7} MiB  {one.name} {one.kind}" for one in found.modules[:5]]
    if found.remedies:
        lines += ["what would help"]
        lines += [f"  {-(one.saved // MIB):>7} MiB  {one.what}" for one in found.remedies]
    return "\n".join(lines)
