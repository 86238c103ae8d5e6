"""`carma estimate`: the requested command, the search for what fits, and the output."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from cli import estimate_view as view
from cli import estimation, vary
from cli.commands import estimate as command
from cli.main import run
from cli.problems import Usage
from tests.fake_daemon import ANSWERS, REFUSALS, FakeDaemon
from tests.terminal import plain

PARTS = {"parameters": 100, "gradients": 100, "activations": 400, "context": 400}
EXPLAINED = {
    "modules": [
        {"name": "blocks.*.up", "kind": "Linear", "count": 12, "mib": 300},
        {"name": "", "kind": "the backward pass", "count": 0, "mib": 100},
    ],
    "lines": [{"name": "train.py:12", "kind": "", "count": 0, "mib": 350}],
    "remedies": [
        {"what": "half the batch: 32 instead of 64", "saved_mib": 200, "exact": False},
        {"what": "expandable_segments:True", "saved_mib": 90, "exact": True},
    ],
    "moments": [
        {"in_use": {"parameters": 100, "activations": n}, "held_mib": 500, "mark": mark}
        for n, mark in ((100, ""), (400, "step1"), (200, "step2"))
    ],
}


def an_estimate(source: str, mib: int | None, why: str = "", **changes: Any) -> Any:
    found = {"source": source, "mib": mib, "low": mib, "high": mib, "seconds": 0.5, "why": why}
    return {**found, "notes": [], "parts": {}, "phases": {}, "chosen": False, **changes}


def an_answer(*estimates: Any) -> Any:
    fits = [{"gpu": 0, "free_mib": 27_000, "fits": True}]
    return {"schema": 1, "crash": None, "estimates": list(estimates), "fits": fits} | {
        "verdicts": REFUSALS,
        "reasons": [],
        "explanation": None,
    }


def traced(mib: int, **changes: Any) -> Any:
    """The answer of a server that chooses the trace, which is off by at most 1 MiB."""
    found = an_estimate("trace", mib, low=mib - 1, high=mib + 1, chosen=True, **changes)
    return an_answer(an_estimate("history", None, "no like job ran"), found)


def answering(fake: FakeDaemon, say: Callable[[list[str]], Any]) -> list[list[str]]:
    """Lets `say` answer from now on, given the command sent. Returns the list of requests."""
    asked = []

    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        assert (method, target.partition("?")[0]) == ("POST", "/v1/estimate")
        assert "explain" in target or body["memory_mib"] is None
        asked.append(body["argv"])
        return 200, say(body["argv"])

    fake.answer = answer  # type: ignore[method-assign]
    return asked


def of_batch(per_sample: float, fixed: int = 1000) -> Callable[[list[str]], Any]:
    return lambda argv: traced(fixed + round(per_sample * int(argv[-1])))


# which number is varied


@pytest.mark.parametrize(
    ("argv", "value", "filled"),
    [
        ("p t.py --batch-size 64 --lr 1", 64, "p t.py --batch-size 7 --lr 1"),
        ("p t.py --batch_size=64", 64, "p t.py --batch_size=7"),
        ("p t.py -batch-size 64", 64, "p t.py -batch-size 7"),
        ("p t.py -b 64 x", 64, "p t.py -b 7 x"),
        ("p t.py -b64", 64, "p t.py -b7"),
        ("p t.py batch_size=64", 64, "p t.py batch_size=7"),
        ("p t.py +data.batch_size=64", 64, "p t.py +data.batch_size=7"),
        ("p t.py --batch-size 1 --batch-size 64", 64, "p t.py --batch-size 1 --batch-size 7"),
        ("timm:resnet50 --batch-size 64", 64, "timm:resnet50 --batch-size 7"),
        ("p t.py", 16, "p t.py --batch-size 7"),
        ("p t.py --val-batch-size 3", 16, "p t.py --val-batch-size 3 --batch-size 7"),
        ("p t.py --batch-size auto", 16, "p t.py --batch-size auto --batch-size 7"),
        ("p t.py --no-b 3 --batch-sizes 9", 16, "p t.py --no-b 3 --batch-sizes 9 --batch-size 7"),
    ],
)
def test_the_batch_size_is_found(argv: str, value: int, filled: str) -> None:
    command = vary.find_number(argv.split(), "batch-size")
    assert command.value == value
    assert command.fill(7) == filled.split()


def test_another_number_is_found_by_its_name() -> None:
    argv = ["p", "t.py", "-b", "8", "--seq-len=128", "-n", "3", "data.size=4"]
    for name, value in (("seq_len", 128), ("seq-len", 128), ("n", 3), ("data.size", 4)):
        assert vary.find_number(argv, name).value == value
    assert vary.find_number(argv, "hidden").fill(5) == [*argv, "--hidden", "5"]
    assert vary.find_number(argv, "hidden").value != 8, "-b is the batch alone"
    for name in ("", "--batch-size", "a b", "a=1"):
        with pytest.raises(Usage):
            vary.find_number(argv, name)


# the search


def searched(
    takes: Callable[[int], int], start: int, limit_mib: int, fixed: int = 0
) -> dict[int, int]:
    """MiB by value, in the order in which they were tried. `fixed`: of it, known from the parts."""
    tried: dict[int, int] = {}
    while value := vary.following({0: fixed, **tried} if tried else {}, start, limit_mib):
        assert 1 <= value <= vary.MOST and value not in tried
        tried[value] = takes(value)
    return tried


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 50))
def test_the_largest_is_found_from_everywhere(largest: int, start: int, fixed: int) -> None:
    limit = fixed + 3 * largest
    tried = searched(lambda value: fixed + 3 * value, start, limit, fixed)
    fits, over = vary.bounds(tried, limit)
    assert over is not None and fits <= largest < over <= fits + max(1, fits // 100)
    assert len(tried) <= 5


@given(st.floats(0.3, 900), st.integers(400, 6000), st.sampled_from((8, 24, 80)), st.integers(4, 9))
def test_five_traces_find_the_largest(sample: float, fixed: int, gib: int, exponent: int) -> None:
    """The allocator takes blocks of 20 MiB, and the margin is not among the parts."""
    limit = gib * 1024

    def takes(value: int) -> int:
        return fixed + 512 + round(1.05 * sample * value) // 20 * 20

    tried = searched(takes, 2**exponent, limit, fixed)
    fits, over = vary.bounds(tried, limit)
    assert over is not None and over - fits <= max(1, fits // 100)
    assert len(tried) <= 6 if limit / sample > 20_000 else len(tried) <= 5


def test_what_is_not_linear_is_found_as_well() -> None:
    for start in (1, 60, 3000):
        tried = searched(lambda value: value**2, start, 400_000)
        fits, over = vary.bounds(tried, 400_000)
        assert over is not None and fits <= 632 < over <= 1.01 * fits + 1
        assert len(tried) <= 14


def test_a_small_model_takes_few_traces() -> None:
    """Its memory hardly grows at first, so the first values say little about the line."""
    tried = searched(lambda value: 890 + 2 * round(value * 0.0288), 16, 2048)
    fits, over = vary.bounds(tried, 2048)
    assert over is not None and fits <= 20_121 < over <= 1.01 * fits + 1
    assert len(tried) <= 6, "of 0, too"


def test_a_neighbour_that_takes_less_does_not_mislead() -> None:
    """Measured: of convit_small, 170 images take 70 MiB less than 169."""
    takes = {16: 3636, 132: 19470, 169: 24445, 170: 24374, 171: 25038}
    tried = searched(lambda value: takes.get(value, 150 * value), 16, 24 * 1024)
    assert max(tried) < 1000 and vary.bounds(tried, 24 * 1024) == (170, 171)


def test_not_even_one_fits() -> None:
    tried = searched(lambda value: 100 + value, 6, 100, fixed=100)
    assert list(tried) == [6, 1]
    assert vary.bounds(tried, 100) == (0, 1)


def test_there_is_an_end_to_what_is_tried() -> None:
    tried = searched(lambda value: value // 10, 30, vary.MOST)
    assert max(tried) == vary.MOST and len(tried) < 5
    assert vary.bounds(tried, vary.MOST) == (vary.MOST, None)


def test_blocks_of_memory_are_told_from_what_does_not_depend() -> None:
    """A small model needs the same for 16 and 32, as the allocator hands out at least 2 MiB."""
    assert list(searched(lambda value: 5, 16, 10)) == [16, 32, 2048]
    tried = searched(lambda value: 4 + value // 100, 16, 10)
    fits, over = vary.bounds(tried, 10)
    assert over is not None and fits < 700 <= over <= 1.01 * fits


def test_without_an_estimate_above_the_gap_is_narrowed() -> None:
    assert vary.following({0: 9, 64: 100}, 64, 9000, refused=1024) == 256
    assert vary.following({0: 9, 64: 100, 256: 300}, 64, 9000, refused=512) is None
    assert vary.following({}, 64, 9000, refused=64) is None
    tried = {0: 9, 16: 2500, 64: 9900}
    assert vary.following(tried, 64, 9000, refused=100) == vary.following(tried, 64, 9000)


def test_the_largest_batch_that_fits(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    asked = answering(fake, of_batch(10))
    words = ["estimate", "--gpu-mem", "2G", "--fit", "2G", "prog", "t.py", "-b", "64"]
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "--batch-size 104 is the largest that fits into 2.0G." in out
    rows = [line.split() for line in out.splitlines() if line[:1].isspace() or line[:3].isdigit()]
    assert ["104", "2.0G", "2.0G", "2.0G", "yes"] in rows and ["105", *rows[1][1:4], "no"] in rows
    assert f"Tried {len(asked)} values" in out and len(asked) <= 5
    assert asked[0] == ["prog", "t.py", "-b", "64"]
    assert len({tuple(argv) for argv in asked}) == len(asked)


def test_the_search_for_programs(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    answering(fake, of_batch(10))
    assert run(["estimate", "--json", "--fit", "1040M", "--vary", "n", "prog", "-n", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["vary"], found["limit_mib"], found["source"]) == ("n", 1040, "trace")
    assert (found["largest"], found["depends"], found["refused"]) == (3, True, None)
    assert {one["value"]: one["high"] for one in found["tried"]} == {4: 1041, 3: 1031}
    assert (found["too_large"], found["precision"]) == (4, 0.01)


def test_what_does_not_depend_is_told(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    asked = answering(fake, of_batch(0))
    assert run(["estimate", "--fit", "2G", "prog"]) == 1
    assert "--batch-size does not affect its memory" in capsys.readouterr().out
    assert [argv[1:] for argv in asked] == [["--batch-size", n] for n in ("16", "32", "2048")]


def test_what_cannot_fit_is_told(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    answering(fake, of_batch(1))
    assert run(["estimate", "--fit", "900M", "prog", "-b", "2"]) == 1
    assert "Not even --batch-size 1 fits into 900M." in capsys.readouterr().out
    answering(fake, of_batch(1e-3))
    assert run(f"estimate --fit 9G prog -b {vary.MOST}".split()) == 0
    assert "more was not tried" in capsys.readouterr().out


def test_a_search_ends_where_nobody_has_an_answer(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = an_answer(an_estimate("trace", None, "IndexError: no such row"))
    answering(fake, lambda argv: traced(int(argv[-1])) if int(argv[-1]) < 100 else nothing)
    assert run(["estimate", "--fit", "2G", "--explain", "prog", "-b", "32"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    end = "there is no estimate for --batch-size 149: IndexError: no such row"
    assert f"--batch-size 89 fits into 2.0G; {end}" in out
    answering(fake, lambda argv: nothing)
    assert run(["estimate", "--json", "--fit", "2G", "prog"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["largest"] is None and found["refused"]["value"] == 16
    assert found["refused"]["estimates"][0]["why"] == "IndexError: no such row"


def test_one_estimator_counts_all_the_way(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """History is about the batch that ran, and other estimators have a different scale."""

    def say(argv: list[str]) -> Any:
        batch = int(argv[-1])
        return an_answer(
            an_estimate("history", 10, chosen=True),
            an_estimate("horus", 90 * batch),
            an_estimate("trace", 10 * batch if batch <= 32 else None, "too slow"),
        )

    answering(fake, say)
    assert run(["estimate", "--json", "--fit", "1G", "prog", "-b", "16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == "trace" and found["refused"]["value"] > 32
    answering(fake, lambda argv: an_answer(*say([*argv, "64"])["estimates"][:1]))
    assert run(["estimate", "--json", "--fit", "1G", "prog", "-b", "16"]) == 1
    assert json.loads(capsys.readouterr().out)["tried"] == []


def test_a_terminal_shows_what_was_learnt_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with command._progress("batch-size", 2048) as tell:
        tell(64, {})
        tell(96, {64: 1024, 128: 3072})
    shown = " ".join(plain([Text.from_ansi(screen.getvalue())]).split())
    assert "batch-size 96 is traced, 64 fits (1.0G), 128 does not (3.0G)" in shown


# what is shown


def test_all_estimators_are_shown_and_the_chosen_one_is_marked(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    horus = an_estimate("horus", None, "no layers are known", seconds=0.0)
    other = {**horus, "source": "faketensor"}
    trace = traced(9000, notes=["torch 2.13", "\x1b[2J"])["estimates"]
    found = an_answer(*trace, horus, other, an_estimate("gpumemnet", 8192))
    fake.answers["POST", "/v1/estimate"] = found
    assert run(["estimate", "--", "python", "train.py", "--batch-size", "64"]) == 0
    assert fake.body["argv"] == ["python", "train.py", "--batch-size", "64"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SOURCE", "MEMORY", "LOW", "HIGH", "TOOK", "NOTE"]
    assert lines[1].split()[:7] == ["trace", "*", "8.8G", "8.8G", "8.8G", "0.5", "s"]
    assert lines[1].endswith("torch 2.13; ?[2J")
    assert lines[2].split()[0] == "gpumemnet" and lines[3].endswith("no like job ran")
    assert lines[4].endswith("no layers are known") and lines[5].endswith("as for horus")
    assert "* decides: 8.8G must be free on each of its GPUs." in lines
    gpus = [line.split() for line in lines if line.startswith("GPU")]
    assert gpus[0][:4] == ["GPU", "0", "26.4G", "free"] and "busy" in gpus[0]
    assert gpus[1] == ["GPU", "1", "-", "would", "take", "it", "now"]


def test_a_model_by_its_name(fake: FakeDaemon) -> None:
    words = ["timm:resnet50", "--batch-size", "64", "--optimizer", "sgd"]
    assert run(["estimate", *words]) == 0
    assert fake.body["argv"] == words


def test_the_options_that_follow_a_models_name_are_its_own(fake: FakeDaemon) -> None:
    assert run(["estimate", "--within=90", "--gpus", "2", "timm:m", "--batch-size", "8"]) == 0
    assert fake.body["argv"] == ["timm:m", "--batch-size", "8"]
    assert (fake.body["gpus"], fake.body["within_s"]) == (2, 90.0)
    assert run(["estimate", "prog", "--json"]) == 0
    assert fake.body["argv"] == ["prog", "--json"], "a program's options are its own"


def test_how_long_a_script_may_take(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "prog"]) == 0
    assert "within_s" not in fake.body, "the server's own default"
    for words, seconds in (("90", 90.0), ("90s", 90.0), ("2m", 120.0)):
        assert run(["estimate", "--within", words, "prog"]) == 0
        assert fake.body["within_s"] == seconds
    for words in ("0", "x", "601", "1h"):
        assert run(["estimate", "--within", words, "prog"]) == 2
        assert "up to 600 seconds" in capsys.readouterr().err


def test_no_estimate_is_an_exit_code(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = an_answer(an_estimate("trace", None, "not PyTorch"))
    fake.answers["POST", "/v1/estimate"] = nothing
    for words in ("estimate prog", "estimate --explain prog"):
        assert run(words.split()) == 1
        out, err = capsys.readouterr()
        assert "not PyTorch" in out and "Its need is unknown" in out and err == ""
    assert run(["estimate", "--json", "prog"]) == 1
    assert json.loads(capsys.readouterr().out) == nothing


def test_a_script_that_stops_by_itself_is_the_headline(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """And all there is, unless an older version of it has a history that says what it needs."""
    crash = "at train.py:5: RuntimeError: a and b must have same reduction dim"
    told = {"trace": "", "history": "\nSOURCE"}
    for one in (an_estimate("trace", None, "it stops"), an_estimate("history", 9, chosen=True)):
        fake.answers["POST", "/v1/estimate"] = an_answer(one) | {"crash": crash}
        assert run(["estimate", "--explain", "prog"]) == 1
        out = capsys.readouterr().out
        assert out.startswith(f"Your script stops {crash}\n" + told[one["source"]])
        assert ("SOURCE" in out) is bool(told[one["source"]])


def test_an_estimate_that_no_gpu_has_is_none_to_go_by(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    too_large = "needs at least 149.5G, and the largest GPU has 40.0G"
    taken = {"gpu": {"id": "GPU-0", "index": 0}, "refused": []}
    fake.answers["POST", "/v1/estimate"] = an_answer(an_estimate("trace", 229_478, chosen=True)) | {
        "too_large": too_large,
        "verdicts": [taken],
    }
    assert run(["estimate", "prog"]) == 1
    out = capsys.readouterr().out
    assert f"\nIt {too_large}.\n" in out and "would take it" not in out
    fake.answers["POST", "/v1/estimate"]["too_large"] = None
    assert run(["estimate", "prog"]) == 0
    assert "would take it now" in capsys.readouterr().out


def test_the_most_in_each_phase_and_a_late_mistake(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = {"training": 7168, "evaluation": 9216, "saving": 6144}
    answer = traced(9300, phases=phases)
    fake.answers["POST", "/v1/estimate"] = answer
    assert run(["estimate", "prog"]) == 0
    shown = "\nIn use at most: training 7.0G, evaluation 9.0G, saving 6.0G.\n"
    assert shown in capsys.readouterr().out
    crash = "at train.py:88: NameError: name 'acc' is not defined"
    fake.answers["POST", "/v1/estimate"] = answer | {"crash": crash}
    assert run(["estimate", "prog"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"Your script stops {crash}\n") and shown in out
    fake.answers["POST", "/v1/estimate"] = traced(9300, phases={"training": 7168})
    assert run(["estimate", "prog"]) == 0
    assert "In use" not in capsys.readouterr().out


def test_what_the_memory_is_for(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    answer = traced(1000, parts=PARTS, notes=["cudnn.benchmark is on"])
    fake.answers["POST", "/v1/estimate"] = answer | {"explanation": EXPLAINED}
    assert run(["estimate", "--explain", "prog"]) == 0
    assert fake.query == {"explain": "true"}
    lines = capsys.readouterr().out.splitlines()
    assert "  300M  blocks.*.up        12 × Linear" in lines and "  350M  train.py:12" in lines
    assert "  100M  the backward pass" in lines
    assert "  about -200M  half the batch: 32 instead of 64" in lines
    assert "         -90M  expandable_segments:True" in lines
    bar = next(line for line in lines if line.startswith("█"))
    assert bar == "█" * 6 + "▓" * 6 + "░" * 24 + "·" * 24
    assert ["░", "activations", "400M", "40.0%"] in [line.split() for line in lines]
    assert "  · cudnn.benchmark is on" in lines


@given(st.lists(st.integers(0, 90_000), min_size=1, max_size=7).filter(any))
def test_the_bar_is_as_long_as_all_its_parts(sizes: list[int]) -> None:
    parts = dict(zip(view.LOOKS, sizes, strict=False))
    one = an_estimate("trace", sum(sizes), parts=parts)
    lines = plain(view.explanation(one, None)).splitlines()
    assert len(lines[1]) == view.BAR_WIDTH
    for name, size in parts.items():
        cells = lines[1].count(view.LOOKS[name][0])
        assert abs(cells - view.BAR_WIDTH * size / sum(sizes)) <= 1


def test_what_the_chosen_one_cannot_explain_another_may(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = an_estimate("history", 900, chosen=True)
    answer = an_answer(history, an_estimate("trace", 1000, parts=PARTS))
    fake.answers["POST", "/v1/estimate"] = answer
    assert run(["estimate", "--explain", "prog"]) == 0
    assert "by trace" in capsys.readouterr().out
    fake.answers["POST", "/v1/estimate"] = an_answer(history)
    for words, code in ((["--explain"], 0), (["--plot", "x.html"], 1)):
        assert run(["estimate", *words, "prog"]) == code
        assert "no estimator breaks its estimate down" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_the_search_explains_what_it_found(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(argv: list[str]) -> Any:
        mib = 10 * int(argv[-1])
        return traced(mib, parts={"context": mib}) | {"explanation": EXPLAINED}

    answering(fake, say)
    assert (
        run(["estimate", "--fit", "1G", "--explain", "--plot", "x.html", "prog", "-b", "64"]) == 0
    )
    assert re.search(r"context +1020M +100.0%", capsys.readouterr().out)
    assert "prog -b 102" in (tmp_path / "x.html").read_text()


# files


@pytest.mark.parametrize("form", ["html", "svg"])
def test_a_file_has_the_drawing_and_the_breakdown_and_needs_nothing_else(
    fake: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    answer = traced(1000, parts=PARTS, notes=["<b>bold</b>"]) | {"explanation": EXPLAINED}
    fake.answers["POST", "/v1/estimate"] = answer
    assert run(["estimate", "--json", "--plot", f"x.{form}", "prog", "<i>"]) == 0
    out, err = capsys.readouterr()
    assert err == f"carma: wrote x.{form}\n"
    assert json.loads(out[out.index("{") :])["schema"] == 1
    page = (tmp_path / f"x.{form}").read_text()
    assert "<i>" not in page and "<b>" not in page and "&lt;i&gt;" in page
    assert not re.search(r"url\((?!#)|<script|<link|@import|src=|href=", page)
    words = unescape(re.sub("<[^>]*>", "", page)).replace("\xa0", " ")
    for each in ("1000M (999M to 1001M) by trace", "blocks.*.up", "activations", "│"):
        assert each in words
    assert view.LOOKS["activations"][1].lower() in page.lower()


def test_a_drawing_on_the_terminal(fake: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Three moments; the tallest column is what the allocator holds, and the context."""
    fake.answers["POST", "/v1/estimate"] = traced(1000, parts=PARTS) | {"explanation": EXPLAINED}
    assert run(["estimate", "--plot", "-", "prog"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.partition("│")[2] for line in lines if "│" in line]
    assert len(rows) == view.PLOT_HEIGHT
    assert rows[0] == "=░=" and rows[-1] == "···"
    assert [row[1] for row in rows].count("░") > [row[0] for row in rows].count("░")
    assert any(line.strip() == "─↑↑" for line in lines)


def test_without_a_trace_there_is_nothing_to_draw(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers["POST", "/v1/estimate"] = traced(1000, parts=PARTS)
    assert run(["estimate", "--plot", "-", "prog"]) == 1
    assert "only a trace can be drawn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--vary n prog", 2, "--vary goes with --fit"),
        ("--fit 24 prog", 2, "is in MiB; write 24G"),
        ("--fit 24G --vary=--n prog", 2, "without its dashes"),
        ("--fit 24G --wrap true", 2, "no option of a --wrap can be varied"),
        ("--plot x.pdf prog", 2, "only .svg and .html"),
        ("--plot none/x.svg prog", 1, "cannot write none/x.svg"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_asked(
    fake: FakeDaemon, capsys: pytest.CaptureFixture[str], words: str, code: int, said: str
) -> None:
    assert run(["estimate", *words.split()]) == code
    assert said in capsys.readouterr().err
    assert not fake.asked


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Usage: carma estimate" in out and "--fit SIZE" in out and "--gpu-mem" in out


def test_the_canned_answer_is_as_those_here() -> None:
    canned = ANSWERS["POST", "/v1/estimate"]
    assert set(canned) == set(an_answer())
    assert set(canned["estimates"][0]) == set(an_estimate("trace", 1))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, where no daemon answers."""
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    estimation._note_alone.cache_clear()
    return tmp_path


def test_without_a_daemon_it_is_estimated_by_the_user(alone: Path, capsys: Any) -> None:
    assert run(["estimate", "--gpu-mem", "9G", "--json", "true"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    said = {one["source"]: one["mib"] for one in answer["estimates"]}
    assert said["declared"] == 9 * 1024 and said["history"] is None
    assert (answer["fits"], answer["verdicts"]) == ([], [])
    assert err.count("estimated without carmad") == 1
    assert f"no answer at {alone}/none" in err


def test_a_daemon_that_does_not_answer_in_time_is_not_taken_for_none(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(alone / "none"))
        listener.listen()
        monkeypatch.setattr(estimation, "ESTIMATE_S", 0.01)
        assert run(["estimate", "--gpu-mem", "9G", "true"]) == 3
    assert "carmad has not answered in 0.01 s" in capsys.readouterr().err


def test_without_a_daemon_a_script_that_stops_is_told(alone: Path, capsys: Any) -> None:
    pytest.importorskip("torch")
    (alone / "train.py").write_text("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    assert run(["estimate", sys.executable, "train.py"]) == 1
    assert "Your script stops at train.py:2: RuntimeError" in capsys.readouterr().out


def test_without_a_daemon_its_limits_hold(alone: Path, capsys: Any) -> None:
    assert run(["estimate", "--name", "a\x01b", "true"]) == 1
    assert "--job-name is empty" in capsys.readouterr().err


def test_a_picture_is_no_wider_than_the_terminal() -> None:
    moments: Any = [*EXPLAINED["moments"]] * 100  # type: ignore[list-item]
    one = an_estimate("trace", 1000, parts=PARTS)

    def lines(width: int) -> list[str]:
        return plain(view.drawing(moments, one, width), width).splitlines()

    for width in (40, 60, 80, 200):
        drawn = [line for line in lines(width) if "│" in line]
        assert len(drawn) == view.PLOT_HEIGHT
        assert lines(width)[1 + len(drawn)].strip("─↑ ") == "", "no row is wrapped"


def test_a_closed_stdout_is_no_fault() -> None:
    command = "import sys; from cli.main import main; sys.argv[1:] = ['gpus', '--help']; main()"
    told = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, command],
        capture_output=True,
        text=True,
    )
    assert (told.returncode, told.stderr) == (0, "")
