"""What a period was used for: `report`."""

from __future__ import annotations

from argparse import ArgumentTypeError

from cli import client, output, parse
from cli.options import add_json, check

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path
    from typing import Any

    from cli.parser import Parser


def _period(word: str) -> str:
    if word in ("week", "month"):
        return word
    hint = "; jobs report their steps by carma report-step" if word[:1].isdigit() else ""
    raise ArgumentTypeError(f"{word!r} is not week or month{hint}")


def _path(word: str) -> Path:
    from pathlib import Path  # takes 8 ms

    return Path(word)


def report_options(parser: Parser) -> None:
    add = parser.add_argument
    add("period", nargs="?", type=_period, default="week", metavar="PERIOD", help="week or month")
    add("-S", "--since", metavar="TIME", help="instead: from this time on, 7d (ago) or 2026-11-20")
    add("-E", "--until", metavar="TIME", help="with --since: up to this time (default: now)")
    add("--html", type=_path, metavar="FILE", help="write it to this file, as a page")
    add("--mail", action="store_true", help="send it to your addresses (see carma notify)")
    add_json(parser)


def report(options: Namespace) -> int:
    """Report what the last whole week or month was used for, as one page of Markdown.

    Users and their GPU-hours, what sharing saved and cost, memory estimates, the longest waits,
    and jobs that held GPUs without using them. Of others' jobs, all but administrators see totals.
    """
    if options.html:
        output.check_writable(options.html)
    answer = client.get("/v1/report", **_query(options))
    if options.html:
        from carmad.report import html

        options.html.write_text(html.page(answer), encoding="utf-8")
        output.note(f"wrote {options.html}")
    if options.mail:
        return _mail(answer)
    if options.json:
        output.print_json(answer)
    elif not options.html:
        from carmad.report import markdown

        print(markdown.page(answer), end="")
    return 0


def _query(options: Namespace) -> dict[str, Any]:
    if options.since:
        return {name: check(parse.since, getattr(options, name)) for name in ("since", "until")}
    if options.until:
        from cli.problems import Usage

        raise Usage("--until goes with --since")
    from datetime import date

    from carmad.report.period import last

    since, until = last(options.period, date.today())
    return {"since": since.isoformat(), "until": until.isoformat()}


def _mail(answer: Any) -> int:
    from carmad.report import markdown, wording
    from cli.messages import send

    return send(wording.title(answer), markdown.page(answer))
