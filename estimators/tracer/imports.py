"""What is called before and after the script's imports; and stand-ins for modules that take long
to import and are hardly needed: torch._dynamo, torch's symbolic shapes, sympy. Where more is asked
of one, the real module is imported then.

torch._dynamo takes as long to import as torch itself. When it makes fake tensors, PyTorch reads two
settings from it and marks some functions; torchvision imports a function that it hardly calls.
PyTorch's shape rules ask symbolic shapes whether a comparison holds, and here sizes are numbers.
Its rule for the type of a result imports sympy, half as slow as torch itself, only to ask whether
an argument is a symbol.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable

import torch

DYNAMO = "torch._dynamo"
CONFIG = f"{DYNAMO}.config"
UTILS = f"{DYNAMO}.utils"
SHAPES = "torch.fx.experimental.symbolic_shapes"
SYMPY = "sympy"
NO_SYMPY = "carma_sympy"  # no module of this name can be imported
_before: list[Callable[[str], None]] = []
_after: defaultdict[str, list[Callable[[Any], None]]] = defaultdict(list)


class _StandIn(types.ModuleType):
    """`known`: what it knows itself."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == NO_SYMPY:  # no argument can be a symbol: its classes have no instances
            return getattr(sys.modules[SYMPY], name) if SYMPY in sys.modules else type(name, (), {})
        if (self.__name__, name) == (DYNAMO, "config"):  # it needs nothing else of it
            return importlib.import_module(CONFIG)
        return getattr(_import_real(self.__name__), name)


def _is_stand_in(name: str) -> bool:
    return isinstance(sys.modules.get(name), _StandIn)


def _import_real(name: str) -> Any:
    """`from torch._dynamo import name` in a module that was given the stand-in asks twice."""
    if name == SHAPES and _is_stand_in(SHAPES):
        del sys.modules[SHAPES]
    elif name != SHAPES and _is_stand_in(DYNAMO):
        for one in (DYNAMO, CONFIG, UTILS):
            sys.modules.pop(one, None)
        del torch._dynamo  # its own modules look for it there while they are imported
        importlib.import_module(DYNAMO)
    return importlib.import_module(name)


def _same(one: Any, other: Any) -> bool:
    return bool(list(one) == list(other) if isinstance(one, (tuple, list)) else one == other)


_TRUTHS = ("expect_true", "guard_bool", "guard_or_false", "guard_or_true", "guard_size_oblivious")
_OF_NUMBERS = {
    **dict.fromkeys((*_TRUTHS, "statically_known_true"), bool),
    "sym_eq": _same,
    "sym_and": lambda *them: all(them),
    "sym_or": lambda *them: any(them),
    "guarding_hint_or_throw": lambda size: size,
    "has_guarding_hint": lambda size: True,
    **dict.fromkeys(("is_nested_int", "has_free_unbacked_symbols"), lambda _: False),
    "free_unbacked_symbols": lambda _: (),
    "GuardOnDataDependentSymNode": type("GuardOnDataDependentSymNode", (RuntimeError,), {}),
}
_OF_DYNAMO = {
    "disable": lambda function=None, *_, **__: function or (lambda wrapped: wrapped),
    "graph_break": lambda *_, **__: None,  # called by optimizers in each step
    "__path__": [str(Path(torch.__file__).parent / "_dynamo")],
}


def before_imports(call: Callable[[str], None]) -> None:
    """Call this with the name of each module that is about to be imported."""
    _watch()
    _before.append(call)


def after_import(name: str, call: Callable[[Any], None]) -> None:
    """Call this with a module once it has been imported."""
    _watch()
    _after[name].append(call)
    if name in sys.modules:
        call(sys.modules[name])


@functools.lru_cache(maxsize=None)  # once
def _watch() -> None:
    importlib_: Any = sys.modules["_frozen_importlib"]
    find = importlib_._find_and_load  # the interpreter calls it by this name
    patched: dict[str, Any] = {}

    def find_and_load(name: str, *args: Any) -> Any:
        if name in sys.modules:
            return find(name, *args)
        for prepare in _before:
            prepare(name)
        module = find(name, *args)
        if name in _after and patched.get(name) is not sys.modules[name]:
            patched[name] = sys.modules[name]  # its package may have imported it
            for patch in _after[name]:
                patch(sys.modules[name])
        return module

    importlib_._find_and_load = find_and_load


def _import_whole(name: str) -> None:
    """The package, before one of its modules is imported."""
    if name.startswith(f"{DYNAMO}.") and name != CONFIG and _is_stand_in(DYNAMO):
        _import_real(DYNAMO)


def _spare_sympy(function: Any) -> None:
    """Have the function import a stand-in. Others hold it already, so it stays the same."""
    sys.modules[NO_SYMPY] = _StandIn(NO_SYMPY)
    code = function.__code__
    names = (NO_SYMPY if name == SYMPY else name for name in code.co_names)
    function.__code__ = code.replace(co_names=tuple(names))


def spare() -> None:
    """Call this before the first fake tensor is made."""
    if SYMPY not in sys.modules:
        _spare_sympy(torch._prims_common.elementwise_dtypes)
    if SHAPES not in sys.modules:
        sys.modules[SHAPES] = _StandIn(SHAPES, **_OF_NUMBERS)
    if DYNAMO not in sys.modules:
        sys.modules[DYNAMO] = torch._dynamo = _StandIn(DYNAMO, **_OF_DYNAMO)
        # Nothing is compiled here.
        sys.modules[UTILS] = _StandIn(UTILS, is_compile_supported=lambda _: False)
        before_imports(_import_whole)
