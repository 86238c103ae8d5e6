"""A report as Markdown that also reads well in a terminal."""

from __future__ import annotations

import re

from carmad.report.wording import Section, sections, title

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

    from carmad.api.report import ReportOut

_MARKUP = re.compile(r"[\\`*\[\]<>|&]")  # what could be more than text in a cell


def page(report: ReportOut) -> str:
    parts = [f"# {_text(title(report))}"]
    for section in sections(report):
        parts += [f"## {section.title}", *map(_text, section.lines)]
        if section.rows:
            parts.append("\n".join(_table(section)))
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> Iterator[str]:
    right = [name.endswith(">") for name in section.head]
    rows = [tuple(name.removesuffix(">") for name in section.head)]
    rows += [tuple(map(_text, row)) for row in section.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = zip(row, widths, right, strict=True)
        yield f"| {' | '.join(c.rjust(w) if end else c.ljust(w) for c, w, end in cells)} |"
        if not number:
            rules = zip(widths, right, strict=True)
            yield f"|{'|'.join('-' * (w + 1) + (':' if end else '-') for w, end in rules)}|"


def _text(words: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", words)
