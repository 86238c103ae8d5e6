"""Manual pages, from what the reference is generated from: `python -m docs.man DIRECTORY`.

carma(1), a page for each command such as carma-submit(1), carmad(8) and carma.toml(5).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from carmad.daemon.main import build_parser
from cli.verbs import Command
from docs.pages import commands, settings
from docs.pages.commands import Word
from docs.pages.text import one_line

RUNNING = "carmad listens for `carma`, decides when and on which GPUs jobs start, and watches them."
STOPPED = (
    "SIGTERM stops it, and jobs continue: the next carmad takes them over. SIGHUP reads the"
    " settings file again. Exit status 78 says that it cannot start before an administrator has"
    " mended what the log names."
)
IN_FILE = (
    "One TOML file: `/etc/carma/carma.toml` for a daemon that runs as root,"
    " `~/.config/carma/carma.toml` for a user's own. It is optional. A variable of the daemon's"
    " environment overrides the file: `CARMA_LIMITS__GPUS_PER_USER=2` is `gpus_per_user = 2` in"
    " `[limits]`. `carma config check FILE` checks a file, and `carma config show` prints what is"
    " in effect."
)
FILES = {
    "/etc/carma/carma.toml": "settings",
    "/var/lib/carma": "database, its backups, journal, records of running jobs",
    "/run/carma/carmad.sock": "where carmad listens",
    "~/.config/carma, ~/.local/state/carma": "of a user's own daemon",
}


def pages() -> dict[str, str]:
    """Every manual page in roff, by its file name."""
    every = commands.commands()
    made = {"carma.1": _carma(every), "carmad.8": _carmad(), "carma.toml.5": _settings()}
    for _, one in every:
        made[f"carma-{one.name.replace(' ', '-')}.1"] = _command(one)
    return made


def _carma(every: list[tuple[str, Command]]) -> str:
    out = [_head("carma", "1", "runs jobs on the shared GPUs of a server")]
    out += [".SH SYNOPSIS", "\\fBcarma\\fR [\\fB\\-\\-color\\fR \\fIWHEN\\fR] \\fIVERB\\fR …"]
    out += [".SH DESCRIPTION", _text(commands.ABOUT), ".SH COMMANDS"]
    for panel in dict.fromkeys(its for its, _ in every):
        out.append(f".SS {panel}")
        for its, one in every:
            if its == panel:
                page = f"carma-{one.name.replace(' ', '-')}"
                out += [".TP", f".BR {_plain(page)} (1)", _text(one_line(one.summary))]
    out += [".SH EXIT STATUS", *_listed(commands.EXIT_CODES), ".PP", _text(commands.OTHER_CODES)]
    out += [".SH FILES", *_listed(FILES), ".SH SEE ALSO", ".BR carma.toml (5),", ".BR carmad (8)"]
    return "\n".join(out) + "\n"


def _command(one: Command) -> str:
    name, what = f"carma-{one.name.replace(' ', '-')}", commands.describe(one)
    first = one.summary.partition(". ")[0].partition(": ")[0].rstrip(".")
    out = [_head(name, "1", first[0].lower() + first[1:]), ".SH SYNOPSIS"]
    out += [".nf", _plain(what.usage), ".fi", ".SH DESCRIPTION"]
    for text in what.about:
        if text.startswith("\b"):
            out += [".PP", ".nf", *map(_plain, text.removeprefix("\b").strip().splitlines()), ".fi"]
        else:
            out += [".PP", _text(text)]
    out += [".SH OPTIONS"] if what.groups else []
    for title, words in what.groups:
        out += [f".SS {title}"] if title else []
        out += _words(words)
    return "\n".join([*out, ".SH SEE ALSO", ".BR carma (1)"]) + "\n"


def _carmad() -> str:
    out = [_head("carmad", "8", "the daemon of CARMA, which runs jobs on shared GPUs")]
    out += [".SH SYNOPSIS", "\\fBcarmad\\fR [\\fIOPTION\\fR]…", ".SH DESCRIPTION", _text(RUNNING)]
    out += [".SH OPTIONS", *_words(commands.of_parser(build_parser()._actions))]
    out += [".SH SIGNALS AND EXIT STATUS", _text(STOPPED), ".SH FILES", *_listed(FILES)]
    return "\n".join([*out, ".SH SEE ALSO", ".BR carma (1),", ".BR carma.toml (5)"]) + "\n"


def _settings() -> str:
    out = [_head("carma.toml", "5", "settings of carmad"), ".SH DESCRIPTION", _text(IN_FILE)]
    out.append(".SH SETTINGS")
    section = ""
    for one in settings.settings():
        if one.section != section:
            section = one.section
            out.append(f".SS [{_plain(section)}]")
        said = f"{settings.meaning(one)} (default: {settings.default(one)})"
        out += [".TP", f"\\fB{_plain(one.name)}\\fR", _text(said)]
    return "\n".join([*out, ".SH SEE ALSO", ".BR carmad (8)"]) + "\n"


def _head(name: str, section: str, said: str) -> str:
    """Without a date: two builds make the same page."""
    title = f'.TH "{_plain(name.upper())}" "{section}" "" "CARMA"'
    return f"{title}\n.SH NAME\n{_plain(name)} \\- {_text(said)}"


def _words(words: Iterable[Word]) -> list[str]:
    out = []
    for word in words:
        names = ", ".join(f"\\fB{_plain(name)}\\fR" for name in word.names)
        said = word.said
        out += [".TP", names, _text(one_line(said))]
    return out


def _listed(terms: dict[str, str]) -> list[str]:
    return [
        line
        for term, said in terms.items()
        for line in (".TP", f"\\fB{_plain(term)}\\fR", _text(said))
    ]


def _text(markdown: str) -> str:
    """A paragraph: code becomes bold, of links only the words stay."""
    bare = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", markdown)
    parts = [_plain(part) for part in bare.split("`")]
    text = "".join(f"\\fB{part}\\fR" if at % 2 else part for at, part in enumerate(parts))
    return text or "…"


def _plain(text: str) -> str:
    """Escaped, so that roff takes nothing for a command or a typographic dash or quote."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    escaped = escaped.replace("^", "\\(ha").replace("~", "\\(ti")
    return "\\&" + escaped if escaped.startswith(".") else escaped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (directory / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
