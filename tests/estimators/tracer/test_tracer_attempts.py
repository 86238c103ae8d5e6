"""Scripts whose way depends on something that the trace made up: each is tried until it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from carmad.plugin import Refusal
from tests.estimators.tracer.test_tracer_script import (
    PARAMETERS,
    job,
    looked,
    loop,
    report,
    written,
)

__all__ = ["job"]

BY_HAND = """
for turn in range(10):
    model.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).mean().backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
"""
IN_PLACE = """
for turn in range(10):
    model(torch.randn(64, 1024, device="cuda")).mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""
TRAIN = """
loss = torch.full((), 9.0, device="cuda")
for turn in range(10):
    optimizer.zero_grad()
    y = model(torch.randn(64, 1024, device="cuda"))
    loss = y.mean()
    {}
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("update", [BY_HAND, IN_PLACE])
def test_an_update_by_hand_goes_on(update: str, job: Path) -> None:
    seen = report(job, written(job, loop(update).replace("optimizer = ", "# ")))
    assert seen.notes[0] == "there is no optimizer: traced until its backward pass 4"
    assert seen.parts["parameters"] >= PARAMETERS
    assert PARAMETERS <= seen.parts["gradients"] < 1.1 * PARAMETERS


def test_gradients_that_are_gone_are_made_again(job: Path) -> None:
    """Although the optimizer takes no step: then the fourth pass would not be left out."""
    assert report(job, written(job, loop(BY_HAND))).steps == 0


@pytest.mark.parametrize(
    "check",
    [
        "assert torch.isfinite(loss)",
        "assert torch.isfinite(y).all(), 'not finite'",
        "assert (y < 10).all()",
        "assert not torch.isnan(y).any()",
        "assert loss.item() < 1",
        "assert loss.detach().cpu().numpy() < 1",
        "if not torch.isfinite(loss): raise SystemExit('diverged')",
        "if not torch.isfinite(loss).item():\n        raise RuntimeError('diverged')",
        "if len(torch.unique(y.argmax(1))) > 10: raise ValueError('more than classes')",
        "if torch.equal(y, y): raise ValueError('no change')",
        "assert torch.isfinite(y).all()\n    assert torch.isfinite(loss)\n    assert loss < 1",
        "assert (\n        torch.isfinite(y)\n        .all()\n    ), 'not finite'",
        # Not all want the same answer.
        "if torch.isnan(loss) or not torch.isfinite(loss): raise SystemExit('diverged')",
        "assert not torch.isnan(y).any() and torch.isfinite(y).all()",
        "assert torch.isfinite(y).all() and not torch.isnan(y).any()",
    ],
)
def test_a_check_of_values_does_not_end_the_trace(check: str, job: Path) -> None:
    seen = report(job, written(job, loop(TRAIN.format(check))))
    assert seen.steps == 2
    # What an assertion wants is read from its text.
    first = check.startswith("assert") and not any(
        one in check for one in ("loss.item", "numpy", " and ")
    )
    first = first or "finite" in check  # numbers are
    assert first != any("decides: taken so that it goes on" in note for note in seen.notes)


def test_a_loop_until_it_converges_turns(job: Path) -> None:
    text = TRAIN.format("").replace("for turn in range(10)", "while loss > 0.1")
    assert report(job, written(job, loop(text))).steps == 2


def test_a_loop_that_turns_ends_again(job: Path) -> None:
    """As a solver does, with steps that are made smaller until they are good enough."""
    text = """
        def move(at, out, step):
            if step.norm() <= 1:
                return at + 0.1, out + step
            return at, out
        def solve(x):
            at, out = torch.zeros((), device="cuda"), torch.zeros_like(x)
            while at < 1:
                at, out = move(at, out, model(x))
            return out
        for turn in range(10):
            solve(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_a_pass_that_was_left_out_is_not_blamed_on_the_script(job: Path) -> None:
    text = """
        for turn in range(5):
            y = model(torch.randn(64, 1024, device="cuda"))
            y.mean().backward()
            assert y.grad_fn is not None
        raise ValueError("mine")
        """
    answer = looked(job, written(job, loop(text)))
    assert isinstance(answer, Refusal) and answer.crash.endswith("ValueError: mine")


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("if torch.isfinite(y).all(): y.sum()\n    y @ y", True),  # shapes do not fit
        ("total = loss.item()\n    y @ y", True),
        ("total = loss.item()\n    F.cross_entropy(y, torch.zeros(63).long().cuda())", True),
        ("total = loss.item()\n    y.view(-1, wide)", True),
        ("total = loss.item()\n    open('missing.csv')", True),
        ("assert loss.item() > 1e9", False),  # no number was tried with which it would hold
        ("if loss.item() < 9: raise SystemExit('too small')", False),
        ("y.argmax(1).view(int(loss.item()), 2)", False),  # the number shows in the message
        ("best = y if 0.1 < loss.item() < 0.9 else None\n    best.sum()", False),
        ("torch.stack([y] if 0.1 < loss.item() < 0.9 else [])", False),
    ],
)
def test_what_stops_whatever_it_is_told_stops_by_itself(text: str, is_own: bool, job: Path) -> None:
    script = written(job, loop("import torch.nn.functional as F" + TRAIN.format(text)))
    answer = looked(job, script)
    assert isinstance(answer, Refusal), answer
    assert bool(answer.crash) is is_own, answer


def test_of_two_mistakes_the_one_that_comes_later_is_told_if_the_first_is_none(job: Path) -> None:
    text = TRAIN.format("assert torch.isfinite(loss)\n    y @ y")
    answer = looked(job, written(job, loop(text)))
    assert isinstance(answer, Refusal)
    assert "RuntimeError: a and b must have same reduction dim" in answer.crash
