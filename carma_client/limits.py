"""The limits of a process (`ulimit`) that its jobs inherit."""

from __future__ import annotations

from pathlib import Path

# As /proc calls them, with what a login shell has if nobody changes it. Left out are limits that
# count all of a user's processes, the processor time, which servers limit at login, and locked
# memory: with the little that a login has, drivers and NCCL fail.
_USUAL = {
    "Max address space": ("as", "unlimited"),
    "Max core file size": ("core", "0"),
    "Max data size": ("data", "unlimited"),
    "Max file size": ("fsize", "unlimited"),
    "Max open files": ("nofile", "1024"),
    "Max stack size": ("stack", "8388608"),
}


def soft_limits() -> dict[str, int]:
    """The soft limits that somebody has changed; -1: unlimited."""
    found = {}
    with Path("/proc/self/limits").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, usual = _USUAL.get(line[:26].rstrip(), ("", ""))
            soft = line[26:].split()[0]
            if name and soft != usual:
                found[name] = -1 if soft == "unlimited" else int(soft)
    return found
