"""What the end of a log says of why its program ended: whether GPU memory was short, or the host's.

Logs are written by untrusted users and read in the daemon. So each pattern begins with plain text
and has no unbounded repetition, and each log is gone through once: that takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from carmad.core.jobs.attempt import Cause, Exit

HEAD_LINE = 300  # characters kept of an evidence line
LAST_LINES = 10
AROUND = 2048  # characters of a line that are read before and after its clue
NEAR = 160  # characters between a shortage of memory and the word that says whose
MOST = 200  # shortages are looked at, from the last: whoever prints more prints them on purpose


class Word(Enum):
    """What some words of a line say."""

    SHORTAGE = auto()  # memory was short: that of whom the line names nearest to it
    ALLOCATION = auto()  # the same, if what was not allocated is memory
    GPU_OOM = auto()  # the GPU's memory was short
    HOST_OOM = auto()  # the host's memory was short
    VAGUE = auto()  # it may have been the GPU's: counts if one was full
    OWN_LIMIT = auto()  # the shortage was a limit that the program had set itself
    HARMLESS = auto()  # the program goes on without that memory


def _words(pattern: str) -> str:
    """The pattern, with spaces that also match line breaks: rich, which prints the tracebacks of
    many programs, wraps messages."""
    return pattern.replace(" ", "[ \n]{1,2}")


# By pattern, in lower case; none begins with alternatives: the engine skips to their first letters.
# The programs that print them: tests/out_of_memory.py.
WORDS = {
    r"out of memory": Word.SHORTAGE,
    r"out_of_memory": Word.SHORTAGE,
    r"outofmemory": Word.SHORTAGE,
    r"oom when allocating": Word.SHORTAGE,
    r"alloc(?:ation)?_failed": Word.SHORTAGE,
    r"errormemoryallocation": Word.SHORTAGE,
    r"maximum pool size exceeded": Word.SHORTAGE,
    r"failed to (?:cuda [mc])?alloc": Word.ALLOCATION,
    r"unable to alloc": Word.ALLOCATION,
    r"can't alloc": Word.ALLOCATION,
    r"cannot alloc(?!ate memory)": Word.ALLOCATION,  # that is the C library's
    r"could not be allocated": Word.SHORTAGE,
    r"not enough (?:gpu |device |free )?memory": Word.SHORTAGE,
    r"insufficient (?:gpu |device |free )?memory": Word.SHORTAGE,
    r"no available memory for": Word.SHORTAGE,
    r"less than desired gpu memory": Word.SHORTAGE,
    r"larger than the available kv cache memory": Word.SHORTAGE,
    r"out of (?:gpu|device) memory": Word.GPU_OOM,
    r"outofgpumemory": Word.GPU_OOM,
    r"resource_exhausted: (?:out of memory|failed to allocate)": Word.GPU_OOM,
    r"cuda (?:runtime |execution failed with |api failed with )?"
    r"(?:error|failure|status):? ?\(?2(?![0-9.])": Word.GPU_OOM,
    r"dataloader worker \(pid [^\n]{0,40}\) is killed by signal: killed": Word.HOST_OOM,
    r"cu(?:blas|dnn|solver|sparse)_status_not_initialized": Word.VAGUE,
    r"unhandled(?: cuda |cuda)error": Word.VAGUE,
    r"per_process_memory_fraction": Word.OWN_LIMIT,
    r"not a failure": Word.HARMLESS,
}
_MEANINGS = tuple(WORDS.values())
_WORDS = re.compile("|".join(f"{_words(pattern)}()" for pattern in WORDS))
# Looked for only behind the allocations that count.
_MEMORY = re.compile(r"alloc[^\n]{0,40}(?:memory|byte|buffer|[0-9kmgt]i?b)")
# Whose memory it is; the former are the host's.
WHOSE = (
    r"device:cpu|device 'cpu|cuda_host|cpu|host memory|hostalloc|mallochost|pinned|shared memory"
    r"|shm|the node|node_out|memoryerror|bad_alloc|java|killed process|cannot allocate memory",
    r"gpu|device|vram|nccl|tensorrt|\[trt\]|rmm|\.cuh?(?![a-z])"
    r"|cu(?:da|blas|dnn|fft|solver|sparse|rand|py|mem)",
)
_WHOSE = re.compile(_words(f"{WHOSE[0].replace('|', '()|')}()|{WHOSE[1]}"))
_ACROSS = 16  # characters before a line break after which a message may go on
# Before a shortage in advice or in a usage text: it did not happen.
_SUPPOSED = re.compile(r"(?:if|avoid|prevent|may|might|case)\b|when (?:the |a |your |running )?\Z")
_BEFORE = 60

_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = "The above exception was the direct cause", "During handling of the above exception"
_ASIDE = "Exception ignored in", "Exception in thread", "Error in atexit"  # a program outlives them
_LATEST = 16  # tracebacks are looked at
_PREFIX = 100  # characters before each line of a traceback, such as "[rank0]: "
_ERROR = r"(?=[A-Za-z_][A-Za-z_0-9.]{0,100}(?:Error|Exception)(?:[:\n]|\Z))"
# An exception that says one of these may follow from what another process or the GPU met before.
_FOLLOWS = re.compile(
    r"cuda|gpu|nccl|gloo|device(?<!left on device)|memory|oom(?<![a-z]oom)|process(?!or)"
    r"|thread|trial|child|worker|actor(?<!factor)|rank|peer(?!ror)|connection|socket|pipe(?!line)"
    r"|store|engine|died|abort|exit|interrupt|signal"
    r"|kill|cancel|closed|shut ?down|eof|time(?:d ?)?out|previous|above"
)
_NAME = re.compile(r"[ (=:\[]'[^' \n]{0,100}'")  # of a file or a key, which may have these in it

# What a program may say that fails.
_TELLS = re.compile(
    r"error|exception|fail|fatal|panic|abort|killed|usage|denied|refused|invalid|missing"
    r"|no such|not found|not a|cannot|can't|could not|unable|unknown|out of"
)

_SIZE = r"([0-9]{1,9}(?:\.[0-9]{1,4})?) (B|[KMGT]iB|bytes)"
_TRIED = re.compile(_words(rf"Tried to allocate {_SIZE}"))
_FREE = re.compile(_words(rf"of which {_SIZE} is free"))
_FREE_BEFORE_2_0 = re.compile(_words(rf"; {_SIZE} free;"))
_UNUSED = re.compile(_words(rf"and {_SIZE} is reserved by PyTorch but unallocated"))
_MIB = {"B": 2**-20, "bytes": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 2.0**10, "TiB": 2.0**20}


def classify(
    code: int | None,
    signal: int | None,
    tail: str,
    *,
    host_oom: bool | None = None,
    gpu_full: bool = False,
) -> Exit:
    """How an attempt ended, from its `code`, or the `signal` that ended it, and its log's tail. It
    reads nothing else.

    `host_oom`: whether the kernel's OOM killer struck in the job's cgroup (None: unknown);
    `gpu_full`: whether a GPU of the job was full in the job's last sample.
    """
    if code == 0:
        return Exit(Cause.SUCCESS, code)
    if host_oom:
        return Exit(Cause.HOST_OOM, code, signal, "the kernel's OOM killer struck in its cgroup")
    since, error = _last_error(tail)
    clue = _last_clue(tail, since, gpu_full)
    if clue is None:
        last = error or tail.rstrip().rpartition("\n")[2]
        return Exit(Cause.FAILURE, code, signal, head(last.lstrip()))
    return Exit(
        clue.cause,
        code,
        signal,
        head(clue.line.strip()),
        tried_mib=_mib(clue.around, _TRIED),
        free_mib=_mib(clue.around, _FREE, _FREE_BEFORE_2_0),
        unused_mib=_mib(clue.around, _UNUSED),
    )


@dataclass(frozen=True, slots=True)
class Clue:
    """A line that names a cause, cut to `AROUND`; and the same with the lines after it, on which a
    wrapped message goes on."""

    cause: Cause
    line: str
    around: str


# Of several statements in one line, the first of these counts.
_CAUSES = {
    Word.OWN_LIMIT: Cause.FAILURE,
    Word.GPU_OOM: Cause.GPU_OOM,
    Word.HOST_OOM: Cause.HOST_OOM,
    Word.VAGUE: Cause.GPU_OOM,
}
_RANKS = {word: rank for rank, word in enumerate(_CAUSES)}


def _last_clue(tail: str, since: int, gpu_full: bool) -> Clue | None:
    """The last line from `since` on that names a cause."""
    text = tail.replace("\u0130", "I").lower()  # no other letter would become two
    line = len(text) + 1
    said: dict[Word, tuple[int, int]] = {}  # in that line, and where
    for match in reversed(list(_WORDS.finditer(text, since))[-MOST:]):
        begin, end = match.span()
        if begin < line:
            if clue := _clue(tail, said):
                return clue
            line, said = text.rfind("\n", 0, begin) + 1, {}
        word = _MEANINGS[(match.lastindex or 1) - 1]
        if word is Word.ALLOCATION and not _MEMORY.match(text, end - len("alloc")):
            continue
        if word in (Word.SHORTAGE, Word.ALLOCATION):
            word, begin = _owner(text, begin, end)
        if word is Word.VAGUE and not gpu_full:
            continue
        if not _SUPPOSED.search(text, max(line, begin - _BEFORE), begin) or word is Word.OWN_LIMIT:
            said.setdefault(word, (begin, end))
    return _clue(tail, said)


def _owner(text: str, begin: int, end: int) -> tuple[Word, int]:
    """Whose memory was short, by the nearest word in the line that says so, and where the statement
    begins. Of two that are as near, the GPU's: CUDA's errors come as `MemoryError` and
    `std::bad_alloc`, too."""
    at = max(0, begin - NEAR)
    newline = text.rfind("\n", at, begin)
    if newline >= 0:
        at = newline + 1 if text[newline:begin].strip() else max(at, newline - _ACROSS)
    before = max(_WHOSE.finditer(text, at, begin), key=re.Match.start, default=None)
    until = text.find("\n", end, end + NEAR)
    after = _WHOSE.search(text, end, until if until >= 0 else end + NEAR)
    found = [(begin - before.end(), before)] if before else []
    found += [(after.start() - end, after)] if after else []
    if not found:
        return Word.VAGUE, begin
    _, owner = min(found, key=lambda its: (its[0], its[1].lastindex or 0))
    word = Word.HOST_OOM if owner.lastindex else Word.GPU_OOM
    return word, min(begin, owner.start())


def _clue(tail: str, said: Mapping[Word, tuple[int, int]]) -> Clue | None:
    """What counts of what is said in a line."""
    words = sorted(said.keys() & _RANKS.keys(), key=_RANKS.__getitem__)
    if Word.HARMLESS in said or not words or words == [Word.OWN_LIMIT]:
        return None
    begin, end = said[words[0]]
    at = max(tail.rfind("\n", 0, begin) + 1, begin - AROUND)
    around = tail[at : end + AROUND]
    shown = around[: end - at] + around[end - at :].partition("\n")[0]
    return Clue(_CAUSES[words[0]], shown, around)


def _last_error(tail: str) -> tuple[int, str]:
    """The Python exception that ended the program, if it does not follow from anything before, and
    where its chain begins: what was said before that had been dealt with."""
    since, error, end = 0, "", len(tail)
    for _ in range(_LATEST):
        at = tail.rfind(_TRACEBACK, 0, end)
        if at < 0:
            break
        line = tail.rfind("\n", 0, at) + 1
        prefix = tail[line:at].removesuffix("Original ")
        prefix = "" if prefix.startswith("╭") else prefix  # rich draws a box
        found = None
        if len(prefix) <= _PREFIX:
            found = re.compile(f"\n{re.escape(prefix)}{_ERROR}").search(tail, at, end)
        before = tail[max(0, line - 200) : line]
        if found and error:
            since = found.end()
        elif found and not any(words in before for words in _ASIDE):
            text = tail[found.end() : found.end() + AROUND].partition("\n")[0]
            if not _FOLLOWS.search(_NAME.sub("", text.lower())):
                since, error = found.end(), text
        if error and not any(words in before for words in _CHAINED):
            break
        end = line
    return since, error


def last_lines(tail: str) -> tuple[str, ...]:
    """The last lines of a log's tail that are not empty, each cut and safe to show; some 3 KB."""
    lines = [line for line in tail[-LAST_LINES * AROUND :].splitlines() if line.strip()]
    return tuple(head(line.rstrip()) for line in lines[-LAST_LINES:])


def tells_why(tail: str) -> bool:
    """Whether a log's last lines look like those of a program that says why it fails."""
    return any(_TELLS.search(line.lower()) for line in last_lines(tail))


def head(text: str, most: int = HEAD_LINE) -> str:
    """The beginning of a job's output, as one line that is safe to store, log and show."""
    line = "".join(
        " " if c.isspace() else c if c.isprintable() else "\ufffd" for c in text[: most + 1]
    )
    return line if len(line) <= most else line[: most - 1] + "…"


def _mib(line: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if match := pattern.search(line):
            return round(float(match[1]) * _MIB[match[2]])
    return None
