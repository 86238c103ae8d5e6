"""Words of a command line that are read without argparse."""

from __future__ import annotations

import pytest

from cli import plain
from cli.problems import Usage
from cli.verbs import ARGPARSE, every

WORDS = [
    "",
    "--json",
    "--me --json",
    "-u ann",
    "-u=ann",
    "-uann",
    "--user ann --json",
    "--user=ann",
    "--user=",
    "--user=-x",
    "--user -x",
    "--user",
    "-u --json",
    "--json=1",
    "--js",
    "--help",
    "--no-such-option",
    "42",
    "42 43",
    "42 --json",
    "--json 42 43",
    "42 --json 43",
    "-- 42",
    "-1",
    "-w 5",
    "-S -jobid",
    "-t R,PD -o jobid -hl",
    "-h -l -r",
    "--since 7d --json",
]

NAMED = {verb.name: verb for verb in every()}


@pytest.mark.parametrize("name", [verb.name for verb in every() if verb.reads == ARGPARSE])
@pytest.mark.parametrize("words", WORDS)
def test_plain_words_are_read_as_argparse_reads_them(name: str, words: str) -> None:
    verb = NAMED[name]
    found = plain.read(verb._declare, words.split())
    if found is not None:
        assert vars(found) == vars(verb.parser().parse_args(words.split()))


@pytest.mark.parametrize(
    "words",
    [
        "queue",
        "queue --json --me",
        "queue -u ann --states=R",
        "status",
        "status --json",
        "show 42",
        "why last --json",
        "why",
        "show --json",
        "cancel 1 3,5-8",
        "gpus",
    ],
)
def test_daily_words_are_plain(words: str) -> None:
    verb, *rest = words.split()
    assert plain.read(NAMED[verb]._declare, rest) is not None


@pytest.mark.parametrize("words", ["queue --watch", "queue 42", "show 1 2", "cancel"])
def test_what_is_not_plain_is_left_to_argparse(words: str) -> None:
    verb, *rest = words.split()
    assert plain.read(NAMED[verb]._declare, rest) is None


def test_a_wrong_word_is_told_as_before() -> None:
    with pytest.raises(Usage, match="carma queue has no option --jsn"):
        NAMED["queue"].read(["--jsn"])
