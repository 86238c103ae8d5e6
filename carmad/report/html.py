"""A report as one self-contained HTML page."""

from __future__ import annotations

from carmad.html import environment, style
from carmad.report.wording import sections, title

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from carmad.api.report import ReportOut


def page(report: ReportOut) -> str:
    template = environment("carmad.report").get_template("page.html.j2")
    return template.render(style=style(), title=title(report), sections=sections(report))
