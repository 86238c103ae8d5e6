# Written by docs/generate.py from the code. Do not edit.
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict


class EventOut(TypedDict):
    id: str
    at: str
    event: str
    text: str
    job: NotRequired[EventJobOut]
    gpu: NotRequired[GpuRefOut]
    count: NotRequired[int]
    cause: NotRequired[str]

class EventJobOut(TypedDict):
    id: int
    label: str
    user: str
    name: str
    state: str
    code: str
    attempt: int
    gpus: list[str]

class GpuRefOut(TypedDict):
    id: str
    index: int | None
