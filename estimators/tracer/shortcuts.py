"""Shortcuts: a trace skips passes that repeat earlier ones.

An evaluation over 200 batches, or 40 backward passes for one optimizer step, would take
longer than a user waits, and allocate nothing new. Their outputs are created as if they had run. A
call of a model counts as a repetition if the same module was called in the same mode with the same
shapes

- twice before, without gradients; or
- in each of three backward passes since the last optimizer step, with gradients. The first of
  these makes gradients, the second adds to them, the third shows that it goes on like that. Where
  they are gone meanwhile, the script updates the model by hand, which counts as a step.

Calls of the modules inside are no calls of a model. Inputs that require gradients, and outputs
that are more than tensors and plain values in the usual containers, are always traced. So is,
with gradients, a model with hooks that wait for them, as DeepSpeed has.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .recording import Recorder

QUIET, PASSES = 2, 3
_PLAIN = (int, float, str, bool, type(None))


class Repeats:
    def __init__(
        self, recorder: Recorder, calls: Callable[[Any], None], passed: Callable[[int], None]
    ) -> None:
        """`calls` is called with a model before it is called; `passed` after a backward pass, with
        how many there have been."""
        self._recorder = recorder
        self._calls, self._note_pass = calls, passed
        self.passed = 0  # backward passes
        self._inside = False  # a call of a model
        self._backward = False
        self._passes = 0  # backward passes since the last optimizer step
        self._quiet: dict[Any, list[Any]] = {}  # outputs by call, without gradients
        self._loud: dict[Any, list[Any]] = {}  # with; since the last optimizer step

    def install(self) -> None:
        run, backward = torch.nn.Module.__call__, torch.autograd.backward

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._backward:  # checkpointing calls modules from there
                return run(module, *args, **kwargs)
            self._inside = True
            try:
                self._calls(module)
                return self._call(run, module, args, kwargs)
            finally:
                self._inside = False

        def count(*args: Any, **kwargs: Any) -> None:
            if self._backward:
                backward(*args, **kwargs)
                return
            self._backward = True
            try:
                backward(*args, **kwargs)
            finally:
                self._backward = False
                self._passes += 1
            self.passed += 1
            self._note_pass(self.passed)

        torch.nn.Module.__call__ = call
        torch.autograd.backward = count

    def restart(self) -> None:
        """In a process that was forked."""
        self.passed = self._passes = 0
        self._quiet.clear()
        self._loud.clear()

    def note_step(self) -> None:
        self._recorder.choices.note_step()
        self._passes = 0
        self._loud.clear()

    def _call(self, run: Any, module: Any, args: Any, kwargs: Any) -> Any:
        loud = torch.is_grad_enabled()
        if loud and self._passes and not _has_gradients(module):
            self.note_step()
        question = None if loud and _has_hooks(module) else _question(module, args, kwargs)
        known = (self._loud if loud else self._quiet).setdefault(question, [])
        enough = self._passes >= PASSES and len(known) >= PASSES if loud else len(known) >= QUIET
        enough = enough and not self._recorder.choices.plan.whole
        if question is not None and enough and known[-1] is not None:
            self._recorder.note("passes that repeat earlier ones were left out")
            self._recorder.skipped = True
            return self._again(known[-1])
        out = run(module, *args, **kwargs)
        known.append(_answer(out))
        return out

    def _again(self, answer: Any) -> Any:
        parts, form = answer
        return tree_unflatten([self._make(*p) if isinstance(p, tuple) else p for p in parts], form)

    def _make(self, shape: Any, stride: Any, dtype: Any, requires_grad: bool) -> Any:
        return self._recorder.new(shape, dtype, stride).requires_grad_(requires_grad)


def _has_hooks(module: Any) -> bool:
    return any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())


def _has_gradients(module: Any) -> bool:
    """Whether a parameter has one, or none may have."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return not trained or any(parameter.grad is not None for parameter in trained)


def _question(module: Any, args: Any, kwargs: Any) -> Any:
    """What makes two calls the same; None for what must be traced."""
    leaves, _ = tree_flatten((args, kwargs))
    shapes: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.requires_grad:
                return None
            shapes.append((leaf.shape, leaf.dtype, leaf.device))
        elif isinstance(leaf, _PLAIN):
            shapes.append(leaf)
        else:
            return None
    return id(module), module.training, torch.is_autocast_enabled(), len(kwargs), tuple(shapes)


def _answer(out: Any) -> Any:
    """How to make an output again, without keeping it; None if that cannot be."""
    leaves, form = tree_flatten(out)
    parts: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, FakeTensor) and leaf.is_cuda:
            parts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
        elif isinstance(leaf, _PLAIN):
            parts.append(leaf)
        else:
            return None
    return parts, form
