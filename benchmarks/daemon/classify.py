"""How long a job's output can keep the daemon busy at the job's end, at worst.

Classifying holds the GIL, so all other threads wait for it. The whole of it is timed, from the
`tail` file that a supervisor leaves (both logs' last 64 KiB) to the cause, in CPU time of the
thread: the best of a few runs of each case, and the worst of the cases. Cases are made to hurt
(each text that a pattern looks for, or part of one, repeated, with every line ending, and beside
another), or are 128 KiB of random text.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

from benchmarks.harness import Report, Row, bullets, main, of_rows, percentile
from carmad.attempt import clues as module
from carmad.attempt import exits, supervisor
from carmad.attempt.clues import classify

BYTES = exits.TAIL_BYTES
RUNS = 3
CHANCES = 250
BOUND_MS = 50.0
GROUP = "128 KiB of output"
ENDINGS = ("", "\n", "\r", "\r\n", " ", "9" * 65_000 + "\n")


def texts() -> list[str]:
    """What the patterns look for, whole and cut short, and what their repeats go through."""
    words = "|".join((*module.WORDS, *module.WHOSE))
    patterns = re.sub(r"\(\?:([^|()]*)[^()]*\)", r"\1", words).split("|")
    patterns += [each.pattern for each in vars(module).values() if isinstance(each, re.Pattern)]
    plain = [re.split(r"(?<!\\)[(\[]", pattern)[0].replace("\\", "") for pattern in patterns]
    sizes = [
        "Tried to allocate " + "9" * 9 + ".9999 Mi",
        "of which 9 Gi",
        " 1.2.3 MiB",
        "; 9 B free",
        "Traceback (most recent call last)",
    ]
    pieces = [*plain, *(text[: len(text) // 2] for text in plain), *sizes]
    pieces += ["9", "1.", "C", "\0", "\x1b[2J", "\U0001f600", "x", ""]
    return [*dict.fromkeys(pieces)]


def cases() -> Iterator[tuple[str, bytes]]:
    pieces, dice = texts(), Random("classify")
    for text, ending in product(pieces, ENDINGS):
        yield f"{text!r:.40} + {ending!r:.10}", (text + ending or "\n").encode()
    for _ in range(CHANCES):
        one, other = dice.sample(pieces, 2)
        yield f"{one!r:.40} + {other!r:.40}", (one + other).encode()
    for number in range(CHANCES):
        words = dice.choices((*pieces, *ENDINGS[:-1]), k=3000)
        yield f"mixture {number}", "".join(words).encode()[:BYTES]
        yield f"bytes {number}", dice.randbytes(BYTES)


def milliseconds(directory: Path, said: bytes) -> float:
    (directory / supervisor.TAIL).write_bytes((said * (BYTES // len(said) + 1))[:BYTES])
    taken = []
    for _ in range(RUNS):
        begun = time.thread_time()
        classify(1, None, exits.tail(directory), gpu_full=True)
        taken.append((time.thread_time() - begun) * 1000)
    return min(taken)


def measure() -> Report:
    with tempfile.TemporaryDirectory() as folder:
        measured = sorted((milliseconds(Path(folder), said), what) for what, said in cases())
    times = [taken for taken, _ in measured]
    rows = [
        Row(GROUP, "the worst", times[-1], "ms", bound=BOUND_MS, note=f"of {len(times)} cases"),
        Row(GROUP, "99 of 100", percentile(times, 0.99), "ms"),
        Row(GROUP, "the median", percentile(times, 0.5), "ms"),
    ]
    worst = [f"{taken:.1f} ms: `{what}`" for taken, what in reversed(measured[-10:])]
    return of_rows(
        "Classifying a job's end: the worst that its output can do",
        rows,
        "The ten worst:",
        bullets(worst),
        notes=[f"CPU time, the best of {RUNS} runs per case"],
    )


if __name__ == "__main__":
    main("classify", measure)
