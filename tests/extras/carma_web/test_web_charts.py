"""The charts: whose colour is which, what their axes say, and where what is drawn ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from carma_web.charts import HOURS
from carma_web.hues import COUNT
from tests.browser import needs_browser
from tests.daemon import NO_KERNELS, ROOT, Carmad, running, train
from tests.extras.carma_web.web import Web, browsing
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

Matrix = tuple[tuple[float, float, float], ...]

STYLES = ROOT / "extras/carma_web/static/charts.css"
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
JUST_NOTICEABLE = 2.3  # CIE76
APART = 12.0
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
    with running(tmp_path_factory.mktemp("charts"), gpus="1xA100-40GB", **NO_KERNELS) as carmad:
        yield carmad


@pytest.fixture(scope="module")
def jobs(carmad: Carmad) -> dict[str, int]:
    """On one GPU: one that stays, and beside it two others, one after the other; the ids of all are
    seven apart."""
    made = {}
    for name, mib, seconds in (("stays", 10_000, 900), ("first", 25_000, 2), ("second", 25_000, 2)):
        made[name] = carmad.submit(
            *train(memory_mib=9000, seconds=seconds), name=name, memory_mib=mib, gpus=1
        )
        for _ in range(6):
            carmad.sh("true", gpus=0, cpus=1, held=True)
    for name in ("first", "second"):
        carmad.ended(made[name])
    assert {id % 7 for id in made.values()} == {made["stays"] % 7}

    def named() -> set[int]:
        return {one["id"] for gpu in carmad.get("/v1/timeline")["gpus"] for one in gpu["jobs"]}

    until(named, "all jobs in the record", wanted=lambda found: found >= set(made.values()))
    return made


def drawn(page: Page, figure: str) -> Any:
    """What a chart shows, and the labels of its axes."""
    page.locator(f"{figure} canvas").wait_for()
    return page.evaluate(
        """(selector) => {
          const { data, plot } = [...charts].find(([figure]) => figure.matches(selector))[1];
          const { min, max } = plot.scales.x;
          return { ...data, axis: [min, max], labels: plot.axes.map((one) => one._values) };
        }""",
        figure,
    )


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_two_colours_look_alike(web: Web, jobs: dict[str, int], dark: bool) -> None:
    with browsing(web, "/gpus/0", dark=dark) as page:
        page.locator("#memory canvas").wait_for()
        shown = page.evaluate(
            """(count) => [...Array(count).keys()].map((hue) => {
              const to = document.createElement("canvas").getContext("2d");
              to.fillStyle = painted(`var(--hue-${hue})`);
              to.fillRect(0, 0, 1, 1);
              return [...to.getImageData(0, 0, 1, 1).data].slice(0, 3);
            })""",
            COUNT,
        )
    seen = [lab(linear("#" + bytes(colour).hex())) for colour in shown]
    apart = {
        (at, to): sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for (at, one), (to, other) in combinations(enumerate(seen), 2)
    }
    assert min(apart.values()) > 2 * JUST_NOTICEABLE, min(apart.items(), key=lambda each: each[1])


@needs_browser
def test_jobs_on_a_gpu_never_have_the_same_colour(web: Web, jobs: dict[str, int]) -> None:
    colours = set()
    for path in ("/gpus/0?hours=1", "/gpus/0?hours=24"):
        with browsing(web, path) as page:
            found = drawn(page, "#memory")["series"]
            its = [one for one in found if one["name"][0].isdigit()]
            assert len(its) == len({one["colour"] for one in its}) == 3
            colours |= {(one["name"].split()[0], one["colour"]) for one in its}
            key = page.locator("#now .who .key rect").get_attribute("fill")
            assert (str(jobs["stays"]), key) in colours
    assert len(colours) == 3
    with browsing(web) as page:
        assert page.locator("#gpu-0 .who .key rect").get_attribute("fill") == key
    with browsing(web, f"/jobs/{jobs['first']}") as page:
        own = next(one for one in drawn(page, "#chart-memory")["series"] if one["kind"] == "area")
        assert (str(jobs["first"]), own["colour"]) in colours
        assert page.locator("#beside a").count() == 1  # the third one came when it had gone


@needs_browser
def test_the_axis_shows_the_hours_that_were_chosen(web: Web, jobs: dict[str, int]) -> None:
    for hours, bin_s in HOURS.items():
        with browsing(web, f"/gpus/0?hours={hours}") as page:
            for figure in ("#memory", "#load"):
                found = drawn(page, figure)
                shown_s = found["axis"][1] - found["axis"][0]
                assert 0 <= shown_s - hours * 3600 <= 2 * bin_s
                for labels in found["labels"]:
                    assert len(labels) == len(set(labels)) > 1


@needs_browser
@pytest.mark.parametrize(
    ("unit", "least", "most"),
    [
        ("", 0.69311, 0.69319),
        ("", -3.0, 2.0),
        ("", 0.0, 4e6),
        ("MiB", 0.0, 1500.0),
        ("MiB", 0, 81920),
    ],
)
def test_no_two_ticks_have_the_same_label(web: Web, unit: str, least: float, most: float) -> None:
    with browsing(web, "/gpus/0") as page:
        page.locator("#memory canvas").wait_for()
        labels = page.evaluate(
            """([unit, least, most]) => {
              const figure = document.createElement("figure");
              figure.className = "chart";
              document.querySelector("main").append(figure);
              const chart = new Chart(figure);
              const line = { name: "loss", kind: "points", colour: "red", values: [least, most] };
              chart.take({ title: "", unit, times: [0, 0.4], series: [line] });
              const labels = () => chart.plot.axes.map((axis) => axis._values);
              return new Promise((then) => setTimeout(() => then(labels())));
            }""",
            [unit, least, most],
        )
    for each in labels:
        assert len(each) == len(set(each)) > 1


@needs_browser
def test_an_area_ends_in_the_bin_in_which_its_job_did(
    carmad: Carmad, web: Web, jobs: dict[str, int]
) -> None:
    for hours, bin_s in HOURS.items():
        with browsing(web, f"/gpus/0?hours={hours}") as page:
            found = drawn(page, "#memory")
            for name in ("first", "second"):
                job = carmad.job(jobs[name])
                (one,) = [one for one in found["series"] if one["name"].endswith(f" {name}")]
                bins = one["values"][:-1]  # after the last one comes where it ends
                known = [at for at, value in enumerate(bins) if value is not None]
                ended = datetime.fromisoformat(job["ended_at"]).timestamp()
                assert found["times"][known[-1]] <= ended <= found["times"][known[-1]] + bin_s
    with browsing(web, f"/jobs/{jobs['second']}") as page:
        assert drawn(page, "#chart-memory")["times"][-1] <= ended + 1


@needs_browser
def test_what_is_promised_is_what_was_declared(web: Web, jobs: dict[str, int]) -> None:
    with browsing(web, f"/jobs/{jobs['first']}") as page:
        found = {one["name"]: one for one in drawn(page, "#chart-memory")["series"]}
        assert set(found["promised 24.4G, as declared"]["values"]) == {25_000}
    with browsing(web, "/gpus/0?hours=24") as page:  # wide bins, of which jobs fill a part
        found = {one["name"]: one for one in drawn(page, "#memory")["series"]}
        assert set(found["promised"]["values"]) <= {None, 0, 10_000, 25_000, 35_000}
