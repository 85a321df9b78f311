// Charts as SVG, drawn for the width that they have. Each figure has its data as a table, too.

import { h, put, s, slug, table } from "./dom.js";

const log2 = Math.log2;

/** From values to pixels. Labels (not numbers) are placed one beside the other. */
export function scale(values, from, to, { log = false, labels = false, room = 0.04 } = {}) {
  if (labels) {
    const step = (to - from) / values.length;
    const at = (value) => from + (values.indexOf(value) + 0.5) * step;
    return Object.assign(at, { ticks: values, step, labels: true });
  }
  const known = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  const as = log ? log2 : (value) => value;
  let low = Math.min(...known.map(as)), high = Math.max(...known.map(as));
  if (!(high > low)) [low, high] = [low - (log ? 1 : Math.abs(low) || 1), high + (log ? 1 : Math.abs(high) || 1)];
  const margin = room * (high - low);
  if (room) [low, high] = [low - margin, high + margin];
  const at = (value) => from + ((as(value) - low) / (high - low)) * (to - from);
  return Object.assign(at, { low, high, log, ticks: log ? decades(low, high, Math.abs(to - from)) : even(low, high, Math.abs(to - from)) });
}

function decades(low, high, pixels) {
  const from = low / log2(10), to = high / log2(10);
  const digits = to - from > 3 || pixels / (to - from) < 60 ? [1] : to - from > 0.9 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const found = [];
  for (let place = Math.floor(from); place <= Math.ceil(to); place += 1) {
    for (const digit of digits) {
      const value = Number((digit * 10 ** place).toPrecision(3));
      if (log2(value) >= low - 1e-9 && log2(value) <= high + 1e-9) found.push(value);
    }
  }
  const most = Math.max(2, Math.floor(pixels / 52)), every = Math.ceil(found.length / most);
  return found.filter((_, number) => number % every === 0);
}

function even(low, high, pixels) {
  const rough = (high - low) / Math.max(2, Math.floor(pixels / 64)), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9; value += step) found.push(Number(value.toPrecision(6)));
  return found;
}

/** A figure: title, how to read it, a chart that is drawn again when its width changes, and its data. */
export function figure(title, reading, draw, data = null) {
  const place = h("div", { class: "chart" });
  const box = h("figure", {}, h("h3", {}, title), place, h("figcaption", {}, reading),
    data && h("details", { class: "data", id: slug("data", title) }, h("summary", {}, "Data of this chart"), data));
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(place.clientWidth);
    if (now > 40 && now !== width) {
      width = now;
      put(place, draw(now));
    }
  }).observe(place);
  return box;
}

/** Axes, grid and labels. */
export function axes(svg, { x, y, left, right, top, bottom, xText, yText, xTitle, yTitle, every = 1 }) {
  for (const tick of y.ticks) {
    svg.append(s("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      s("text", { class: "tick", x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  x.ticks.forEach((tick, number) => {
    if (number % every) return;
    if (!x.labels) svg.append(s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }));
    svg.append(s("text", { class: "tick", x: x(tick), y: bottom + 17, "text-anchor": "middle" }, xText(tick)));
  });
  svg.append(s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    s("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }));
  if (xTitle) svg.append(s("text", { class: "title", x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, xTitle));
  if (yTitle) svg.append(s("text", { class: "title", x: left, y: top - 10, "text-anchor": "start" }, yTitle));
}

export const drawing = (width, height, label) =>
  s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });

/** A path through points; gaps where a value is missing. */
export function path(points, properties) {
  let text = "", pen = false;
  for (const [x, y] of points) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) pen = false;
    else {
      text += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
  }
  return s("path", { d: text, fill: "none", ...properties });
}

/** The area between two lines over the same places. */
export function band(lower, upper, properties) {
  const known = lower.map((point, number) => [point, upper[number]]).filter(([a, b]) => Number.isFinite(a[1]) && Number.isFinite(b[1]));
  if (known.length < 2) return s("g", {});
  const there = known.map(([a]) => a), back = known.map(([, b]) => b).reverse();
  return s("path", { d: `M${[...there, ...back].map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}Z`, ...properties });
}

/** Horizontal bars as a list: name, bar, number. */
export function bars(items, { text, kind = "" }) {
  const most = Math.max(...items.map((item) => item.value), 1e-300);
  return h("ul", { class: "bars" }, items.map((item) => h("li", {},
    h("span", { class: "name" }, item.name),
    h("span", { class: `bar ${item.kind || kind}`, "aria-hidden": "true" }, h("i", {}, h("span", { css: { width: `${Math.max(0.5, (100 * item.value) / most)}%` } }))),
    h("span", { class: "number" }, text(item)))));
}

/** A chart of columns: one for each pair of edges on a log axis. */
export function histogram(edges, values, { xText, label, marks = [] }) {
  return (width) => {
    const height = 220, left = 44, right = width - 26, top = 22, bottom = height - 34;
    const svg = drawing(width, height, label);
    const x = scale([edges[0], edges.at(-1)], left, right, { log: true, room: 0 });
    const y = scale([0, Math.max(...values, 1)], bottom, top, { room: 0 });
    axes(svg, { x, y, left, right, top, bottom, xText, yText: (value) => value.toLocaleString("en-US"), yTitle: "rows" });
    values.forEach((value, number) => {
      if (!value) return;
      svg.append(s("rect", { class: "model", x: x(edges[number]) + 1, width: Math.max(1, x(edges[number + 1]) - x(edges[number]) - 2), y: y(value), height: bottom - y(value), rx: 2 },
        s("title", {}, `${xText(edges[number])} to ${xText(edges[number + 1])}: ${value.toLocaleString("en-US")} rows`)));
    });
    for (const mark of marks) {
      if (!(mark.at > edges[0] && mark.at < edges.at(-1))) continue;
      svg.append(s("line", { class: "mark", x1: x(mark.at), x2: x(mark.at), y1: top, y2: bottom }),
        s("text", { class: "tick accent", x: x(mark.at) + 5, y: top + 10 }, mark.name));
    }
    return svg;
  };
}

export { table };
