"""Replaying a journal reproduces its decisions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from carmad.core.messages import Estimated, Event
from carmad.core.scheduler import HANDLERS
from carmad.core.state import State
from carmad.errors import CarmaError
from carmad.store import journal
from lab.replay import main, reproduce
from tests.recorded import Recorded


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Two flushes of a short day."""
    server = Recorded(tmp_path)
    for second in server.busy_day(60):
        if second == 30:
            server.journal.flush()
    server.journal.flush()
    (path,) = journal.segments(tmp_path)
    return path


def test_an_end_that_was_never_written_is_no_harm(segment: Path) -> None:
    content = segment.read_bytes()
    found = []
    for cut in (0, 1, 8, 1000):
        segment.write_bytes(content[: len(content) - cut])
        found.append(reproduce(segment))
    assert [each.first for each in found] == [None] * 4
    whole, _, _, much = (each.steps for each in found)
    assert 30 < much < whole


def test_what_is_no_journal_is_refused_with_its_place(segment: Path, tmp_path: Path) -> None:
    lines = gzip.decompress(segment.read_bytes()).splitlines()
    other = tmp_path / "other"

    def refused(*lines: bytes) -> str:
        other.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))
        with pytest.raises(CarmaError) as caught:
            reproduce(other)
        return str(caught.value)

    assert "line 1 of" in refused(b"{}")
    assert "line 1 of" in refused(*lines[1:])
    assert "line 3 of" in refused(*lines[:2], b"nonsense")
    assert "line 2 of" in refused(lines[0], b'{"events": [["Party", {}]], "decisions": []}')
    assert "line 2 of" in refused(lines[0], b"[1, 2]")
    assert "line 2 of" in refused(lines[0], b'{"events": [], "decisions": []}')
    assert "is empty" in refused()
    other.write_bytes(b"nonsense")
    with pytest.raises(CarmaError, match="cannot read"):
        reproduce(other)
    with pytest.raises(CarmaError, match="cannot read"):
        reproduce(tmp_path / "none")


def tampered(segment: Path, change: str) -> list[bytes]:
    """The lines of `segment` with one thing changed in the middle, and where."""
    lines = gzip.decompress(segment.read_bytes()).splitlines()
    told = [n for n, line in enumerate(lines) if n and json.loads(line)["decisions"]]
    at = told[len(told) // 2]
    turn = json.loads(lines[at])
    match change:
        case "a decision's number":
            turn["decisions"][0]["at"] += 1e-6
        case "a decision is gone":
            turn["decisions"].pop()
        case "a decision too many":
            turn["decisions"] *= 2
        case "an event is gone":
            lines[at] = (
                b'{"events": [["Tick", {"at": %f}]], "decisions": []}' % turn["events"][0][1]["at"]
            )
            return lines
        case "a job's wish":
            begin = next(n for n, line in enumerate(lines) if b'"specs"' in line)
            lines[begin] = lines[begin].replace(b'"exclusive":false', b'"exclusive":true')
            lines[begin] = lines[begin].replace(b'"gpus":1', b'"gpus":3')
            return lines
    lines[at] = json.dumps(turn).encode()
    return lines


@pytest.mark.parametrize(
    "change",
    [
        "a decision's number",
        "a decision is gone",
        "a decision too many",
        "an event is gone",
        "a job's wish",
    ],
)
def test_a_tampered_journal_is_noticed(segment: Path, change: str) -> None:
    whole = reproduce(segment)
    assert whole.first is None
    lines = tampered(segment, change)
    segment.write_bytes(gzip.compress(b"\n".join(lines)))
    found = reproduce(segment)
    assert found.first is not None
    assert found.first.recorded != found.first.made
    assert found.decisions < whole.decisions
    assert found.steps == found.first.step


def test_the_command_says_whether_a_journal_is_made_again(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(segment)]) == 0
    assert f"{reproduce(segment).decisions} decisions of" in capsys.readouterr().out
    lines = tampered(segment, "a decision is gone")
    segment.write_bytes(gzip.compress(b"\n".join(lines)))
    assert main([str(segment)]) == 1
    assert "not ()" in capsys.readouterr().out  # what is on record there, and then what was made
    segment.write_text("nonsense")
    assert main([str(segment)]) == 2
    assert str(segment) in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])


def test_a_core_that_raises_is_a_difference(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, one of another version."""

    def refuse(state: State, event: Event) -> None:
        raise KeyError(f"at {event.at}")

    monkeypatch.setitem(HANDLERS, Estimated, refuse)
    first = reproduce(segment).first
    assert first is not None
    assert first.error == f"KeyError('at {first.at}')"
    assert first.made == ()
