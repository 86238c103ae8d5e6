"""For a repository's own tests: does its training still fit on the GPU that it is meant for?

    from carma_testing.training import assert_fits

    def test_training_fits():
        assert_fits("24GB", make_model, torch.empty(64, 3, 224, 224))

Needs PyTorch, and no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from carmad.paths import find_own

find_own()  # the tracer is in a folder of ours

from estimators import trace as trace  # noqa: E402
from estimators.tracer.report import CONTEXT_MIB, Report  # noqa: E402

MIB = 1 << 20


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

    memory: of the GPU, as for `Report.fits`, which judges.
    model, inputs, optimizer, loss: as for `trace`.
    context_mib: what CUDA and its libraries take besides.

    The message names who holds the memory and what would help. Returns the report. Raises
    ValueError if `memory` is not a size.
    """
    report = trace(model, inputs, optimizer, loss=loss, explain=True)
    if not report.fits(memory, context_mib):
        raise AssertionError(_message(report, memory, report.safe + context_mib * MIB))
    return report


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
