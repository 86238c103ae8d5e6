"""What the driver's Xid errors mean for a scheduler. A table only; nothing here asks a GPU.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Xid:
    message: str
    drain: bool


def describe(number: int) -> Xid:
    """An Xid that is not in the table gets a note, but never drains a GPU."""
    what, drain = _TABLE.get(number, ("not known to CARMA; see NVIDIA's Xid catalog", False))
    return Xid(f"Xid {number}: {what}", drain)


_RESET = "the GPU must be reset: nvidia-smi --gpu-reset"

_TABLE: dict[int, tuple[str, bool]] = {
    # The application's own fault: it must restart, the GPU is fine.
    13: ("a program made the graphics engine fail (an illegal address or instruction)", False),
    31: ("a program accessed memory it does not own (MMU fault)", False),
    32: ("a program's command stream was corrupt", False),
    39: ("a copy engine failed under a program", False),
    40: ("a copy engine failed under a program", False),
    41: ("a copy engine failed under a program", False),
    69: ("a program made the graphics engine fail (class error)", False),
    94: ("a memory error was contained; only the program it hit must restart", False),
    # Consequences, not causes. 45 follows every kill of a running program, including CARMA's.
    43: ("a program's fault stopped its GPU work; the GPU is fine", False),
    45: ("a program's GPU work was torn down, as after a kill; the GPU is fine", False),
    # Housekeeping.
    63: ("a faulty memory row was remapped; it takes effect at the next reset", False),
    92: ("many corrected memory errors", False),
    # The GPU itself.
    46: (f"the GPU stopped processing; {_RESET}", True),
    48: (f"an uncorrectable (double-bit) memory error; {_RESET}, or reboot", True),
    62: (f"the GPU's power controller halted; {_RESET}", True),
    64: (f"a faulty memory row could not be remapped; {_RESET}", True),
    74: (f"an NVLink failed; check the link, then {_RESET}, or reboot", True),
    79: ("the GPU has fallen off the bus; reboot the machine", True),
    95: (f"a memory error was not contained and may have hit any program; {_RESET}", True),
    109: (f"a context switch timed out; {_RESET}", True),
    119: (f"the GPU's system processor (GSP) does not answer; {_RESET}", True),
    120: (f"the GPU's system processor (GSP) failed; {_RESET}", True),
    140: (f"an unrecovered memory error; {_RESET}", True),
    143: (f"the GPU failed to initialise; {_RESET}", True),
}
