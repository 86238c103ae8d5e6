"""A fake training job: it behaves on an emulated card as a real one does on a GPU.

    python -m carmad.gpu.emulated_job --model resnet50 --memory-mib 7110 --sm 0.6 --seconds 20

It loads its weights and "data", grows its memory over the first iterations, works at the speed the
card gives it, prints its steps, and fails as PyTorch does when memory runs out. With several GPUs
it holds memory on each and runs at the pace of the slowest. The cards are in $CARMA_EMULATED_DIR,
and CUDA_VISIBLE_DEVICES selects among them as for CUDA. SIGUSR2 makes it print "checkpoint". While
it is suspended, it does no work.

Twenty of these start at once on two cores, so slow imports (argparse, dataclasses) are avoided.
`examples/emulated_train.py` runs it in any environment: it and `card` need Python 3.8, no packages.
"""

from __future__ import annotations

import os
import signal
import sys
from time import monotonic, sleep

from carmad.gpu.card import Card, CardLost, OutOfMemory, paths

DEFAULTS: dict[str, str] = {
    "model": "resnet50",
    "memory-mib": "4000",  # per GPU, at the peak
    "grow": "0",  # MiB per GPU added to that every fifth of the work, as by a leak
    "sm": "0.6",  # demand when alone, 0–1: SM activity,
    "occupancy": "0.3",  # SM occupancy,
    "dram": "0.2",  # DRAM activity
    "seconds": "10",  # of work when alone
    "warmup": "1",  # loading data before the first kernel
    "ramp": "0.2",  # seconds of training until it holds its peak
    "seed": "0",
}
EPOCHS = 5
STEP_S = 0.1  # of work when alone
TELL_S = 1.0  # of work between two lines of the log
TICK_S = 0.05
CONTEXT_MIB = 416  # memory that CUDA itself takes, outside PyTorch's allocator
LOADED = 0.25  # share of the peak allocated before the first kernel: context and weights


class OutOfMemoryError(RuntimeError):
    """Prints like PyTorch's own error."""

    __module__ = "torch"


class Options:
    """Command line options, as pairs of --name value."""

    def __init__(self, argv: list[str]) -> None:
        values = dict(DEFAULTS)
        for at in range(0, len(argv), 2):
            flag, value = argv[at], argv[at + 1 : at + 2]
            if not value or not flag.startswith("--") or flag[2:] not in values:
                known = " ".join(f"--{name} {default}" for name, default in DEFAULTS.items())
                sys.exit(f"emulated_job: cannot read {flag!r}\nusage, with defaults: {known}")
            values[flag[2:]] = value[0]
        self.model = values["model"]
        self.memory_mib = int(values["memory-mib"])
        self.grow_mib = int(values["grow"])
        self.sm = float(values["sm"])
        self.occupancy = float(values["occupancy"])
        self.dram = float(values["dram"])
        self.seconds = float(values["seconds"])
        self.warmup = float(values["warmup"])
        self.ramp = float(values["ramp"])
        self.seed = int(values["seed"])


def visible_cards() -> list[Card]:
    """The cards CUDA_VISIBLE_DEVICES names, by UUID or index; like CUDA, all when it is not set."""
    directory = os.environ.get("CARMA_EMULATED_DIR")
    if directory is None:
        sys.exit(
            "no emulated GPUs here (CARMA_EMULATED_DIR is not set): run this with `carma submit`, "
            "after `carma daemon start --emulated 3xA100-40GB`"
        )
    found = sorted((Card(path) for path in paths(directory)), key=lambda card: card.index)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return found
    names = {name: card for card in found for name in (card.uuid, str(card.index))}
    cards = []
    for name in wanted.split(","):
        if name not in names:
            break  # like CUDA, ignore the first invalid name and all after it
        cards.append(names[name])
    return cards


def allocate(cards: list[Card], mib: int) -> None:
    for device, card in enumerate(cards):
        try:
            card.allocate(mib)
        except OutOfMemory as error:
            raise OutOfMemoryError(oom_text(device, error)) from None


def oom_text(device: int, error: OutOfMemory) -> str:
    """The message of torch 2.4 and later, word for word."""
    reserved = max(0, error.own_mib - CONTEXT_MIB)
    slack = reserved // 32
    others = "".join(f"Process {pid} has {size(mib)} memory in use. " for pid, mib in error.others)
    return (
        f"CUDA out of memory. Tried to allocate {size(error.tried_mib)}. "
        f"GPU {device} has a total capacity of {size(error.total_mib)} "
        f"of which {size(error.free_mib)} is free. {others}"
        f"Including non-PyTorch memory, this process has {size(error.own_mib)} memory in use. "
        f"Of the allocated memory {size(reserved - slack)} is allocated by PyTorch, "
        f"and {size(slack)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def size(mib: int) -> str:
    """In PyTorch's format."""
    if mib == 0:
        return "0 bytes"
    return f"{mib:.2f} MiB" if mib <= 1024 else f"{mib / 1024:.2f} GiB"


def noise(seed: int, step: int) -> float:
    """A repeatable number in 0–1."""
    return (seed * 7919 + step * 104_729) * 2_654_435_761 % 2**32 / 2**32


def load(options: Options, cards: list[Card]) -> int:
    """Load weights, then data. Returns the MiB held on each card."""
    for card in cards:
        card.attach()
    held = int(options.memory_mib * LOADED)
    allocate(cards, held)
    say(f"{options.model}: loading data for {len(cards)} GPU(s)")
    sleep(options.warmup)
    return held


def train(options: Options, cards: list[Card], held: int) -> None:
    done = told = 0.0  # seconds of work
    begun = before = told_at = working_s(cards)
    grown = False
    for epoch in range(1, EPOCHS + 1):
        demand = 0.95 + 0.1 * noise(options.seed, epoch)
        for card in cards:
            card.launch(*(min(1.0, demand * alone) for alone in demands(options)))
        end = options.seconds * epoch / EPOCHS
        while done < end:
            if not grown:
                passed = working_s(cards) - begun + TICK_S
                grown = passed >= options.ramp
                share = 1.0 if grown else LOADED + (1 - LOADED) * passed / options.ramp
                step = int(options.memory_mib * share) - held
                allocate(cards, step)
                held += step
            sleep(TICK_S)
            rate = min(card.rate() for card in cards)
            now = working_s(cards)
            done += (now - before) * rate
            before = now
            if done - told >= TELL_S or done >= end:
                tell(options, done, (now - told_at) / (done - told))
                told, told_at = done, now
        allocate(cards, options.grow_mib)


def working_s(cards: list[Card]) -> float:
    """A clock that stands still while the job is suspended."""
    return monotonic() - max(card.suspended_s() for card in cards)


def tell(options: Options, done: float, slowdown: float) -> None:
    share = min(1.0, done / options.seconds)
    steps = max(EPOCHS, round(options.seconds / STEP_S))
    loss = 2.5 / (1 + 4 * share) + 0.1 * noise(options.seed, -int(steps * share))
    step_ms = 1000 * slowdown * options.seconds / steps
    say(f"step {int(steps * share):4d}/{steps}  loss {loss:.3f}  {step_ms:.0f} ms a step")


def demands(options: Options) -> tuple[float, float, float]:
    return options.sm, options.occupancy, options.dram


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: say("checkpoint"))
    options = Options(argv)
    cards = visible_cards()
    if not cards:
        raise RuntimeError("No CUDA GPUs are available")
    try:
        train(options, cards, load(options, cards))
    except CardLost:
        raise RuntimeError("CUDA error: unspecified launch failure") from None
    finally:
        for card in cards:
            card.close()


if __name__ == "__main__":
    main(sys.argv[1:])
