"""An hour of a GPU as bytes, to be kept while no daemon runs."""

from __future__ import annotations

import zlib

from pydantic_core import from_json, to_json

from carmad.core.types import Gpu, GpuId
from carmad.timeline.bins import Bins
from carmad.timeline.hours import Hour
from carmad.timeline.marks import Marks

_MOST_BYTES = 16 << 20  # of JSON
_ITS = ("index", "name", "memory_mib", "parent")


def encode(hour: Hour, gpu: Gpu | None) -> bytes:
    its = {name: getattr(gpu, name) for name in _ITS} if gpu else None
    body = {"gpu": its, "bins": hour.bins.dump(), "marks": hour.marks.dump()}
    return zlib.compress(to_json(body, inf_nan_mode="null"))


def decode(id: GpuId, body: bytes) -> tuple[Hour, Gpu | None]:
    """Raises ValueError for anything else."""
    try:
        told = from_json(zlib.decompressobj().decompress(body, _MOST_BYTES))
        its = told["gpu"]
        gpu = Gpu(id, **{name: its[name] for name in _ITS}) if its else None
        return Hour(Bins.load(told["bins"]), Marks.load(told["marks"])), gpu
    except (zlib.error, LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"it cannot be read: {error!r}") from error
