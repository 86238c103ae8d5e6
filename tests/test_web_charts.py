"""The charts: whose colour is which, and where what is drawn ends, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from tests.daemon import NO_KERNELS, ROOT, Carmad, running, train
from tests.waiting import until
from tests.web import Web, browsing, needs_browser, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

Matrix = tuple[tuple[float, float, float], ...]

STYLES = ROOT / "web/static/charts.css"
PAGES = {"light": "#ffffff", "dark": "#14171a"}
# How people see who lack one kind of cones (Machado et al. 2009, severity 1), in linear RGB.
SIGHTS: dict[str, Matrix] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
APART = 12.0  # CIE76; 2.3 is just noticeable
LEGIBLE = 4.5  # contrast of a name on its area (WCAG)


def hues(theme: str) -> list[str]:
    """Those of jobs."""
    found = re.findall(r"--hue-([0-6]): light-dark\((#\w{6}), (#\w{6})\)", STYLES.read_text())
    assert [number for number, *_ in found] == list("0123456")
    return [each[1 if theme == "light" else 2] for each in found]


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    red, green, blue = (min(1.0, max(0.0, part)) for part in rgb)

    def root(value: float) -> float:
        return float(value ** (1 / 3)) if value > 0.008856 else 7.787 * value + 16 / 116

    x = root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047)
    y = root(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", PAGES)
def test_colours_can_be_told_apart_also_by_the_colour_blind(theme: str) -> None:
    for sight, matrix in SIGHTS.items():
        seen = [
            lab([sum(a * b for a, b in zip(row, linear(hue), strict=True)) for row in matrix])
            for hue in hues(theme)
        ]
        for (at, one), (to, other) in combinations(enumerate(seen), 2):
            apart = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
            assert apart > APART, (sight, at, to)
    for hue in hues(theme):
        assert contrast(hue, PAGES[theme]) > 2, hue
        assert max(contrast(hue, ink) for ink in ("#000000", "#ffffff")) > LEGIBLE


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("charts"), gpus="2xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


@pytest.fixture(scope="module")
def web(carmad: Carmad) -> Iterator[Web]:
    with serving(carmad) as web:
        yield web


@pytest.fixture(scope="module")
def jobs(carmad: Carmad) -> dict[str, int]:
    """One after the other on the same GPU, and one that runs on."""
    made = {"stays": carmad.submit(*train(memory_mib=9000, seconds=900), memory_mib=30_000)}
    for name in ("first", "second"):
        made[name] = carmad.submit(
            *train(memory_mib=9000, seconds=2), name=name, memory_mib=30_000, gpus=1
        )
    for name in ("first", "second"):
        carmad.ended(made[name])
    return made


def drawn(page: Page, figure: str) -> Any:
    """The series and marks of a chart, and where each stretch of a series begins and ends."""
    page.locator(f"{figure} canvas").wait_for()
    return page.evaluate(
        """(selector) => {
          const chart = [...charts].find(([figure]) => figure.matches(selector))[1];
          const u = chart.plot;
          const box = { left: 0, top: 0, width: u.bbox.width, height: u.bbox.height };
          const time = (x) => u.posToVal(x, "x");
          return {
            series: chart.data.series.map((one) =>
              ({ ...one, hue: chart.colour(one), of: hueOf(one) })),
            limits: chart.data.limits, marks: chart.data.marks, until: chart.data.until,
            last: u.data[0].at(-1),
            spans: [...chart.spans(u, box)].map(({ one, points }) =>
              ({ job: one.job, from: time(points[0][0]), to: time(points.at(-1)[0]) })),
          };
        }""",
        figure,
    )


@needs_browser
def test_a_colour_is_a_jobs_for_good(carmad: Carmad, web: Web, jobs: dict[str, int]) -> None:
    def named() -> set[int]:
        return {one["id"] for gpu in carmad.get("/v1/timeline")["gpus"] for one in gpu["jobs"]}

    until(named, "all jobs in the record", wanted=lambda found: found >= set(jobs.values()))
    for path in ("/?hours=1", "/?hours=24"):
        with browsing(web, path) as page:
            for figure in ("#memory-0", "#memory-1"):
                for one in drawn(page, figure)["series"]:
                    if one.get("job") is not None:
                        assert one["of"] == f"--hue-{one['job'] % 7}"
                    assert one.get("quiet") or "hatched" not in one
    with browsing(web, f"/jobs/{jobs['first']}") as page:
        own = drawn(page, "#chart-memory")["series"][0]
        assert own["hue"] == f"--hue-{jobs['first'] % 7}"
        assert page.locator("#beside a").count() == 0  # the other one came when it had gone
        assert "never" in page.locator("#past").inner_text()


@needs_browser
def test_nothing_is_drawn_after_a_jobs_end(carmad: Carmad, web: Web, jobs: dict[str, int]) -> None:
    for path in ("/?hours=1", "/?hours=24"):
        with browsing(web, path) as page:
            for figure in ("#memory-0", "#memory-1"):
                found = drawn(page, figure)
                assert found["last"] <= found["until"] + 0.01
                for span in found["spans"]:
                    its = [mark for mark in found["marks"] if mark["job"] == span["job"]]
                    ends = [mark["at"] for mark in its if mark["kind"] == "succeeded"]
                    assert all(span["to"] <= end + 0.5 for end in ends)
    ended_at = carmad.job(jobs["second"])["ended_at"]
    with browsing(web, f"/jobs/{jobs['second']}") as page:
        found = drawn(page, "#chart-memory")
        assert page.evaluate("(at) => Date.parse(at) / 1000", ended_at) >= found["last"] - 0.01


@needs_browser
def test_what_is_promised_is_what_was_declared(web: Web, jobs: dict[str, int]) -> None:
    with browsing(web, f"/jobs/{jobs['first']}") as page:
        found = drawn(page, "#chart-memory")
        assert found["limits"] == [{"name": "promised 29.3G, as declared", "value": 30_000}]
        assert "promised" not in " ".join(one["name"] for one in found["series"])
    with browsing(web, "/?hours=24") as page:  # wide bins, of which jobs fill a part
        for figure in ("#memory-0", "#memory-1"):
            promised = drawn(page, figure)["series"][-1]
            assert promised["name"] == "promised"
            assert set(promised["values"]) <= {None, 0, 30_000}
