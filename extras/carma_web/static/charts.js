// Draws every <figure data-chart="URL#NAME"> by uPlot from the JSON at that URL, and keeps it up to
// date: {charts: {NAME: {title, summary, unit, times, series: [{name, values, kind, colour, dash,
// words}]}}}, as `carma_web/charts.py` makes it. `values` has one for each of `times`, null for a gap.
"use strict";

const AGAIN_MS = 10_000;
const HEIGHTS_PX = { spark: 34, low: 140, chart: 200 }; // by class of the figure
const NEAR_PX = 6; // an event so near to the cursor is read out
const LINES = ["step", "limit", "points"];
const DASHES = [[], [8, 4], [2, 4], [10, 3, 2, 3]];
// How times are written, by the seconds between ticks; where a day begins, with its date.
const DAY = "\n{D} {MMM}";
const STAMPS = [
  [86400, "{D} {MMM}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", null, null, DAY, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, DAY, null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}.{fff}", null, null, DAY, null, null, null, 1],
];
const BINARY = [...Array(24).keys()].map((power) => 2 ** power); // ticks of MiB
const charts = new Map(); // by figure
const asked = new Map(); // by URL: when last

// A colour of the style sheet, which depends on the theme, as a canvas knows it.
const probe = document.createElement("i");
const colours = new Map();

function painted(css) {
  if (!colours.has(css)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.hidden = true;
    probe.style.color = css;
    colours.set(css, getComputedStyle(probe).color);
  }
  return colours.get(css);
}

const paint = (css) => () => painted(css);
const faint = (css) => paint(`color-mix(in srgb, ${css} 35%, transparent)`);
const binned = (...options) => uPlot.paths.stepped({ align: 1 })(...options);
const LOOKS = {
  stack: (css) => ({ fill: paint(css), paths: binned }),
  area: (css) => ({ fill: faint(css), stroke: paint(css), paths: binned }),
  step: (css) => ({ stroke: paint(css), width: 1.5, paths: binned }),
  limit: (css) => ({ stroke: paint(css), width: 1.5, dash: [5, 4] }),
  points: (css) => ({ stroke: paint(css), width: 1.5, points: { size: 5 } }),
  events: (css) => ({
    stroke: paint(css), scale: "events", paths: () => null, points: { show: true, size: 8, fill: paint(css) },
  }),
};
const HINT = "values: point at the chart, or use the arrow keys";

function stamp(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hour12: false });
}

// `step`: what the value must be told apart by.
function readable(value, unit, step = Math.abs(value) / 100) {
  if (value == null) return "–";
  if (value === 0) return "0";
  const scale = unit === "MiB" && step >= 10 ? 1024 : 1;
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / scale || 1))));
  return `${(value / scale).toFixed(digits)}${unit === "MiB" ? (scale > 1 ? "G" : "M") : ""}`;
}

// What uPlot draws: of what is stacked, the upper edges. The topmost is first, and those below are
// drawn over it.
function edges({ times, series }) {
  const sums = times.map(() => null);
  const lines = series.toReversed().map(({ kind, values }) => {
    if (kind !== "stack") return values;
    values.forEach((value, at) => { if (value != null) sums[at] += value; });
    return [...sums];
  });
  return [times, ...lines.toReversed()];
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plot = null;
    this.kind = Object.keys(HEIGHTS_PX).find((name) => figure.classList.contains(name));
    this.area = document.createElement("div");
    this.area.className = "plot";
    if (this.kind === "spark") this.area.role = "img";
    else Object.assign(this.area, { tabIndex: 0, role: "group" });
    this.area.ariaLabel = "not loaded yet";
    this.caption = document.createElement("figcaption");
    figure.append(this.caption, this.area);
    this.area.addEventListener("keydown", (event) => this.pressed(event));
    this.resizes = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.resizes.observe(this.area);
  }

  take(data) {
    const shape = ({ series }) => JSON.stringify(series.map((one) => [one.name, one.kind, one.colour]));
    const same = this.plot && shape(data) === shape(this.data);
    this.data = data;
    if (this.kind !== "spark") this.caption.textContent = data.title;
    this.area.ariaLabel = data.summary ?? data.title;
    if (same) {
      const { min, max } = this.plot.scales.x;
      const [times] = this.plot.data;
      this.plot.setData(edges(data), min <= times[0] && max >= times.at(-1)); // a zoomed one stays
    } else {
      this.plot?.destroy();
      delete this.area.dataset.empty;
      this.plot = new uPlot(this.options(), edges(data), this.area);
    }
  }

  failed(message) {
    if (this.plot) return;
    this.area.dataset.empty = message;
    this.area.ariaLabel = message;
  }

  size() {
    return { width: this.area.clientWidth, height: HEIGHTS_PX[this.kind] };
  }

  options() {
    const { unit, series } = this.data;
    const size = Math.round(parseFloat(getComputedStyle(document.body).fontSize) * 0.74);
    const grid = { stroke: paint("var(--line)"), width: 1 };
    const font = `${size}px system-ui, sans-serif`;
    const axis = { stroke: paint("var(--soft)"), font, grid, ticks: grid };
    const ticks = (u, splits, at, space, step) => splits.map((value) => readable(value, unit, step));
    const of = (kind) => series.some((one) => one.kind === kind);
    const share = unit ? 0 : 1;
    const room = of("events") ? 1.3 : 1.06;
    const bare = this.kind === "spark";
    return {
      ...this.size(),
      padding: bare ? [1, 0, 1, 0] : [8, size * 2, 0, 0],
      legend: {
        show: !bare,
        markers: {
          width: 2,
          stroke: (u, at) => series[at - 1]?.colour,
          fill: (u, at) => (LINES.includes(series[at - 1]?.kind) ? null : series[at - 1]?.colour),
        },
      },
      cursor: {
        show: !bare,
        y: false,
        points: { show: false },
        sync: { key: "time", scales: ["x", null] },
        hover: { skip: [null], prox: (u, at) => (series[at - 1].kind === "events" ? NEAR_PX : null) },
      },
      scales: {
        x: { range: (u, min, max) => (max - min < 30 ? [min - 15, max + 15] : [min, max]) },
        y: of("points") ? {} : { range: (u, min, max) => [0, Math.max(max, share) * room] },
        events: { range: [0, 1] },
      },
      axes: [
        { ...axis, show: !bare, size: size * 4.2, space: size * 6.5, values: STAMPS },
        {
          ...axis, show: !bare, size: size * 4.4, space: size * 2.2, values: ticks,
          ...(unit === "MiB" ? { incrs: BINARY } : {}),
        },
      ],
      series: [
        { label: "", value: (u, time) => (time == null ? HINT : stamp(time)) },
        ...series.map((one) => ({
          label: one.name,
          points: { show: false },
          ...LOOKS[one.kind](one.colour),
          ...(one.dash ? { dash: DASHES[one.dash % DASHES.length] } : {}),
          value: (u, _, at, bin) => this.told(one, bin, u.legend.idx),
        })),
      ],
      hooks: { ready: [(u) => u.root.querySelector(".u-legend")?.setAttribute("role", "status")] },
    };
  }

  // What the legend says beside a name: the value at the cursor, or what happened near it.
  told(one, bin, here) {
    if (bin == null || one.kind === "limit") return "";
    if (one.words) return one.words[bin]?.join("; ") ?? "";
    return readable(bin === here ? one.values[bin] : null, this.data.unit);
  }

  pressed(event) {
    const u = this.plot;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity }[event.key];
    if (!u || step === undefined) return;
    event.preventDefault();
    const last = this.data.times.length - 1;
    const at = Math.max(0, Math.min((u.cursor.idx ?? last) + step, last));
    u.setCursor({ left: u.valToPos(this.data.times[at], "x"), top: 0 });
  }

  end() {
    this.resizes.disconnect();
    this.plot?.destroy();
  }
}

const onScreen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.toggleAttribute("data-seen", isIntersecting);
  refreshCharts();
});

function find() {
  for (const [figure, chart] of charts) {
    if (figure.isConnected) continue;
    chart.end();
    charts.delete(figure);
    onScreen.unobserve(figure);
  }
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    if (charts.has(figure)) continue;
    charts.set(figure, new Chart(figure));
    onScreen.observe(figure);
  }
}

// Those that are in sight; charts of the same answer all follow it.
function refreshCharts() {
  if (document.hidden) return;
  const groups = Map.groupBy(charts.values(), ({ figure }) => figure.dataset.chart.split("#")[0]);
  for (const [url, group] of groups) {
    const due = performance.now() - (asked.get(url) ?? -Infinity) >= AGAIN_MS;
    if (due && group.some(({ figure }) => figure.hasAttribute("data-seen"))) fetchCharts(url, group);
  }
}

async function fetchCharts(url, group) {
  asked.set(url, performance.now());
  try {
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    const said = await answer.json();
    for (const chart of group) {
      const its = said.charts?.[chart.figure.dataset.chart.split("#")[1]];
      if (answer.ok && its?.times.length) chart.take(its);
      else chart.failed(said.error ?? "nothing is recorded");
    }
  } catch {
    group.forEach((chart) => chart.failed("it cannot be shown now"));
  }
}

function redraw() {
  colours.clear();
  charts.forEach(({ plot }) => plot?.redraw(false));
}

// Not in the page's head, as nothing is painted before the style sheets there are read.
const sheet = document.createElement("link");
Object.assign(sheet, { rel: "stylesheet", href: `${document.body.dataset.base}/static/vendor/uPlot.min.css` });
document.head.append(sheet);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("news", refreshCharts);
document.addEventListener("refreshed", find);
find();
