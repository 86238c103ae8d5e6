"""Pipeline stages and stage times as people write them, and back.

`2x forward=20ms backward=40ms in=12M weights=320M` is a `Stage`, `load=10ms forward=37ms
sync=backward` a `StageTimes`. Both are parsed into field names and values, so that `carma submit`,
which must start quickly, needs neither type. The ValueError of a bad text has a message for its
author.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

UNITS_S = {"us": 1e6, "ms": 1e3, "s": 1.0}  # per second
UNITS_MIB = {"k": 1024.0, "m": 1.0, "g": 1 / 1024}  # per MiB
_NUMBER = r"(\d{1,9}(?:\.\d{1,20})?(?:e-\d{1,3})?)"
_TIME = _NUMBER + "(us|ms|s)"
_SIZE = _NUMBER + "([kmg])(?:i?b)?"
_COUNT = r"\d{1,4}"
_USUAL = r".*=0(\.0)?[sM]|tensor=1|exposed=1\.0|microbatches=0"  # defaults of a stage

# The field for each word; its suffix is its unit.
OF_STAGE = {
    "forward": "forward_s",
    "backward": "backward_s",
    "in": "in_mib",
    "out": "out_mib",
    "weights": "weights_mib",
    "tensor": "tensor",
    "tensor-data": "tensor_mib",
    "experts": "experts_mib",
    "exposed": "exposed_share",
    "microbatches": "microbatches",
}
OF_TIMES = {
    "load": "load_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "communication": "communication_s",
    "sync": "sync",
}
SYNCS = ("backward", "forward")
GPU = "gpu="  # must come last, since names of GPUs contain spaces
BETWEEN = "|"  # the stages of a layout


def stage(text: str) -> dict[str, Any]:
    """The fields of a `Stage`."""
    words = text.lower().split()
    fields: dict[str, Any] = {}
    if words and re.fullmatch(_COUNT + "x", words[0]):
        fields["replicas"] = _count("its replicas", words.pop(0)[:-1])
    return fields | _fields(words, OF_STAGE)


def stage_times(text: str) -> dict[str, Any]:
    """The fields of a `StageTimes`."""
    body, named, gpu = text.partition(GPU)
    fields = _fields(body.lower().split(), OF_TIMES)
    for name in ("forward", "backward"):
        if OF_TIMES[name] not in fields:
            raise ValueError(f"{text!r} lacks {name}=, as in forward=37ms")
    if not any(value for name, value in fields.items() if name.endswith("_s")):
        raise ValueError(f"{text!r}: the times of an iteration cannot all be 0")
    if named and not gpu.strip():
        raise ValueError(f"{text!r}: {GPU} needs the name of a GPU, as `carma gpus` shows it")
    return {"load_s": 0.0} | fields | ({"gpu": gpu.strip()} if named else {})


def format_fields(fields: Mapping[str, Any], words: dict[str, str]) -> str:
    """A `Stage` (`OF_STAGE`) or `StageTimes`, given by its fields, as text that parses to the same.

    Defaults of a stage are left out.
    """
    parts = [f"{word}={_format(field, fields[field])}" for word, field in words.items()]
    if words is OF_STAGE:
        parts = [word for word in parts if not re.fullmatch(_USUAL, word)]
        return " ".join((f"{fields['replicas']}x", *parts))
    return " ".join((*parts, *([GPU + fields["gpu"]] if fields["gpu"] else [])))


def time_s(text: str) -> float:
    """20ms, 0.02s, 350us."""
    match = re.fullmatch(_TIME, text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a valid stage time; try 20ms, 0.02s or 350us")
    return float(match[1]) / UNITS_S[match[2]]


def _mib(text: str) -> float:
    match = re.fullmatch(_SIZE, text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a valid size; try 12M, 1.5G or 300K")
    return float(match[1]) / UNITS_MIB[match[2]]


def _count(what: str, text: str) -> int:
    if not re.fullmatch(_COUNT, text) or not int(text):
        raise ValueError(f"{text!r} is not a valid number for {what}; try 2")
    return int(text)


def _share(what: str, text: str) -> float:
    if not re.fullmatch(_NUMBER, text) or float(text) > 1:
        raise ValueError(f"{text!r} is not a valid share for {what}; try 0.4")
    return float(text)


def _fields(words: list[str], known: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given or name not in known:
            raise ValueError(f"unknown {word!r}; use NAME=VALUE, where NAME is {', '.join(known)}")
        if known[name] in fields:
            raise ValueError(f"{name}= is given twice")
        fields[known[name]] = _read(name, known[name], value)
    return fields


def _read(name: str, field: str, value: str) -> Any:
    if field.endswith("_s"):
        return time_s(value)
    if field.endswith("_mib"):
        return _mib(value)
    if field.endswith("_share"):
        return _share(name, value)
    if field == "sync":
        if value not in SYNCS:
            raise ValueError(f"unknown sync={value}; use {' or '.join(SYNCS)}")
        return value
    return _count(name, value)


def _format(field: str, value: Any) -> str:
    unit = "s" if field.endswith("_s") else "M" if field.endswith("_mib") else ""
    return f"{value!r}{unit}" if unit else str(value)
