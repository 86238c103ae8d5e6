"""Data: a trace loads few samples, and after two steps ends the loops over them early.

**Samples.** Data are loaded in one process. Of a dataset with indices, the first SAMPLES that are
requested are read; later requests return one of these. Only their shapes matter. Other datasets are
read as they are.

**The largest batch.** If these samples differ in size, as texts do, more are looked at once two
steps were taken, for LOOK_S seconds. A batch with the largest of them comes next: what is padded is
as long as the longest.

**Loops.** After two steps, a loop over a loader ends as if the data had: after the batch in
progress, or after the first two of a new loop. A loader may end only where its caller expects
that: in a `for`, or where StopIteration is handled. Elsewhere (`next(batches)` in a generator of
the script's) it goes on, and what wraps it ends instead, if that is a loader.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import inspect
import sys
import time
from itertools import islice
from types import FrameType
from typing import Any, Callable, Iterator

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

SAMPLES = 8
BATCHES = 2  # of each loop, after two steps
LOOK_S, LOOK_AT = 0.3, 512  # seconds, samples or batches
_OF_WORKERS = (
    *("num_workers", "timeout", "multiprocessing_context"),
    *("pin_memory", "persistent_workers", "prefetch_factor"),
)
_ENDS = frozenset(dis.opmap[one] for one in ("FOR_ITER", "SEND", "YIELD_FROM") if one in dis.opmap)


class Loaders:
    """`short`: two steps were taken. `largest`: the batch that was given last has the largest
    sample. `more`: how many batches are given on top of BATCHES."""

    def __init__(self, starts_largest: Callable[[], None]) -> None:
        self.short = self.largest = False
        self.more = 0
        self.ended = 0  # loops
        self._starts_largest = starts_largest
        self._read: dict[int, tuple[Any, list[Any]]] = {}  # by id: the dataset, which keeps its id
        self._most: dict[int, Any] = {}  # by the same: the largest sample; None: all are alike
        self._seen: set[int] = set()  # datasets whose largest sample was given

    def install(self) -> None:
        make = DataLoader.__init__
        signature = inspect.signature(make)

        @functools.wraps(make)  # Lightning asks what it takes
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(loader, *args, **kwargs).arguments
            given.pop("self")
            for name in _OF_WORKERS:
                given.pop(name, None)
            for kind in type(loader).__mro__:
                if issubclass(kind, DataLoader) and "__iter__" in vars(kind):
                    self._wrap(kind)
            make(loader, **given)

        DataLoader.__init__ = init
        _MapDatasetFetcher.fetch = lambda fetcher, index: self._fetch(fetcher, index)

    def _wrap(self, kind: Any) -> None:
        begin = kind.__iter__
        if getattr(begin, "is_wrapped", False):
            return

        def __iter__(loader: Any) -> Any:
            return _Batches(self, loader, begin(loader), kind is DataLoader)

        __iter__.is_wrapped = True  # type: ignore[attr-defined]
        kind.__iter__ = __iter__

    def is_over(self, given: int) -> bool:
        return self.short and given >= BATCHES + self.more

    def wants_largest(self, loader: Any, given: int) -> bool:
        """Whether the loop's next batch is to have the largest sample."""
        dataset = loader.dataset
        if not self.short or not given or id(dataset) in self._seen:
            return False
        self._seen.add(id(dataset))
        return not hasattr(dataset, "__getitem__") or self._largest(dataset) is not None

    def next(self, loader: Any, batches: Iterator[Any], largest: bool) -> Any:
        self.largest = largest
        if largest:
            self._starts_largest()
        batch = next(batches)
        if largest and not hasattr(loader.dataset, "__getitem__"):
            return _find_largest(batches, batch)
        return batch

    def _fetch(self, fetcher: Any, index: Any) -> Any:
        if not fetcher.auto_collation:
            return fetcher.collate_fn(fetcher.dataset[index])
        if _has_batches_only(fetcher.dataset):
            return fetcher.collate_fn(fetcher.dataset.__getitems__(index))
        _, samples = self._read.setdefault(id(fetcher.dataset), (fetcher.dataset, []))
        batch = []
        for turn, one in enumerate(index):
            if len(samples) < SAMPLES:
                samples.append(fetcher.dataset[one])
            batch.append(copy.copy(samples[turn % len(samples)]))  # collating may change it
        if self.largest and batch and (most := self._largest(fetcher.dataset)) is not None:
            batch[0] = copy.copy(most)
        return fetcher.collate_fn(batch)

    def _largest(self, dataset: Any) -> Any:
        if id(dataset) not in self._most:
            _, samples = self._read.get(id(dataset), (dataset, []))
            alike = len(set(map(_size, samples))) < 2
            self._most[id(dataset)] = (
                None if alike else _find_largest(_from_everywhere(dataset), max(samples, key=_size))
            )
        return self._most[id(dataset)]


def _has_batches_only(dataset: Any) -> bool:
    kind = type(dataset)
    own = getattr(kind, "__getitem__", Dataset.__getitem__)
    return hasattr(kind, "__getitems__") and own is Dataset.__getitem__


class _Batches:
    """One loop over a loader: what its `__iter__` returns, or that of a class derived from it."""

    def __init__(self, loaders: Loaders, loader: Any, batches: Any, is_plain: bool) -> None:
        self._loaders, self._loader, self._batches = loaders, loader, batches
        self._is_plain = is_plain  # no other loader's loop is inside this one
        self._given = 0

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        loaders = self._loaders
        over = loaders.is_over(self._given) and _may_end(sys._getframe(1))
        if not self._is_plain:
            return self._next_of_others(over)
        largest = loaders.wants_largest(self._loader, self._given)
        if over and not largest:
            loaders.ended += 1
            raise StopIteration
        self._given += 1
        return loaders.next(self._loader, self._batches, largest)

    def _next_of_others(self, over: bool) -> Any:
        """Let the loop inside end by itself, if it can."""
        ended, largest = self._loaders.ended, self._loaders.largest
        batch = next(self._batches)
        more = self._loaders.ended > ended or (self._loaders.largest and not largest)
        if over and not more:
            raise StopIteration
        self._given += 1
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _may_end(frame: FrameType) -> bool:
    """Whether the caller of an iterator's `__next__` expects that it ends."""
    code = frame.f_code
    return code.co_code[frame.f_lasti] in _ENDS or "StopIteration" in code.co_names


def _size(sample: Any) -> int:
    """In elements, letters and tokens."""
    return sum(map(_size_of_leaf, tree_flatten(sample)[0]))


def _size_of_leaf(leaf: Any) -> int:
    if isinstance(leaf, (str, bytes)):
        return len(leaf)
    size = leaf.numel() if isinstance(leaf, torch.Tensor) else getattr(leaf, "size", None)
    return size if isinstance(size, int) else 1  # an array's


def _from_everywhere(dataset: Any) -> Iterator[Any]:
    count = len(dataset)
    for at in range(0, count, max(1, count // LOOK_AT)):
        yield dataset[at]


def _find_largest(others: Iterator[Any], most: Any) -> Any:
    """Among this and some others."""
    until = time.monotonic() + LOOK_S
    with contextlib.suppress(Exception):  # the script has not asked for these
        for one in islice(others, LOOK_AT):
            most = max(most, one, key=_size)
            if time.monotonic() > until:
                break
    return most
