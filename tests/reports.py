"""What the tracer may answer an estimator."""

from __future__ import annotations

from dataclasses import replace

from estimators.tracer.report import PARTS, Layer, No, Report


def a_report(**changes: object) -> Report:
    """The trace of a script: 3,000 MiB reserved for a model of two layers."""
    mib = 2**20
    sizes = (400 * mib, 400 * mib, 800 * mib, 1000 * mib, 300 * mib, 100 * mib)
    layers = (Layer("Linear", 4096, 100 * mib), Layer("GELU", 4096, 0))
    report = Report(
        torch="2.13.0",
        steps=2,
        floor=2_500 * mib,
        reserved=3_000 * mib,
        most=3_000 * mib,
        parts=dict(zip(PARTS, sizes, strict=True)),
        autotune=0,
        faketensor=1_700 * mib,
        batch=64,
        layers=layers,
        notes=(),
        seconds=1.5,
    )
    return replace(report, **changes)  # type: ignore[arg-type]


ANSWERS = (
    No("it never imported torch").dumps(),
    a_report().dumps(),
    a_report(steps=1, floor=0, reserved=0, parts={}, faketensor=0, batch=0, layers=()).dumps(),
)
