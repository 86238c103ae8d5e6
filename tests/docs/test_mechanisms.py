"""The counts on the page of the papers' mechanisms are those of its rows."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/policies/mechanisms.md"
MECHANISMS = {"CARMA": 34, "Lucid": 34, "A-SRPT": 22, "Cuckoo": 22, "Castor": 19}


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_counts_are_those_of_the_rows() -> None:
    summary, *papers = PAGE.read_text(encoding="utf-8").split("\n## ")
    told = {paper: [int(each) for each in counts] for paper, *counts in cells(summary)}
    rows = {name: cells(text) for name, _, text in (each.partition("\n") for each in papers)}
    assert rows.keys() == MECHANISMS.keys()
    for paper, (mechanisms, described, beyond, differ, tested, missing) in told.items():
        assert mechanisms == described + beyond + differ + missing
        if paper == "all":
            continue
        own = rows[paper]
        differing = [row for row in own if row[2].startswith("**differs**")]
        assert [len(differing), len(own) - len(differing)] == [differ, missing], paper
        assert sum(not row[3].startswith("not measured") for row in differing) == tested, paper
        assert mechanisms == MECHANISMS[paper]
    assert told.pop("all") == [sum(each) for each in zip(*told.values(), strict=True)]
