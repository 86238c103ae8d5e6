"""A fake training job: it behaves on an emulated card as a real one does on a GPU.

    python -m carmad.gpu.emulated_job --model resnet50 --memory-mib 7110 --sm 0.6 --seconds 20

It loads its weights and "data", grows its memory over the first iterations, works at the speed the
card gives it, prints its steps, and fails as PyTorch does when memory runs out. With several GPUs
it holds memory on each and runs at the pace of the slowest. The cards are in $CARMA_EMULATED_DIR,
and CUDA_VISIBLE_DEVICES selects among them as for CUDA. SIGUSR2 makes it print "checkpoint". While
it is suspended, it does no work.

`examples/emulated_train.py` runs it in any environment: it and `card` need Python 3.8, no packages.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from time import monotonic, sleep

from carmad.gpu.card import Card, CardLost, OutOfMemory, paths

EPOCHS = 5
STEP_S = 0.1  # of work when alone
TELL_S = 1.0  # of work between two lines of the log
TICK_S = 0.05
CONTEXT_MIB = 416  # memory that CUDA itself takes, outside PyTorch's allocator
LOADED = 0.25  # share of the peak allocated before the first kernel: context and weights


class OutOfMemoryError(RuntimeError):
    """Prints like PyTorch's own error."""

    __module__ = "torch"


def read(argv: list[str]) -> Namespace:
    """The options. Demands are those of the job alone, as shares of the GPU."""
    parser = ArgumentParser("emulated_job", formatter_class=ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--model", default="resnet50")
    add("--memory-mib", type=int, default=4000, help="per GPU, at the peak")
    add("--grow", type=int, default=0, help="MiB more every fifth of the work, as by a leak")
    add("--sm", type=float, default=0.6, help="demand: SM activity")
    add("--occupancy", type=float, default=0.3, help="demand: SM occupancy")
    add("--dram", type=float, default=0.2, help="demand: DRAM activity")
    add("--seconds", type=float, default=10.0, help="of work when alone")
    add("--warmup", type=float, default=1.0, help="loading data before the first kernel")
    add("--ramp", type=float, default=0.2, help="seconds of training until it holds its peak")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


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


def load(options: Namespace, cards: list[Card]) -> int:
    """Load weights, then data. Returns the MiB held on each card."""
    for card in cards:
        card.attach()
    held = int(options.memory_mib * LOADED)
    allocate(cards, held)
    say(f"{options.model}: loading data for {len(cards)} GPU(s)")
    sleep(options.warmup)
    return held


def train(options: Namespace, cards: list[Card], held: int) -> None:
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
        allocate(cards, options.grow)


def working_s(cards: list[Card]) -> float:
    """A clock that stands still while the job is suspended."""
    return monotonic() - max(card.suspended_s() for card in cards)


def tell(options: Namespace, done: float, slowdown: float) -> None:
    share = min(1.0, done / options.seconds)
    steps = max(EPOCHS, round(options.seconds / STEP_S))
    loss = 2.5 / (1 + 4 * share) + 0.1 * noise(options.seed, -int(steps * share))
    step_ms = 1000 * slowdown * options.seconds / steps
    say(f"step {int(steps * share):4d}/{steps}  loss {loss:.3f}  {step_ms:.0f} ms a step")


def demands(options: Namespace) -> tuple[float, float, float]:
    return options.sm, options.occupancy, options.dram


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: say("checkpoint"))
    options = read(argv)
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
