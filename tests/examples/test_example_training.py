"""The example of a training loop that CARMA may split: it learns the same as unsplit."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from runpy import run_path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "examples" / "train_accumulating.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("train_accumulating", SCRIPT)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gradients(example: ModuleType, samples: int, part: int) -> tuple[float, list[torch.Tensor]]:
    """In 64-bit floats, in which the order of adding hardly shows."""
    torch.manual_seed(7)
    layers = torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(*layers).double()
    inputs, targets = torch.randn(samples, 5).double(), torch.randint(3, (samples,))
    loss = example.accumulate(model, inputs, targets, part)
    return loss, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("samples", [16, 13, 3, 1])  # whole, and last ones that are not full
@pytest.mark.parametrize("part", [8, 4, 1])
def test_the_parts_gradients_are_the_batch_s(example: ModuleType, samples: int, part: int) -> None:
    loss, whole = gradients(example, samples, samples)
    part_loss, parts = gradients(example, samples, part)
    assert part_loss == pytest.approx(loss)
    assert all(float(grad.abs().max()) > 1e-4 for grad in whole), "nothing was compared"
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_no_part_is_larger_than_it_was_told(example: ModuleType) -> None:
    seen = []
    model = torch.nn.Linear(5, 3)
    model.register_forward_hook(lambda module, given, result: seen.append(len(given[0])))
    example.accumulate(model, torch.randn(13, 5), torch.zeros(13, dtype=torch.long), 4)
    assert seen == [4, 4, 4, 1]


@pytest.mark.long
def test_the_script_learns_the_same_as_carma_starts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--samples", "128", "--batch-size", "64", "--epochs", "2")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])

    def losses(**told: str) -> tuple[str, list[float]]:
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        run_path(str(SCRIPT), run_name="__main__")
        head, *epochs = capsys.readouterr().out.splitlines()
        return head, [float(re.sub(r".* ", "", line)) for line in epochs]

    whole, expected = losses()
    split, found = losses(CARMA_ACCUMULATION_STEPS="4", CARMA_BATCH_SIZE="16")
    assert ("64 samples at a time" in whole, "16 samples at a time" in split) == (True, True)
    assert len(found) == 2 and found == pytest.approx(expected, rel=1e-3)
