// Draws every <figure data-chart="URL"> from the JSON at that URL, and keeps it up to date.
//
// The JSON: {title, summary, unit, span_s, times, until, series: [{name, short, values, kind, stack,
// job, quiet}], limits: [{name, value}], marks: [{at, job, text, kind, word}]}. `values` has one for
// each of `times`, null for a gap; `kind` is area, line, step or points. Later on, `since` asks for what is new:
// whatever the answer's times cover is replaced. With `span_s`, what is older than that is dropped.
// An URL with a fragment names one of several charts that one answer has in `charts`.
"use strict";

const AGAIN_MS = 10_000;
const WHOLE_MS = 600_000; // then all is asked for again, with the summary
const charts = new Map(); // by figure
const asked = new Map(); // by URL: when last, and when for all of it

// The chart as it is known, with what is new.
function merged(old, fresh) {
  const from = fresh.times[0];
  if (!old || from === undefined) return old && from === undefined ? old : fresh;
  let begin = 0;
  const last = fresh.times.at(-1);
  if (fresh.span_s) while (old.times[begin] <= last - fresh.span_s) begin += 1;
  let end = old.times.findIndex((time) => time >= from);
  if (end < 0) end = old.times.length;
  begin = Math.min(begin, end);
  const times = [...old.times.slice(begin, end), ...fresh.times];
  const gap = (length) => Array(length).fill(null);
  const [before, after] = [old, fresh].map(
    (chart) => new Map(chart.series.map((one) => [one.name, one])),
  );
  const series = [...new Map([...before, ...after]).values()]
    .map((one) => ({
      ...one,
      values: [
        ...(before.get(one.name)?.values.slice(begin, end) ?? gap(end - begin)),
        ...(after.get(one.name)?.values ?? gap(fresh.times.length)),
      ],
    }))
    .filter((one) => after.has(one.name) || one.values.some((value) => value !== null));
  // What is stacked stays below what is drawn over it.
  series.sort((a, b) => Boolean(b.stack) - Boolean(a.stack));
  const marks = (old.marks ?? []).filter((mark) => mark.at >= times[0] && mark.at < from);
  return { ...old, ...fresh, times, series, marks: [...marks, ...(fresh.marks ?? [])] };
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
  const groups = new Map();
  for (const [figure, chart] of charts) {
    const [url, name] = figure.dataset.chart.split("#");
    if (!groups.has(url)) groups.set(url, []);
    groups.get(url).push([chart, name]);
  }
  for (const [url, group] of groups) {
    const due = performance.now() - (asked.get(url)?.last ?? -Infinity) >= AGAIN_MS;
    if (due && group.some(([chart]) => chart.figure.hasAttribute("data-seen"))) fetchCharts(url, group);
  }
}

async function fetchCharts(url, group) {
  const now = performance.now();
  const { whole } = asked.get(url) ?? { whole: -Infinity };
  const again = now - whole < WHOLE_MS && group.every(([chart]) => chart.data?.times.length);
  asked.set(url, { last: now, whole: again ? whole : now });
  const from = new URL(url, location.href);
  if (again) from.searchParams.set("since", Math.min(...group.map(([chart]) => chart.data.times.at(-1))));
  try {
    const answer = await fetch(from, { headers: { Accept: "application/json" } });
    const said = await answer.json();
    for (const [chart, name] of group) {
      const its = name ? said.charts?.[name] : said;
      if (answer.ok && its) chart.take(its);
      else chart.failed(said.error ?? "nothing is recorded");
    }
  } catch {
    group.forEach(([chart]) => chart.failed("it cannot be shown now"));
  }
}

function redraw() {
  tokens.clear();
  charts.forEach((chart) => chart.plot?.redraw(false));
}

// Not in the page's head, as nothing is painted before the style sheets there are read.
document.head.append(node("link", {
  rel: "stylesheet",
  href: `${document.body.dataset.base}/static/vendor/uPlot.min.css`,
}));
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("news", refreshCharts);
document.addEventListener("refreshed", find);
find();
