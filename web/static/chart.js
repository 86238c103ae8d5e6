// A chart: what `charts.js` says is drawn, read out, and added to.
"use strict";

const NEAR_PX = 6; // a mark this near to the cursor is read out
const HEAD_PX = 28; // for the marks' shapes: in two rows, as an end and a start often coincide
const HUES = 7; // of jobs; the next one is for jobs that are added up
const DASHES = [[], [8, 4], [2, 4], [10, 3, 2, 3]]; // of several GPUs
const ENDS = new Set(["succeeded", "failed", "timed_out", "cancelled", "oom", "retried", "requeued", "preempted"]);
const SHAPES = {
  up: "M0-5 5 4H-5Z",
  down: "M0 5 5-4H-5Z",
  left: "M-5 0 4-5V5Z",
  right: "M5 0-4-5V5Z",
  cross: "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z",
  star: "M0-7 2-2 7 0 2 2 0 7-2 2-7 0-2-2Z",
  diamond: "M0-6 6 0 0 6-6 0Z",
  bars: "M-5-5H-1V5H-5ZM1-5H5V5H1Z",
  square: "M-4-4H4V4H-4Z",
};
const MARKS = {
  started: ["up", "--good"],
  succeeded: ["down", "--soft"],
  failed: ["cross", "--bad"],
  timed_out: ["cross", "--warn"],
  cancelled: ["down", "--warn"],
  oom: ["star", "--bad"],
  retried: ["left", "--warn"],
  requeued: ["left", "--soft"],
  preempted: ["left", "--link"],
  slowed: ["diamond", "--warn"],
  risky: ["diamond", "--bad"],
  warned: ["diamond", "--text"],
  drained: ["bars", "--link"],
  resumed: ["right", "--link"],
  gpu_lost: ["cross", "--text"],
  gpu_back: ["right", "--text"],
  external: ["square", "--soft"],
};

// The colours of the style sheet, which depend on the theme, as a canvas knows them.
const probe = document.createElement("i");
const tokens = new Map();

function token(name) {
  if (!tokens.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.hidden = true;
    probe.style.color = `var(${name})`;
    tokens.set(name, getComputedStyle(probe).color);
  }
  return tokens.get(name);
}

const letterPx = () => parseFloat(getComputedStyle(document.body).fontSize) * 0.74;
const fontOf = () => `${letterPx()}px system-ui, sans-serif`;
const markOf = (kind) => MARKS[kind] ?? ["square", "--soft"];

// A job's colour follows from its id: it is the same in all charts, for good.
const hueOf = (one) => (one.quiet ? "--line" : `--hue-${one.job == null ? HUES : one.job % HUES}`);

// Black or white, whichever is legible on this colour.
function inkOn(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).map((part) => (part / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

function readable(value, unit) {
  if (value == null) return "–";
  if (value === 0) return "0";
  if (unit === "MiB") return value < 1024 ? `${value.toFixed(0)}M` : `${(value / 1024).toFixed(1)}G`;
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${unit && ` ${unit}`}`;
}

function node(name, attributes = {}, text = "") {
  const made = name === "svg" || name === "path"
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

// The upper edges of what is stacked, and the values of the rest. A stacked series without a value
// has no height, unless all are without.
function edges(chart) {
  const stacked = chart.series.filter((one) => one.stack);
  const sums = chart.times.map((_, at) => (stacked.some((one) => one.values[at] !== null) ? 0 : null));
  return chart.series.map((one) => {
    if (!one.stack) return one.values;
    one.values.forEach((value, at) => {
      if (sums[at] !== null) sums[at] += value ?? 0;
    });
    return [...sums];
  });
}

// At least half a minute: one reading has no length.
function span(min, max) {
  const room = Math.max(0, 30 - (max - min)) / 2;
  return [min - room, max + room];
}

// Measured at moments, and not in bins.
const isPoints = (chart) => chart.series.every((one) => one.kind === "points");

const stepOf = (times) => (times.length > 1 ? times[1] - times[0] : 1);

const endOf = (chart, at) => Math.min(chart.times[at] + stepOf(chart.times), chart.until ?? Infinity);

// What uPlot draws. A time is the beginning of a bin: the last bin is shown to its end, or until
// what is shown is over.
function padded(chart) {
  if (isPoints(chart)) return [chart.times, ...chart.series.map((one) => one.values)];
  const ends = chart.times.slice(-1).map(() => endOf(chart, chart.times.length - 1));
  return [[...chart.times, ...ends], ...edges(chart).map((edge) => [...edge, ...edge.slice(-1)])];
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.data = null;
    this.plot = null;
    if (!figure.querySelector("figcaption")) figure.prepend(node("figcaption"));
    this.area = node("div", { class: "plot", tabindex: "0", role: "img", "aria-label": "a chart" });
    this.read = node("div", { class: "read", hidden: "" });
    this.said = node("p", { class: "said", role: "status" });
    this.legend = node("ul", { class: "marks" });
    this.area.append(this.read);
    figure.append(this.area, this.said, this.legend);
    this.area.addEventListener("keydown", (event) => this.pressed(event));
    this.area.addEventListener("blur", () => this.plot?.setCursor({ left: -10, top: -10 }));
    this.resizes = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.resizes.observe(this.area);
  }

  take(fresh) {
    const shape = (data) =>
      JSON.stringify([data?.series.map((one) => [one.name, one.kind]), !data?.marks?.length]);
    const before = shape(this.data);
    this.data = merged(this.data, fresh);
    const caption = this.figure.querySelector("figcaption");
    if (!caption.textContent.trim()) caption.textContent = this.data.title ?? "";
    this.area.setAttribute("aria-label", this.data.summary ?? this.data.title ?? "a chart");
    const data = padded(this.data);
    if (this.plot && shape(this.data) === before) {
      const { min, max } = this.plot.scales.x;
      const [first, last] = [this.plot.data[0][0], this.plot.data[0].at(-1)];
      this.plot.setData(data, min <= first && max >= last); // a zoomed one stays
    } else {
      this.plot?.destroy();
      this.plot = new uPlot(this.options(), data, this.area);
    }
    this.explain();
  }

  failed(message) {
    if (!this.data) this.area.dataset.empty = message;
  }

  size() {
    return { width: this.area.clientWidth, height: this.area.clientHeight };
  }

  options() {
    const { unit, series } = this.data;
    const grid = { stroke: () => token("--line"), width: 1 };
    const font = fontOf();
    const axis = { stroke: () => token("--soft"), font, grid, ticks: grid };
    const binary = [...Array(24).keys()].map((power) => 2 ** power);
    const values = (u, splits) => splits.map((value) => readable(value, unit));
    return {
      ...this.size(),
      legend: { show: false },
      padding: [this.data.marks?.length ? HEAD_PX : 8, letterPx() * 2.2, 0, 0],
      cursor: { y: false, points: { show: false }, sync: { key: "time", scales: ["x", null] } },
      scales: { x: { time: true, range: (u, min, max) => span(min, max) }, y: { range: () => this.range() } },
      axes: [
        { ...axis, size: letterPx() * 2.4, space: letterPx() * 6, values: times },
        { ...axis, size: letterPx() * 4.4, space: letterPx() * 2.2, values, ...(unit === "MiB" ? { incrs: binary } : {}) },
      ],
      series: [{}, ...series.map((one) => this.line(one))],
      hooks: {
        drawClear: [(u) => this.paint(u, (box) => this.layers(u, box))],
        draw: [(u) => this.paint(u, (box) => this.over(u, box))],
        setCursor: [(u) => this.told(u)],
      },
    };
  }

  range() {
    if (!isPoints(this.data)) return [0, this.most()];
    const values = this.data.series.flatMap((one) => one.values).filter((value) => value != null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return values.length ? [low - room, high + room] : [0, 1];
  }

  most() {
    const highest = edges(this.data).flat().reduce((a, b) => Math.max(a, b ?? 0), 0);
    const least = this.data.unit ? 0 : 1; // without a unit, it is a share
    return Math.max(least, highest, ...(this.data.limits ?? []).map((one) => one.value)) * 1.06 || 1;
  }

  line(one) {
    const few = one.kind === "points" ? 60 : 2; // no line goes through one
    const points = { show: this.data.times.length < few };
    if (one.stack) return { points, paths: () => null };
    const name = this.colour(one);
    return {
      points,
      width: 1.5,
      stroke: () => token(name),
      dash: this.dash(one),
      ...(one.kind === "points" ? {} : { paths: uPlot.paths.stepped({ align: 1 }) }), // bins
      ...(one.kind === "area" ? { fill: () => token(name).replace(/rgb\((.*)\)/, "rgba($1, .35)") } : {}),
    };
  }

  // The token of a line's colour: those of GPUs have none.
  colour(one) {
    return one.job != null ? hueOf(one) : one.kind === "area" ? "--soft" : "--text";
  }

  // Of several lines of a colour, the others are dashed.
  dash(one) {
    const alike = this.data.series.filter((other) => !other.stack && this.colour(other) === this.colour(one));
    return DASHES[alike.indexOf(one) % DASHES.length];
  }

  // `draw` works in CSS pixels.
  paint(u, draw) {
    const box = {};
    for (const side of ["left", "top", "width", "height"]) box[side] = u.bbox[side] / uPlot.pxRatio;
    u.ctx.save();
    u.ctx.scale(uPlot.pxRatio, uPlot.pxRatio);
    u.ctx.font = fontOf();
    draw(box);
    u.ctx.restore();
  }

  layers(u, box) {
    const { ctx } = u;
    ctx.beginPath();
    ctx.rect(box.left, box.top, box.width, box.height);
    ctx.clip();
    for (const layer of this.spans(u, box)) {
      const path = new Path2D();
      layer.points.forEach(([x, top], at) => (at ? path.lineTo(x, top) : path.moveTo(x, top)));
      layer.points.toReversed().forEach(([x, , bottom]) => path.lineTo(x, bottom));
      path.closePath();
      ctx.fillStyle = token(hueOf(layer.one));
      ctx.fill(path);
      if (layer.one.quiet) hatch(ctx, path, token("--soft"));
      ctx.strokeStyle = token("--page");
      ctx.lineWidth = 1;
      ctx.stroke(path);
    }
  }

  // Of each stacked series, the stretches of time in which it has a height, as edges of steps.
  *spans(u, box) {
    const { times, series } = this.data;
    let below = times.map(() => 0);
    for (const [at, one] of series.entries()) {
      if (!one.stack) continue;
      const above = u.data[at + 1];
      let points = [];
      for (let bin = 0; bin <= times.length; bin += 1) {
        if (bin < times.length && above[bin] !== null && above[bin] > below[bin]) {
          const ys = [above[bin], below[bin]].map((value) => box.top + u.valToPos(value, "y"));
          for (const time of this.stay(one, bin)) {
            points.push([box.left + u.valToPos(time, "x"), ...ys]);
          }
        } else if (points.length) {
          yield { one, points };
          points = [];
        }
      }
      below = above;
    }
  }

  // Where the bin begins and ends; of a job that came or went in it, when it did.
  stay(one, bin) {
    const [begin, end] = [this.data.times[bin], endOf(this.data, bin)];
    const there = (at) => at >= 0 && one.values[at] != null;
    const its = (this.data.marks ?? []).filter((mark) => one.job != null && mark.job === one.job);
    const within = its.filter((mark) => mark.at > begin && mark.at <= end);
    const came = there(bin - 1) ? null : within.find((mark) => mark.kind === "started");
    const went = there(bin + 1) ? null : within.findLast((mark) => ENDS.has(mark.kind));
    return [came?.at ?? begin, went?.at ?? end];
  }

  over(u, box) {
    const { ctx } = u;
    const { width, height, top, left } = box;
    ctx.textBaseline = "middle";
    for (const { one, points } of this.spans(u, box)) {
      const room = widest(points.filter(([x]) => x >= left && x <= left + width));
      const name = room && [one.name, one.short ?? ""].find((text) => ctx.measureText(text).width <= room.width);
      if (!name) continue;
      ctx.fillStyle = one.quiet ? token("--text") : inkOn(token(hueOf(one)));
      ctx.textAlign = "center";
      ctx.fillText(name, room.x, room.y);
    }
    for (const { name, value } of this.data.limits ?? []) {
      const y = top + u.valToPos(value, "y");
      ctx.strokeStyle = ctx.fillStyle = token("--bad");
      ctx.setLineDash([5, 4]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.textAlign = "right";
      const room = y - top > 16;
      this.written(ctx, name, left + width - 4, room ? y - 8 : y + 9);
    }
    for (const mark of this.data.marks ?? []) {
      const x = left + u.valToPos(mark.at, "x");
      if (x < left || x > left + width) continue;
      const [shape, colour] = markOf(mark.kind);
      ctx.strokeStyle = ctx.fillStyle = token(colour);
      ctx.globalAlpha = 0.45;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.save();
      ctx.translate(x, top - (shape === "up" ? 7 : 20));
      ctx.fill(new Path2D(SHAPES[shape]));
      ctx.restore();
    }
  }

  // Text with an edge in the page's colour, legible over areas.
  written(ctx, text, x, y) {
    ctx.lineWidth = 3;
    ctx.lineJoin = "round";
    ctx.strokeStyle = token("--page");
    ctx.strokeText(text, x, y);
    ctx.fillText(text, x, y);
    ctx.lineWidth = 1;
  }

  // What was there at the cursor; the topmost first, as in the picture.
  told(u) {
    const { idx, left } = u.cursor;
    const here = this.area.matches(":hover, :focus-visible");
    this.read.hidden = !here || idx == null || left < 0;
    if (this.read.hidden) return;
    const lines = this.lines(u, idx);
    this.read.replaceChildren(...lines.map(({ text, one }) => {
      const line = node("div", {}, text);
      if (one) line.prepend(this.sample(one));
      return line;
    }));
    const wide = this.area.clientWidth;
    const x = u.bbox.left / uPlot.pxRatio + left;
    const room = this.read.offsetWidth + 12;
    this.read.style.left = `${Math.max(0, Math.min(x + room < wide ? x + 12 : x - room, wide - room))}px`;
    this.said.textContent = document.activeElement === this.area ? lines.map((one) => one.text).join("; ") : "";
  }

  lines(u, at) {
    const { times, series, marks = [], unit } = this.data;
    at = Math.min(at, times.length - 1);
    const seen = series.filter((one) => one.values[at] != null).reverse();
    const near = marks.filter(
      (mark) => Math.abs(u.valToPos(mark.at, "x") - u.valToPos(times[at], "x")) <= NEAR_PX,
    );
    return [
      { text: stamp(times[at]) },
      ...seen.map((one) => ({
        text: `${one.name}: ${readable(one.values[at], unit)}`,
        one,
      })),
      ...(seen.length ? [] : [{ text: "nothing is known" }]),
      ...near.slice(-8).map((mark) => ({ text: mark.text ? `${mark.word}: ${mark.text}` : mark.word })),
    ];
  }

  pressed(event) {
    const u = this.plot;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity }[event.key];
    if (!u || step === undefined) return;
    event.preventDefault();
    const last = this.data.times.length - 1;
    const at = Math.max(0, Math.min((u.cursor.idx ?? last) + step, last));
    u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: 0 });
  }

  // What the colours, lines and shapes mean: of the jobs, those that are there last.
  explain() {
    const { series, marks = [] } = this.data;
    const shown = series.filter((one) => !one.stack || one.quiet || one.values.slice(-3).some((value) => value != null));
    const words = new Map(marks.map(({ kind, word }) => [kind, word]));
    const known = [...shown.map((one) => one.short ?? one.name), ...words.values()].join();
    if (this.legend.dataset.known === known) return;
    this.legend.dataset.known = known;
    const items = isPoints(this.data) ? [] : shown.map((one) => [this.sample(one), one.short ?? one.name]);
    for (const [kind, word] of words) items.push([shapeOf(kind), word]);
    this.legend.replaceChildren(...items.map(([picture, text]) => {
      const item = node("li", {}, text);
      item.prepend(picture);
      return item;
    }));
  }

  // Of a series' colour, for words beside it.
  sample(one) {
    const made = node("i", { class: one.kind === "area" ? "" : "line" });
    const hue = `var(${one.stack ? hueOf(one) : this.colour(one)})`;
    made.style.background = one.quiet
      ? `repeating-linear-gradient(135deg, var(--soft) 0 1px, ${hue} 1px 4px)`
      : !one.stack && this.dash(one).length
        ? `repeating-linear-gradient(90deg, ${hue} 0 4px, transparent 4px 6px)`
        : hue;
    return made;
  }

  end() {
    this.resizes.disconnect();
    this.plot?.destroy();
  }
}

function times(u, splits, axis, space, step) {
  return splits.map((at) => {
    const date = new Date(at * 1000);
    if (date.getHours() + date.getMinutes() + date.getSeconds() === 0) {
      return date.toLocaleDateString([], { month: "short", day: "numeric" });
    }
    const options = { hour: "2-digit", minute: "2-digit", hour12: false };
    return date.toLocaleTimeString([], step < 60 ? { ...options, second: "2-digit" } : options);
  });
}

function stamp(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hour12: false });
}

// The room for a line of text about where the stretch is highest.
function widest(points) {
  const height = ([, top, bottom]) => bottom - top;
  const [, top, bottom] = points.reduce((a, b) => (height(b) > height(a) ? b : a), [0, 0, 0]);
  if (bottom - top < 13) return null;
  const y = (top + bottom) / 2;
  const fits = ([, above, below]) => above <= y - 6 && below >= y + 6;
  let first = points.findIndex((point) => point[1] === top && point[2] === bottom);
  let last = first;
  while (first > 0 && fits(points[first - 1])) first -= 1;
  while (last < points.length - 1 && fits(points[last + 1])) last += 1;
  const [from, to] = [points[first][0], points[last][0]];
  return { x: (from + to) / 2, y, width: to - from - 8 };
}

function shapeOf(kind) {
  const [shape, colour] = markOf(kind);
  const picture = node("svg", { viewBox: "-7 -7 14 14", class: colour.slice(2), "aria-hidden": "true" });
  picture.append(node("path", { d: SHAPES[shape] }));
  return picture;
}

function hatch(ctx, path, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const lines = tile.getContext("2d");
  lines.strokeStyle = colour;
  lines.globalAlpha = 0.45;
  lines.stroke(new Path2D("M-2 2 2-2M0 8 8 0M6 10 10 6"));
  ctx.fillStyle = ctx.createPattern(tile, "repeat");
  ctx.fill(path);
}
