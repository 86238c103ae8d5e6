"""Finding the cause of a job's end."""

import re
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import a_job
from carmad.attempt import clues as module
from carmad.attempt.clues import AROUND, MOST, classify
from carmad.core.jobs.attempt import Cause, Exit
from carmad.store import codec
from tests import out_of_memory as texts

TORCH_24 = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 9, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 39.39 GiB of which 512.00 MiB is free. Process 71 has 20.00 GiB memory in use."
    " Including non-PyTorch memory, this process has 18.90 GiB memory in use. Of the allocated"
    " memory 18.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but"
    " unallocated.\n"
)
TORCH_112 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total"
    " capacity; 14.56 GiB already allocated; 244.00 MiB free; 14.74 GiB reserved in total"
    " by PyTorch)\n"
)


def end(said: str, gpu_full: bool = False) -> Exit:
    return classify(1, None, f"epoch 1\n{said}\nwandb: done\n", gpu_full=gpu_full)


@pytest.mark.parametrize("program", texts.GPU)
def test_every_program_s_gpu_oom_is_recognised(program):
    said, _ = texts.GPU[program]
    exit = end(said)
    assert exit.cause is Cause.GPU_OOM
    assert exit.evidence.removesuffix("…") in said


@pytest.mark.parametrize("program", texts.VAGUE)
def test_an_ambiguous_line_counts_only_on_a_full_gpu(program):
    said, _ = texts.VAGUE[program]
    assert end(said, gpu_full=True).cause is Cause.GPU_OOM
    assert end(said).cause is Cause.FAILURE


@pytest.mark.parametrize("gpu_full", [False, True])
@pytest.mark.parametrize("program", texts.HOST)
def test_host_memory_is_not_gpu_memory(program, gpu_full):
    said, known = texts.HOST[program]
    assert end(said, gpu_full).cause is (Cause.HOST_OOM if known else Cause.FAILURE)


@pytest.mark.parametrize("gpu_full", [False, True])
@pytest.mark.parametrize("what", texts.NOT)
def test_words_about_memory_alone_are_no_out_of_memory(what, gpu_full):
    assert end(texts.NOT[what], gpu_full).cause is Cause.FAILURE


@pytest.mark.parametrize("what", texts.AFTER)
def test_what_follows_from_running_out_of_memory_does_not_hide_it(what):
    exit = end(texts.AFTER[what])
    assert exit.cause is Cause.GPU_OOM
    assert "CUDA out of memory. Tried to allocate" in exit.evidence


def test_an_error_of_its_own_is_the_evidence_whatever_is_printed_after_it():
    assert end(texts.NOT["one that was caught"]).evidence == "KeyError: 'lr'"


def test_the_exit_status_comes_first():
    assert classify(0, None, TORCH_24).cause is Cause.SUCCESS


def test_four_ends_are_told_apart():
    assert classify(1, None, TORCH_24).cause is Cause.GPU_OOM
    assert classify(None, 9, "", host_oom=True).cause is Cause.HOST_OOM
    assert classify(None, 9, "").cause is Cause.FAILURE
    assert classify(2, None, "ValueError: unsuccessful OOM.py\n").cause is Cause.FAILURE


def test_sizes_are_read_and_fragmentation_is_recognised():
    exit = classify(1, None, TORCH_24)
    assert (exit.tried_mib, exit.free_mib, exit.unused_mib) == (2048, 512, 300)
    assert not exit.fragmented
    old = classify(1, None, TORCH_112)
    assert (old.tried_mib, old.free_mib) == (20, 244)
    assert old.fragmented
    own = TORCH_24.replace("300.00 MiB is reserved", "3.00 GiB is reserved")
    assert classify(1, None, own).fragmented


RICH = """\
│    9 │   loss.backward()                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a\x20
total capacity of 39.39 GiB of which 512.00 MiB is free. Process 71 has 20.00\x20
GiB memory in use. Of the allocated memory 18.00 GiB is allocated by PyTorch, and
300.00 MiB is reserved by PyTorch but unallocated.
"""
RICH_HOST = """\
RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator:
can't allocate memory: you tried to allocate 1152921504606846976 bytes. Error\x20
code 12 (Cannot allocate memory)
"""


@pytest.mark.parametrize("broken", ["\n", " \n"])
def test_a_message_is_recognised_wherever_rich_wraps_it(broken):
    found = classify(1, None, RICH)
    assert (found.tried_mib, found.free_mib, found.unused_mib) == (2048, 512, 300)
    host = classify(1, None, RICH_HOST)
    assert host.cause is Cause.HOST_OOM
    assert host.evidence.startswith("RuntimeError: [enforce fail")
    assert "DefaultCPUAllocator: can't allocate memory: you tried" in host.evidence
    for n, letter in enumerate(TORCH_24):
        if letter == " ":
            exit = classify(1, None, TORCH_24[:n] + broken + TORCH_24[n + 1 :])
            sizes = exit.tried_mib, exit.free_mib, exit.unused_mib
            assert (exit.cause, sizes) == (Cause.GPU_OOM, (2048, 512, 300))


def test_a_plain_failure_keeps_its_last_line_as_evidence():
    assert classify(1, None, "boom\n\nValueError: no\n\n").evidence == "ValueError: no"


# -- a log is written by whoever likes, and read by the daemon

OOM = "CUDA error: out of memory Tried to allocate "


@pytest.mark.parametrize("number", ["1.2.3", "9" * 400, ".", "...", "1e999", "٣", "1_0", "-1", ""])
@pytest.mark.parametrize(
    "text", ["{} MiB", "2 GiB. of which {} MiB is free", "x {} MiB is reserved by PyTorch but un"]
)
def test_a_size_that_is_none_is_not_known(text, number):
    exit = classify(1, None, OOM + text.format(number) + "allocated")
    assert exit.cause is Cause.GPU_OOM
    assert exit.free_mib is exit.unused_mib is None
    assert exit.tried_mib == (2048 if "2 GiB" in text else None)


def test_only_the_words_around_a_clue_are_looked_at():
    far = " of which 1.00 GiB is free"
    exit = classify(1, None, "x" * 100_000 + OOM + "20.00 MiB" + "9" * AROUND + far)
    assert (exit.cause, exit.tried_mib, exit.free_mib) == (Cause.GPU_OOM, 20, None)


def test_in_one_line_its_own_limit_decides_and_of_two_lines_the_last():
    cap = "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
    cap += " per_process_memory_fraction"
    plain = "OutOfMemoryError: CUDA out of memory."
    assert classify(1, None, f"{cap} {'x' * 9000} {plain}").cause is Cause.FAILURE
    assert classify(1, None, f"{cap}\n{plain}\nbye").cause is Cause.GPU_OOM
    assert classify(1, None, f"{plain}\n{cap}\nbye").cause is Cause.FAILURE


def test_a_word_far_from_a_shortage_does_not_say_whose_it_is():
    far = "x" * (module.NEAR + 1)
    assert classify(1, None, f"cuda {far} out of memory {far} cuda").cause is Cause.FAILURE
    assert classify(1, None, f"cuda {far} out of memory of cuda").cause is Cause.GPU_OOM
    assert classify(1, None, f"cuda\n{far}\nout of memory").cause is Cause.FAILURE


def patterns():
    return [*map(re.compile, (*module.WORDS, *module.WHOSE))] + [
        value for value in vars(module).values() if isinstance(value, re.Pattern)
    ]


def alternatives(parsed):
    """The first node of each alternative of a parsed pattern."""
    kind, argument = parsed[0]
    if kind is sre.BRANCH:
        return [first for each in argument[1] for first in alternatives(each)]
    if kind is sre.SUBPATTERN:
        return alternatives(argument[-1])
    return [kind]


def repeats(parsed, times=1):
    """The maximum count of each repetition in a parsed pattern, including enclosing ones."""
    for kind, argument in parsed:
        inner = times
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            inner *= argument[1]
            yield inner
        for part in argument if isinstance(argument, (list, tuple)) else ():
            for each in part if isinstance(part, list) else [part]:
                if isinstance(each, parser.SubPattern):
                    yield from repeats(each, inner)


def test_no_pattern_repeats_without_a_bound_and_each_begins_with_plain_text():
    """So a search takes a bounded number of steps for each character."""
    assert list(repeats(parser.parse("(?:a{2,5}|b*)c"))) == [5, sre.MAXREPEAT]
    assert list(repeats(parser.parse("x(?:y(ab{1,9}){4})?"))) == [1, 4, 36]
    assert len(patterns()) > len(module.WORDS) + 5
    for pattern in patterns():
        parsed = parser.parse(pattern.pattern)
        assert all(most <= 100 for most in repeats(parsed)), pattern
        assert {*alternatives(parsed)} <= {sre.LITERAL, sre.IN}, pattern


NEARLY = "\n".join(
    ["CUDA out of", "memory out of", "alloc_faile", "cuda error 2", "unable to alloc"]
)


@pytest.mark.parametrize("ending", ["", "\n", " if cuda out of memory\n"])
@pytest.mark.parametrize(
    "piece", ["out of memory", NEARLY, "cuda", "gpu out of memory not a failure"]
)
def test_megabytes_of_words_that_name_no_cause_take_a_bounded_number_of_looks(
    piece, ending, monkeypatch
):
    looks = []
    owner = module._owner
    monkeypatch.setattr(module, "_owner", lambda *at: looks.append(at) or owner(*at))
    tail = (piece + ending) * (4_000_000 // len(piece + ending))
    assert classify(1, None, tail[: -len(ending) or None]).cause in (Cause.FAILURE, Cause.GPU_OOM)
    assert len(looks) <= MOST


@pytest.mark.parametrize("what", ["Traceback (most recent call last)", "x: Traceback (most recent"])
def test_megabytes_of_tracebacks_are_not_read_again_and_again(what, monkeypatch):
    compiled = []
    monkeypatch.setattr(module.re, "escape", lambda text: compiled.append(text) or text)
    tail = f"{what}\n  File\n" * 100_000
    assert classify(1, None, texts.GPU["PyTorch"][0] + tail).cause is Cause.GPU_OOM
    assert len(compiled) <= module._LATEST


FRAGMENTS = [
    *(OOM, "CUDA error: out of memory", "Tried to allocate ", " of which ", " is free", "; "),
    *(" free;", " MiB", " GiB", " is reserved by PyTorch but unallocated", "9" * 400, "1.2.3"),
    *("RuntimeError: CUDA out of memory. ", "ResourceExhaustedError", "device:GPU", "\n", "\r"),
    *(
        "Traceback (most recent call last)",
        "KeyError: 'x'",
        "if CUDA",
        "\u0130",
        "[rank0]: ",
        "╭─ ",
    ),
    *("DataLoader worker (pid ", ") is killed by signal: Killed", "Cuda failure ", "٣", "\x00"),
    *("\x1b[2J", "\ud800", "\u2028", "\U0001f600", " ", ".", "CUBLAS_STATUS_NOT_INITIALIZED"),
]
TAILS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=40).map("".join)


@given(
    code=st.none() | st.integers(1, 255),
    signal=st.none() | st.integers(1, 64),
    tail=TAILS,
    full=st.booleans(),
)
def test_whatever_was_printed_the_end_has_a_cause(code, signal, tail, full):
    exit = classify(code, signal, tail, gpu_full=full)
    assert isinstance(exit, Exit)
    assert exit.cause in (Cause.FAILURE, Cause.GPU_OOM, Cause.HOST_OOM)
    assert len(exit.evidence) <= module.HEAD_LINE and exit.evidence.isprintable()
    for mib in (exit.tried_mib, exit.free_mib, exit.unused_mib):
        assert mib is None or 0 <= mib < 1 << 53
    job = a_job(1, failures=(exit,))
    assert codec.decode_job(codec.encode_job(job)) == job
