"""The advice of an explained trace, held against traces that really do what is advised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import estimators  # noqa: E402
from estimators.tracer.explanation import pattern  # noqa: E402
from estimators.tracer.report import PARTS, Explanation, Report, loads  # noqa: E402

nn, F = torch.nn, torch.nn.functional
MIB = 1 << 20


class Conv(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x)))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Any) -> Any:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """Eight blocks and a head; with autocast or checkpointing, if that is asked for."""

    def __init__(
        self, block: Callable[[int], Any], width: int, half: bool = False, again: bool = False
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(width) for _ in range(8))
        self.head = nn.Linear(width, 16)
        self.half, self.again = half, again

    def forward(self, x: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            for block in self.blocks:
                if self.again:
                    x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
                else:
                    x = block(x)
            x = x.flatten(2).mean(2) if x.dim() == 4 else x.mean(1)
            return self.head(x)


@dataclass(frozen=True)
class Case:
    block: Callable[[int], Any]
    width: int
    shape: tuple[int, ...]

    def traced(self, batch: int = 32, optimizer: Any = None, **how: Any) -> Report:
        explain = how.pop("explain", False)
        return estimators.trace(
            lambda: Net(self.block, self.width, **how),
            torch.empty(batch, *self.shape, device="meta"),
            optimizer,
            explain=explain,
        )


CNN = Case(Conv, 64, (64, 64, 64))
TRANSFORMER = Case(Mlp, 512, (256, 512))
WIDE = Case(Mlp, 2048, (4, 2048))  # most of it is weights


class Quantised(torch.optim.Optimizer):
    """Keeps two states of a byte per value."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                for name in ("one", "other"):
                    if name not in self.state[p]:
                        self.state[p][name] = torch.zeros_like(p, dtype=torch.uint8)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def advice(report: Report, start: str) -> Any:
    assert report.explanation
    return next((one for one in report.explanation.remedies if one.what.startswith(start)), None)


@pytest.mark.parametrize(
    ("case", "start", "change"),
    [
        (CNN, "half the batch", {"batch": 16}),
        (TRANSFORMER, "half the batch", {"batch": 16}),
        (CNN, "mixed precision", {"half": True}),
        (TRANSFORMER, "mixed precision", {"half": True}),
        (CNN, "gradient checkpointing of blocks.* (8 × Conv)", {"again": True}),
        (TRANSFORMER, "gradient checkpointing of blocks.* (8 × Mlp)", {"again": True}),
        (WIDE, "an 8-bit optimizer", {"optimizer": Quantised}),
    ],
)
def test_advice_is_close_to_what_happens(case: Case, start: str, change: dict[str, Any]) -> None:
    """Within 5 % of what is reserved."""
    before = case.traced(explain=True)
    found = advice(before, start)
    assert found is not None and not found.exact
    after = case.traced(**change)
    error = (before.reserved - found.saved - after.reserved) / before.reserved
    print(f"{start}: {found.saved >> 20} of {before.reserved >> 20}, off by {error:+.1%}")
    assert abs(error) < 0.05


def test_advice_on_the_allocator_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CNN.traced(explain=True)
    found = advice(before, "PYTORCH_CUDA_ALLOC_CONF")
    assert found.exact
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    after = CNN.traced(explain=True)
    assert before.reserved - found.saved == after.reserved
    assert advice(after, "PYTORCH_CUDA_ALLOC_CONF") is None


def test_no_advice_that_is_followed_already() -> None:
    assert advice(TRANSFORMER.traced(half=True, explain=True), "mixed precision") is None
    assert advice(WIDE.traced(optimizer=sgd, explain=True), "an 8-bit optimizer") is None
    assert advice(CNN.traced(batch=1, explain=True), "half the batch") is None


def test_an_explanation_names_who_holds_what() -> None:
    report = TRANSFORMER.traced(explain=True)
    plain = TRANSFORMER.traced()
    assert report.explanation and plain.explanation is None
    assert (plain.parts, plain.reserved, plain.floor) == (
        report.parts,
        report.reserved,
        report.floor,
    )
    sizes = {(one.name, one.kind, one.count): one.nbytes for one in report.explanation.modules}
    rows = 32 * 256 * 4
    assert sizes["blocks.*.up", "Linear", 8] == 8 * rows * 2048
    assert sizes["blocks.*.act", "GELU", 8] == 8 * rows * 2048
    assert sum(sizes.values()) <= report.parts["activations"]
    assert sum(sizes.values()) > 0.9 * report.parts["activations"]
    lines = report.explanation.lines
    assert {one.name.rpartition(":")[0] for one in lines} == {__file__} or any(
        "test_tracer_what_if.py" in one.name for one in lines
    )


def test_moments_lead_to_the_peak() -> None:
    report = CNN.traced(explain=True)
    assert report.explanation
    moments = report.explanation.moments
    assert 100 < len(moments) <= 201
    fullest = max(moments, key=lambda one: sum(one.in_use))
    of = dict(zip(PARTS, fullest.in_use, strict=True))
    assert of == {**report.parts, "cached": 0}
    assert max(one.reserved for one in moments) == report.reserved
    assert all(sum(one.in_use) <= one.reserved for one in moments)
    assert [one.mark for one in moments if one.mark] == ["step1", "step2"]


def test_an_explanation_survives_the_way_to_the_daemon() -> None:
    report = CNN.traced(explain=True)
    again = loads(report.dumps())
    assert isinstance(again, Report) and isinstance(again.explanation, Explanation)
    assert again == report


@pytest.mark.parametrize(
    ("name", "shown"),
    [("layer1.0.conv2", "layer1.*.conv2"), ("3", "*"), ("h.11", "h.*"), ("conv1", "conv1")],
)
def test_modules_that_differ_in_numbers_are_alike(name: str, shown: str) -> None:
    assert pattern(name) == shown
