# Written by docs/generate.py from the code. Do not edit.
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict


class ResultOut(TypedDict):
    id: int
    label: str
    ok: bool
    message: str
    count: NotRequired[int]
