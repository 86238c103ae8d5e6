"""A model of PyTorch's CUDA caching allocator: how much it reserves for a job's requests.

One stream only. Sizes are those in `c10/core/AllocatorConfig.h`: requests are rounded to 512 bytes;
up to 1 MiB they share segments of 2 MiB, below 10 MiB segments of 20 MiB, and larger ones get a
segment of their own in steps of 2 MiB. Segments are split, merged and kept until the cache is
emptied; NVML sees segments, not tensors.

Of free blocks of one size, the one at the lowest address is taken, and where the driver puts a
segment is not known. With nanoGPT's training that decides over 2.3 GiB: so there are layouts.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Iterator

MIB = 1 << 20
UNIT = 512
SMALL = MIB  # the largest request that the small pool serves
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB  # from here a request gets a segment of its own size
STEP = 2 * MIB  # which is rounded up to this


class OutOfMemory(Exception):
    """The capacity is exceeded, even with the cache emptied."""


@dataclass(frozen=True)
class Options:
    """Options in PYTORCH_CUDA_ALLOC_CONF that affect how much is reserved. Sizes in bytes."""

    expandable: bool = False  # one segment per pool, which grows at its end
    max_split: int | None = None  # blocks of this size and more are never split
    divisions: int = 1  # round requests up to this many steps between powers of two
    large_segment: int = 20 * MIB


DEFAULTS = Options()


def options(text: str) -> tuple[Options, tuple[str, ...]]:
    """The options in the variable's text, and a note for each key that is not modelled."""
    found: dict[str, object] = {}
    notes = []
    for key, value in re.findall(r"(\w+)\s*:\s*(\[[^]]*\]|[^,\s]+)", text):
        if key == "expandable_segments":
            found["expandable"] = value.lower() in ("true", "1")
        elif key == "max_split_size_mb" and value.isdigit():
            found["max_split"] = int(value) * MIB
        elif key == "roundup_power2_divisions" and value.isdigit():
            found["divisions"] = int(value)
        elif key == "large_segment_size_mb" and value.isdigit():
            found["large_segment"] = int(value) * MIB
        else:
            notes.append(f"the allocator's option {key}:{value} is not modelled")
    return Options(**found), tuple(notes)  # type: ignore[arg-type]


class Block:
    """A part of a segment, linked to its neighbours."""

    __slots__ = ("address", "after", "before", "free", "size")

    def __init__(self, address: int, size: int, before: Block | None = None) -> None:
        self.address, self.size, self.free = address, size, True
        self.before = before
        self.after: Block | None = None


class Pool:
    """The free blocks of small or of large requests, by size, then address."""

    __slots__ = ("free", "last", "page", "small")

    def __init__(self, small: bool, page: int) -> None:
        self.small, self.page = small, page
        self.free: list[tuple[int, int, Block]] = []
        self.last: Block | None = None  # the end of the expandable segment

    def put(self, block: Block) -> None:
        block.free = True
        insort(self.free, (block.size, block.address, block))

    def take(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class Allocator:
    """Serves requests by name. `reserved` and `allocated` are in bytes."""

    def __init__(
        self, options: Options = DEFAULTS, capacity: int | None = None, layout: int = 0
    ) -> None:
        """`layout`: segments follow each other in the order in which they were made, or, with any
        other number, lie in one that is drawn with it."""
        self.options, self.capacity = options, capacity
        self._draw = random.Random(layout).random if layout else lambda: 0.0
        self.reserved = self.allocated = 0
        self._live: dict[object, tuple[Block, Pool]] = {}
        self._small = Pool(True, SMALL_SEGMENT)
        self._large = Pool(False, options.large_segment)
        self._address = 0  # where the next segment may begin

    def allocate(self, name: object, nbytes: int) -> None:
        """Raises OutOfMemory if the allocator has a capacity that is exceeded."""
        if nbytes <= 0:
            return  # an empty tensor has no memory
        size = self._round_up(nbytes)
        pool = self._small if size <= SMALL else self._large
        block = self._fitting(pool, size) or self._grow(pool, size)
        block.free = False
        if self._splits(pool, block.size - size, size):
            self._split(pool, block, size)
        self._live[name] = block, pool
        self.allocated += block.size

    def release(self, name: object) -> None:
        held = self._live.pop(name, None)
        if held is None:
            return
        block, pool = held
        self.allocated -= block.size
        if block.after is not None and block.after.free:
            pool.take(block.after)
            self._join(pool, block, block.after)
        if block.before is not None and block.before.free:
            pool.take(block.before)
            block, merged = block.before, block
            self._join(pool, block, merged)
        pool.put(block)

    def empty_cache(self) -> None:
        """Free segments without live blocks; of an expandable one, its unused pages."""
        for pool in (self._small, self._large):
            kept: list[tuple[int, int, Block]] = []
            for entry in pool.free:
                block = entry[2]
                if self.options.expandable:
                    kept += [(one.size, one.address, one) for one in self._unmap(pool, block)]
                elif block.before is None and block.after is None:
                    self.reserved -= block.size
                else:
                    kept.append(entry)
            pool.free = sorted(kept)

    def blocks(self) -> Iterator[Block]:
        """All reserved blocks, in no particular order."""
        for block, _ in self._live.values():
            yield block
        for pool in (self._small, self._large):
            for _, _, block in pool.free:
                yield block

    def _round_up(self, nbytes: int) -> int:
        divisions = self.options.divisions
        if divisions > 1 and nbytes > UNIT * divisions:
            step = (1 << (nbytes.bit_length() - 1)) // divisions
            return -(-nbytes // step) * step
        return max(UNIT, -(-nbytes // UNIT) * UNIT)

    def _fitting(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that is large enough, removed from its pool."""
        free = pool.free
        at = bisect_left(free, (size,))
        if at + 1 < len(free) and free[at][2] is pool.last:
            at += 1  # the growing end counts as large as it could become
        if at == len(free):
            return None
        found = free[at][2]
        limit = self.options.max_split
        if limit is not None and limit <= found.size:
            most = size + self.options.large_segment if size >= limit else limit
            if found.size >= most:
                return None  # kept whole, for a request as large
        del free[at]
        return found

    def _splits(self, pool: Pool, rest: int, size: int) -> bool:
        if pool.small or self.options.expandable:
            return rest >= UNIT
        limit = self.options.max_split
        return rest > SMALL and (limit is None or size < limit)

    def _split(self, pool: Pool, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, before=block)
        rest.after = block.after
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = size, rest
        if pool.last is block:
            pool.last = rest
        pool.put(rest)

    def _join(self, pool: Pool, block: Block, next_one: Block) -> None:
        block.size += next_one.size
        block.after = next_one.after
        if block.after is not None:
            block.after.before = block
        if pool.last is next_one:
            pool.last = block

    def _grow(self, pool: Pool, size: int) -> Block:
        """A new block, including any free memory at the segment's end."""
        needed = self._growth(pool, size)
        if self.capacity is not None and self.reserved + needed > self.capacity:
            self.empty_cache()
            needed = self._growth(pool, size)
            if self.reserved + needed > self.capacity:
                raise OutOfMemory(f"{size / MIB:.0f} MiB asked for, {self.reserved / MIB:.0f} held")
        self.reserved += needed
        last = pool.last
        if last is not None and last.free:
            pool.take(last)
            last.size += needed
            return last
        if last is not None:
            last.after = Block(last.address + last.size, needed, before=last)
            pool.last = last.after
            return pool.last
        place = self._address + (int(self._draw() * (1 << 20)) << 80)
        block = Block(-(-place // pool.page) * pool.page, needed)
        self._address += 1 << 50  # far from all others: it may grow
        if self.options.expandable:
            pool.last = block
        return block

    def _growth(self, pool: Pool, size: int) -> int:
        if self.options.expandable:
            last = pool.last
            # The end may be free and large enough, and yet not to be split (max_split_size_mb).
            missing = max(0, size - (last.size if last is not None and last.free else 0))
            return -(-missing // pool.page) * pool.page
        if pool.small or size < OWN_SEGMENT:
            return pool.page
        return -(-size // STEP) * STEP

    def _unmap(self, pool: Pool, block: Block) -> list[Block]:
        """What is left of a free block when its whole pages are freed: at most its two ends.

        Simplification: the gap is not filled again; the segment grows at its end instead.
        """
        first = -(-block.address // pool.page) * pool.page
        end = block.address + block.size
        final = end // pool.page * pool.page
        if final <= first:
            return [block]
        self.reserved -= final - first
        left = Block(block.address, first - block.address, before=block.before)
        right = Block(final, end - final)
        right.after = block.after
        if block.before is not None:
            block.before.after = left if left.size else None
        if block.after is not None:
            block.after.before = right if right.size else None
        if pool.last is block:  # nothing follows it: it ended with a whole page
            pool.last = left if left.size else block.before
        return [one for one in (left, right) if one.size]
