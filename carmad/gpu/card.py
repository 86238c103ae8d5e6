"""An emulated GPU: one small file that jobs and the telemetry source share, as they share a driver.

The file is mapped into every process that uses it, and changed under `flock`. An entry belongs to
one process; when that is dead (pid and start time) the next reader removes the entry, so a job
may be killed at any moment and its memory is freed, as with a real driver. All users of a card
must be in one pid namespace. Any user may write to it: it is for trying CARMA out, and protects
nothing.

Interference. Demands are what a job uses when alone, as shares of the GPU. With S and D the sums of
the SM and DRAM demands of all jobs that run kernels, and s a job's own part of S, it runs at

    rate = min(1 / max(1, S, D), 1 / (1 + SHARING_COST · s · (S - s)))

which is the simulator's law (`carma_simulator.interference.Conserving`): together, jobs do no more
than the GPU can, and where it has room, they lose what pairs on real GPUs were measured to lose.

Suspension. The driver (`emulated_driver`) locks an entry: its process waits in its next call. A
checkpointed entry keeps how much its process held, but takes nothing of the card, and readings are
without it. If it is restored on another card, the old entry says where, and the process follows.

Limits. The driver knows the processes of an attempt by a number that its directory gives
(`group_of`), which its jobs find in their environment, as the real one does by their cgroup. What a
group is guaranteed and does not hold is taken from what others can allocate; beyond its limit, it
gets nothing more.

Jobs may use the system's Python: this runs on 3.8.
One `Card` serves one thread of one process: open it after a fork, not before.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import NamedTuple

SUFFIX = ".card"
# In a container: where the host's /proc is, which knows every process by the host's pid.
PROC = os.environ.get("CARMA_EMULATED_PROC", "/proc")
ATTEMPT = "CARMA_ATTEMPT_DIR"  # in the environment: the attempt that a process belongs to
SHARING_COST = 0.711  # as the simulator's law has it, for processes on streams and under MPS
POWER_EXPONENT = 0.6  # as measured (`carmad.gpu.kinds`): 43 % of the range at 25 % activity
REAP_S = 0.25  # how long the demand of a dead job may still slow down its neighbours
WAIT_S = 0.01  # between two looks of a suspended process

# The file is an array of 8-byte words: a header, then SLOTS entries of SLOT words, then as many
# limits of LIMIT words.
MAGIC = int.from_bytes(b"CARMA\0\0\3", "little")  # the last byte is the layout's version
_MAGIC, _INDEX, _TOTAL, _LOST, _IDLE_W, _BUSY_W = range(6)
_ENERGY_MJ, _ENERGY_AT, _REAPED_AT, _ISLAND = range(6, 10)
NAME_AT, NAME_LENGTH = 128, 64  # bytes
HEADER = (NAME_AT + NAME_LENGTH) // 8
SLOT, SLOTS = 9, 64
_PID, _START, _MEMORY, _SM, _OCCUPANCY, _DRAM, _RUNNING, _HOLD, _GROUP = range(SLOT)
_ENTRIES = range(HEADER, HEADER + SLOT * SLOTS, SLOT)
LIMIT = 3
_OF, _GUARANTEED, _MOST = range(LIMIT)
WORDS = _ENTRIES.stop + LIMIT * SLOTS
_LIMITS = range(_ENTRIES.stop, WORDS, LIMIT)
# The lowest bits of _HOLD. The others, if it is FREE: for how many µs it was suspended; LOCKED or
# CHECKPOINTED: since when (monotonic), as if that had been without a break; MOVED: where to, as
# the index of the card × WORDS + the new entry.
FREE, LOCKED, CHECKPOINTED, MOVED = range(4)
_HOLD_BITS = 2


class OutOfMemory(Exception):
    """The card has no `tried_mib` left for this process. Of one whose group has a limit, `free_mib`
    and `total_mib` are what that leaves. `others` are the other processes, as (pid, MiB)."""

    def __init__(
        self,
        tried_mib: int,
        free_mib: int,
        total_mib: int,
        own_mib: int,
        others: tuple[tuple[int, int], ...],
    ) -> None:
        super().__init__(f"tried to allocate {tried_mib} MiB, {free_mib} MiB are free")
        self.tried_mib = tried_mib
        self.free_mib = free_mib
        self.total_mib = total_mib
        self.own_mib = own_mib
        self.others = others


class CardLost(Exception):
    """The card has been marked lost and does not answer."""


class Tenant(NamedTuple):
    """One process on a card."""

    pid: int
    memory_mib: int
    sm: float
    occupancy: float
    dram: float
    running: bool
    group: int = 0
    rate: float = 0.0  # the speed of its kernels, if it runs any


class Reading(NamedTuple):
    """A card at one moment. The three activities are 0–1."""

    tenants: tuple[Tenant, ...]
    sm_active: float
    sm_occupancy: float
    dram_active: float
    power_w: float
    energy_mj: int


def power_w(idle_w: float, busy_w: float, sm_active: float, dram_active: float) -> float:
    """Power of a GPU in W, from the busier of its SMs and its DRAM (0–1)."""
    busy = min(1.0, max(sm_active, dram_active))
    return idle_w + (busy_w - idle_w) * math.pow(busy, POWER_EXPONENT)


def create(
    path: str,
    *,
    index: int,
    name: str,
    memory_mib: int,
    idle_w: float,
    busy_w: float,
    island: int = 0,
) -> None:
    """Create the card at `path` atomically. Raises FileExistsError."""
    words = bytearray(WORDS * 8)
    ints, floats = memoryview(words).cast("q"), memoryview(words).cast("d")
    ints[_MAGIC], ints[_INDEX], ints[_TOTAL] = MAGIC, index, memory_mib
    ints[_ISLAND] = island
    floats[_IDLE_W], floats[_BUSY_W] = idle_w, busy_w
    floats[_ENERGY_AT] = monotonic()
    encoded = name.encode()[:NAME_LENGTH]
    words[NAME_AT : NAME_AT + len(encoded)] = encoded
    draft = f"{path}.{os.getpid()}"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.fchmod(fd, 0o666)  # jobs of every user write here, whatever the umask
        os.write(fd, words)
        os.link(draft, path)
    finally:
        os.close(fd)
        os.unlink(draft)  # noqa: PTH108


def paths(directory: str) -> list[str]:
    """The cards of `directory`, in no particular order. Raises OSError."""
    return [entry.path for entry in os.scandir(directory) if entry.name.endswith(SUFFIX)]


class Card:
    """An open card. Raises OSError if `path` does not exist, ValueError if it is not a card."""

    def __init__(self, path: str) -> None:
        self.uuid = path.rpartition("/")[2][: -len(SUFFIX)]
        self._fd = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(self._fd, WORDS * 8)
        except (ValueError, OSError):
            os.close(self._fd)
            raise
        self._ints = memoryview(self._map).cast("q")
        self._floats = memoryview(self._map).cast("d")
        self._directory = path.rpartition("/")[0]
        self._slot = 0  # word at which this process's entry starts; 0: not attached
        if self._ints[_MAGIC] != MAGIC:
            self.close()
            raise ValueError(f"{path} is not an emulated card of this version")
        self.index = self._ints[_INDEX]
        self.island = self._ints[_ISLAND]
        self.memory_mib = self._ints[_TOTAL]
        self.name = self._map[NAME_AT : NAME_AT + NAME_LENGTH].rstrip(b"\0").decode()

    def close(self) -> None:
        """Detach, and close the file."""
        if self._slot:
            self.detach()
        self._unmap()

    def _unmap(self) -> None:
        self._ints.release()
        self._floats.release()
        self._map.close()
        os.close(self._fd)

    # Used by jobs.

    def attach(self) -> None:
        """Register this process: it is visible on the card from now on."""
        ints, pid = self._ints, _own_pid()
        with self.lock():
            self._reap(monotonic())
            self._refuse_if_lost()
            slot = self._vacancy()
            ints[slot + _MEMORY] = ints[slot + _RUNNING] = ints[slot + _HOLD] = 0
            ints[slot + _START] = _start_of(pid) or 0
            ints[slot + _GROUP] = group_of(os.environ.get(ATTEMPT, ""))
            ints[slot + _PID] = pid  # last: only now is the entry valid
            self._slot = slot

    def allocate(self, mib: int) -> None:
        """Allocate `mib` more. Raises OutOfMemory without allocating anything."""
        with self._turn():
            ints = self._ints
            self._reap(monotonic())
            self._refuse_if_lost()
            group, tenants = ints[self._slot + _GROUP], self._tenants()
            free = self._free(group, tenants)
            left, total = self._room(group, tenants)
            if mib > min(left, free):
                others = tuple((t.pid, t.memory_mib) for t in tenants if t.pid != _own_pid())
                own = ints[self._slot + _MEMORY]
                raise OutOfMemory(mib, min(free, left), total, own, others)
            ints[self._slot + _MEMORY] += mib

    def launch(self, sm: float, occupancy: float, dram: float) -> None:
        """Run kernels with this demand, 0–1 each, until the next call."""
        with self._turn():
            ints, floats, slot = self._ints, self._floats, self._slot
            self._refuse_if_lost()
            self._account(monotonic())
            floats[slot + _SM] = sm
            floats[slot + _OCCUPANCY] = occupancy
            floats[slot + _DRAM] = dram
            ints[slot + _RUNNING] = 1

    def rate(self) -> float:
        """Speed of this process's kernels; 1 is as fast as alone. Seldom takes the lock."""
        self._wait()
        ints, floats = self._ints, self._floats
        self._refuse_if_lost()
        now = monotonic()
        if now - floats[_REAPED_AT] > REAP_S:
            with self.lock():
                self._reap(now)
        sm = dram = 0.0
        for slot in _ENTRIES:
            if ints[slot] and ints[slot + _RUNNING] and not self.hold(slot):
                sm += floats[slot + _SM]
                dram += floats[slot + _DRAM]
        return _rate(floats[self._slot + _SM], sm, dram)

    def suspended_s(self) -> float:
        """For how long this process has been suspended, all in all."""
        while hold := self._own_hold():
            if hold != MOVED:
                break
            self._follow()
        value = self._ints[self._slot + _HOLD] >> _HOLD_BITS
        return (_now_us() - value if hold else value) / 1e6

    def detach(self) -> None:
        """Free everything and unregister this process."""
        while self._own_hold() == MOVED:
            self._follow()
        with self.lock():
            self._account(monotonic())
            self._vacate(self._slot)
        self._slot = 0

    def _wait(self) -> None:
        """While this process is suspended."""
        while hold := self._own_hold():
            if hold == MOVED:
                self._follow()
            else:
                if hold != CHECKPOINTED:  # its memory is not on the card
                    self._refuse_if_lost()
                sleep(WAIT_S)

    def _own_hold(self) -> int:
        return self.hold(self._slot) if self._slot else FREE

    def _follow(self) -> None:
        """Become the card to which this process has been moved."""
        index, slot = divmod(self._ints[self._slot + _HOLD] >> _HOLD_BITS, WORDS)
        for path in paths(self._directory):
            card = Card(path)
            if card.index == index:
                break
            card.close()
        with self.lock():
            self._vacate(self._slot)
        self._unmap()
        self.__dict__.update(card.__dict__, _slot=slot)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The kernel releases it when its holder dies."""
        fd = self._fd
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock, taken once this process is not suspended."""
        while True:
            self._wait()
            with self.lock():
                if not self._own_hold():
                    yield
                    return

    # Used by the driver, with the lock held.

    def entry(self, pid: int) -> int:
        """The entry that this process has here; 0: none."""
        ints = self._ints
        for slot in _ENTRIES:
            if ints[slot] == pid and self.hold(slot) != MOVED and _lives(pid, ints[slot + _START]):
                return slot
        return 0

    def hold(self, slot: int) -> int:
        """FREE, LOCKED, CHECKPOINTED or MOVED."""
        return self._ints[slot + _HOLD] & MOVED

    def set_hold(self, slot: int, hold: int) -> None:
        """FREE, LOCKED or CHECKPOINTED."""
        self._account(monotonic())
        was, value = self.hold(slot), self._ints[slot + _HOLD] >> _HOLD_BITS
        if (was == FREE) != (hold == FREE):
            value = _now_us() - value
        self._ints[slot + _HOLD] = value << _HOLD_BITS | hold

    def held_mib(self, slot: int) -> int:
        return self._ints[slot + _MEMORY]

    def has_room(self, mib: int, group: int = 0) -> bool:
        """For one more process of this group with that much."""
        self._reap(monotonic())
        tenants = self._tenants()
        left, _ = self._room(group, tenants)
        return mib <= min(left, self._free(group, tenants))

    def group(self, slot: int) -> int:
        return self._ints[slot + _GROUP]

    def limit(self, group: int, guaranteed_mib: int, most_mib: int) -> None:
        """Set a group's limits. Raises RuntimeError if too many have any."""
        ints = self._ints
        for at in sorted(_LIMITS, key=lambda at: ints[at + _OF] != group):
            if ints[at + _OF] in (group, 0):
                ints[at + _GUARANTEED], ints[at + _MOST] = guaranteed_mib, most_mib
                ints[at + _OF] = group
                return
        raise RuntimeError(f"an emulated card takes no more than {SLOTS} limits")

    def lift(self, group: int) -> None:
        """Remove a group's limits, if it has any."""
        for at in _LIMITS:
            if self._ints[at + _OF] == group:
                self._ints[at + _OF] = 0

    def admit(self, old: Card, slot: int) -> None:
        """Take over a checkpointed entry of another card, whose lock is held as well: here, it is
        locked."""
        self._account(monotonic())
        new = self._vacancy()
        for word in range(SLOT):
            if word != _PID:
                self._ints[new + word] = old._ints[slot + word]
        self._ints[new + _HOLD] += LOCKED - CHECKPOINTED
        self._ints[new + _PID] = old._ints[slot + _PID]
        old._ints[slot + _HOLD] = (self.index * WORDS + new) << _HOLD_BITS | MOVED

    # Used by observers.

    @property
    def is_lost(self) -> bool:
        return bool(self._ints[_LOST])

    def set_lost(self, lost: bool) -> None:
        """Make the card fail, or bring it back: fault injection for tests and demos."""
        self._ints[_LOST] = lost

    def read(self) -> Reading:
        """The current state of the card. Integrates its energy up to now."""
        with self.lock():
            now = monotonic()
            self._reap(now)
            self._account(now)
            sm, occupancy, dram = self._load()
            return Reading(
                self._tenants(),
                sm,
                occupancy,
                dram,
                self._power(sm, dram),
                int(self._floats[_ENERGY_MJ]),
            )

    # Called with the lock held.

    def _vacancy(self) -> int:
        for slot in _ENTRIES:
            if not self._ints[slot]:
                return slot
        raise RuntimeError(f"an emulated card takes no more than {SLOTS} processes")

    def _vacate(self, slot: int) -> None:
        self._ints[slot + _PID] = self._ints[slot + _HOLD] = 0

    def _tenants(self) -> tuple[Tenant, ...]:
        ints, floats = self._ints, self._floats
        found = tuple(
            Tenant(
                ints[slot],
                ints[slot + _MEMORY],
                floats[slot + _SM],
                floats[slot + _OCCUPANCY],
                floats[slot + _DRAM],
                bool(ints[slot + _RUNNING]) and not self.hold(slot),
                ints[slot + _GROUP],
            )
            for slot in _ENTRIES
            if ints[slot] and self.hold(slot) < CHECKPOINTED
        )
        running = [tenant for tenant in found if tenant.running]
        sm, dram = sum(tenant.sm for tenant in running), sum(tenant.dram for tenant in running)
        return tuple(
            tenant._replace(rate=_rate(tenant.sm, sm, dram)) if tenant.running else tenant
            for tenant in found
        )

    def _free(self, group: int, tenants: tuple[Tenant, ...]) -> int:
        """What this group could allocate if it had no limit: what is guaranteed to others is not
        for it."""
        free = self.memory_mib - sum(tenant.memory_mib for tenant in tenants)
        for at in _LIMITS:
            other = self._ints[at + _OF]
            if other and other != group:
                free -= max(0, self._ints[at + _GUARANTEED] - _memory_of(other, tenants))
        return max(0, free)

    def _room(self, group: int, tenants: tuple[Tenant, ...]) -> tuple[int, int]:
        """What its own limit leaves it, and all that it may have."""
        for at in _LIMITS:
            if group and self._ints[at + _OF] == group:
                most = self._ints[at + _MOST]
                return max(0, most - _memory_of(group, tenants)), most
        return self.memory_mib, self.memory_mib

    def _load(self) -> tuple[float, float, float]:
        """SM activity, SM occupancy and DRAM activity of all kernels together: one that is slowed
        causes less of each."""
        tenants = self._tenants()
        sm = sum(tenant.rate * tenant.sm for tenant in tenants)
        occupancy = sum(tenant.rate * tenant.occupancy for tenant in tenants)
        dram = sum(tenant.rate * tenant.dram for tenant in tenants)
        return min(1.0, sm), min(1.0, occupancy), min(1.0, dram)

    def _power(self, sm_active: float, dram_active: float) -> float:
        return power_w(self._floats[_IDLE_W], self._floats[_BUSY_W], sm_active, dram_active)

    def _account(self, now: float) -> None:
        """Add the energy used since the last call. Call it before the load changes."""
        floats = self._floats
        elapsed = now - floats[_ENERGY_AT]
        floats[_ENERGY_AT] = now  # first: dying here must not count energy twice
        if elapsed > 0:  # the clock restarts with the machine
            sm, _, dram = self._load()
            floats[_ENERGY_MJ] += 1000 * elapsed * self._power(sm, dram)

    def _reap(self, now: float) -> None:
        """Remove the entries of dead processes."""
        ints = self._ints
        dead = [s for s in _ENTRIES if ints[s] and not _lives(ints[s], ints[s + _START])]
        if dead:
            self._account(now)
            for slot in dead:
                self._vacate(slot)
        self._floats[_REAPED_AT] = now

    def _refuse_if_lost(self) -> None:
        if self.is_lost:
            raise CardLost(self.uuid)


def group_of(attempt: str) -> int:
    """A number for this text, other than 0, which stands for none."""
    number = 0
    for byte in attempt.encode():
        number = (number * 257 + byte + 1) % (2**61 - 1)
    return number


def _rate(own_sm: float, sm: float, dram: float) -> float:
    """The speed of a job's kernels beside others, by its own demand and that of all together."""
    return min(1 / max(1.0, sm, dram), 1 / (1 + SHARING_COST * own_sm * (sm - own_sm)))


def _memory_of(group: int, tenants: tuple[Tenant, ...]) -> int:
    return sum(tenant.memory_mib for tenant in tenants if tenant.group == group)


def _now_us() -> int:
    return int(monotonic() * 1e6)


def _own_pid() -> int:
    return int(os.readlink(f"{PROC}/self"))  # noqa: PTH115 - jobs start quickly


def _start_of(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; 0 if it is dead, None if it is hidden."""
    try:
        fd = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
        try:
            stat = os.read(fd, 1024)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None if _exists(pid) else 0
    except ProcessLookupError:
        return 0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def _exists(pid: int) -> bool:
    """Whether the process exists although /proc hides it (mount option hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False  # our own would have been shown: it died in between


def _lives(pid: int, start: int) -> bool:
    return _start_of(pid) in (start, None)
