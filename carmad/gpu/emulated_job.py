"""A fake training job: it behaves on an emulated card as a real one does on a GPU.

    python -m carmad.gpu.emulated_job --model resnet50 --memory-mib 7110 --sm 0.6 --seconds 20

It loads its weights and "data", grows its memory over the first iterations, works at the speed the
card gives it, prints its epochs, and fails as PyTorch does when memory runs out. With several GPUs
it holds memory on each and runs at the pace of the slowest. The cards are in $CARMA_EMULATED_DIR,
and CUDA_VISIBLE_DEVICES selects among them as for CUDA. SIGUSR2 makes it print "checkpoint".

Twenty of these start at once on two cores, so slow imports (argparse, dataclasses) are avoided.
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
    "sm": "0.6",  # demand when alone, 0–1: SM activity,
    "occupancy": "0.3",  # SM occupancy,
    "dram": "0.2",  # DRAM activity
    "seconds": "10",  # of work when alone
    "warmup": "1",  # loading data before the first kernel
    "seed": "0",
}
EPOCHS = 5
TICK_S = 0.05
CONTEXT_MIB = 416  # memory that CUDA itself takes, outside PyTorch's allocator
LOADED = 0.25  # share of the peak allocated before the first kernel: context and weights
GROWTH = (0.5, 0.75, 0.9, 1.0)  # share of the peak after each of the first ticks: activations


class OutOfMemoryError(RuntimeError):
    """Prints like PyTorch's own error."""

    __module__ = "torch"


class Options:
    """Command line options, as pairs of --name value."""

    def __init__(self, argv: list[str]) -> None:
        values = dict(DEFAULTS)
        for flag, value in zip(argv[::2], [*argv[1::2], None], strict=False):
            if value is None or not flag.startswith("--") or flag[2:] not in values:
                known = " ".join(f"--{name} {default}" for name, default in DEFAULTS.items())
                sys.exit(f"emulated_job: cannot read {flag!r}\nusage, with defaults: {known}")
            values[flag[2:]] = value
        self.model = values["model"]
        self.memory_mib = int(values["memory-mib"])
        self.sm = float(values["sm"])
        self.occupancy = float(values["occupancy"])
        self.dram = float(values["dram"])
        self.seconds = float(values["seconds"])
        self.warmup = float(values["warmup"])
        self.seed = int(values["seed"])


def visible_cards() -> list[Card]:
    """The cards CUDA_VISIBLE_DEVICES names, by UUID or index; like CUDA, all when it is not set."""
    directory = os.environ.get("CARMA_EMULATED_DIR")
    if directory is None:
        sys.exit("emulated_job: CARMA_EMULATED_DIR, the directory of the cards, is not set")
    found = sorted((Card(path) for path in paths(directory)), key=lambda card: card.index)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return found
    names = {card.uuid: card for card in found} | {str(card.index): card for card in found}
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
    growth = list(GROWTH)
    done = 0.0
    for epoch in range(1, EPOCHS + 1):
        demand = 0.95 + 0.1 * noise(options.seed, epoch)
        for card in cards:
            card.launch(*(min(1.0, demand * alone) for alone in demands(options)))
        before = monotonic()
        while done < options.seconds * epoch / EPOCHS:
            if growth:
                step = int(options.memory_mib * growth.pop(0)) - held
                allocate(cards, step)
                held += step
            sleep(TICK_S)
            now = monotonic()
            done += (now - before) * min(card.rate() for card in cards)
            before = now
        loss = 2.5 / epoch + 0.2 * noise(options.seed, -epoch)
        say(f"epoch {epoch}/{EPOCHS}  {100 * epoch // EPOCHS:3d} %  loss {loss:.3f}")


def demands(options: Options) -> tuple[float, float, float]:
    return options.sm, options.occupancy, options.dram


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: say("checkpoint"))
    options = Options(sys.argv[1:])
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
    main()
