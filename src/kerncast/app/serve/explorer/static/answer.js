// One problem: the answer, the ranked configs, the roofline, the reasons, what was measured near, other devices.

import { axes, drawing, figure, path, scale } from "./charts.js";
import { h, s, table } from "./dom.js";
import { apart, assignments, count, duration, flops, named, percent, short, times } from "./words.js";

/** The best config with its time, its interval and how near it is to what the device allows. */
export function headline(found) {
  const best = found.answers[0], limit = found.roofline;
  if (best.time_ns === null) {
    return h("div", { class: "headline" }, h("p", { class: "big" }, h("strong", {}, best.status.replaceAll("_", " "))),
      h("p", {}, best.reason || "there is no answer"), best.fallback && h("p", { class: "config" }, `fallback, ${best.fallback.name}: ${assignments(best.fallback.config)}`));
  }
  const share = limit && limit.floor_ns / best.time_ns;
  const facts = [
    limit && ["of the roofline", percent(Math.min(share, 9.99)), `${duration(limit.floor_ns)} at the peak rates`],
    best.tflops && ["arithmetic", flops(best.tflops), limit?.peak_gflops ? `peak ${flops(limit.peak_gflops / 1e3)}` : ""],
    best.bandwidth_gb_s && ["memory", `${short(best.bandwidth_gb_s)} GB/s`, limit?.bandwidth_gb_s ? `peak ${short(limit.bandwidth_gb_s)} GB/s` : ""],
    best.efficiency && ["expected efficiency", percent(best.efficiency), "of the fastest config, as on problems it had not seen"],
  ].filter(Boolean);
  return h("div", { class: "headline" },
    best.status !== "ok" && h("p", { class: "warning" }, `${best.status.replaceAll("_", " ")}: ${best.reason}`),
    best.note && h("p", { class: "note" }, best.note),
    h("p", { class: "big" }, h("strong", { id: "time" }, duration(best.time_ns)),
      h("span", {}, best.lower_ns === null ? "without an interval" : `90 % interval ${duration(best.lower_ns)} to ${duration(best.upper_ns)}`)),
    best.config && Object.keys(best.config).length > 0 && h("p", { class: "config" }, best.label && h("b", {}, best.label), chips(best.config)),
    h("dl", { class: "cards" }, facts.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value), more && h("small", {}, more)))));
}

export const chips = (values) => Object.entries(values).map(([name, value]) => h("span", { class: "chip" }, h("i", {}, name), ` ${value}`));

/** The ranked configs; one of them is looked at. */
export function ranking(found, chosen, choose) {
  const known = found.answers.filter((answer) => answer.time_ns !== null);
  if (!known.length) return h("p", { class: "empty" }, "No config can be ranked for this problem.");
  const most = Math.max(...known.map((answer) => answer.upper_ns ?? answer.time_ns));
  const { name, common } = apart(known.map((answer) => answer.config));
  const shorter = known.some((answer) => answer.time_ns < known[0].time_ns);
  const rows = known.map((answer, place) => {
    const bar = h("i", {}, answer.upper_ns !== null && h("em", { css: { left: `${(100 * answer.lower_ns) / most}%`, width: `${(100 * (answer.upper_ns - answer.lower_ns)) / most}%` } }),
      h("span", { css: { width: `${(100 * answer.time_ns) / most}%` } }));
    const id = `config-${place}`;
    return h("tr", { class: place === chosen ? "ours" : null },
      h("th", { scope: "row" }, h("div", {}, h("input", { type: "radio", name: "config", id, checked: place === chosen, on: { change: () => choose(place) } }),
        h("span", { class: "rank", "aria-hidden": "true" }, `${place + 1}`), h("label", { for: id }, name(answer.config, answer.label)))),
      h("td", { class: "right" }, duration(answer.time_ns), answer.lower_ns !== null && h("small", {}, `${duration(answer.lower_ns)} to ${duration(answer.upper_ns)}`)),
      h("td", { class: "right" }, place ? times(answer.time_ns / known[0].time_ns) : "best"),
      h("td", { class: "bar" }, bar));
  });
  return [table("Ranked configs", ["config", "predicted time", "to the best", h("span", { class: "unseen" }, "as a bar")], rows, { kind: "ranked", right: [1, 2] }),
    h("p", { class: "small" }, common && `All have ${common}. `, "The one that is marked is explained below.", shorter && " They are in the order of the model's score, which also learned from comparing configs on one problem: so a predicted time may be shorter than the one above it.")];
}

/** The point below what the device's memory and arithmetic allow. */
export function roofline(found, chosen) {
  const limit = found.roofline;
  if (!limit || !limit.flops || !limit.bandwidth_gb_s) {
    return h("p", { class: "empty" }, limit ? `Moving ${count(limit.bytes)} bytes takes ${duration(limit.floor_ns)} at best; this op does no arithmetic to draw.` : "The work of this op, or a number of this device, is not known: there is no roofline.");
  }
  const known = found.answers.filter((answer) => answer.time_ns !== null);
  const top = Math.max(limit.peak_gflops ?? 0, limit.flops / Math.min(limit.floor_ns, ...known.map((answer) => answer.time_ns)));
  const [unit, factor] = top >= 1e3 ? ["TFLOP/s", 1e-3] : ["GFLOP/s", 1];
  const rate = (time) => (limit.flops / time) * factor;
  const ridge = limit.peak_gflops ? limit.peak_gflops / limit.bandwidth_gb_s : limit.intensity;
  const roof = (intensity) => Math.min(limit.peak_gflops ?? Infinity, limit.bandwidth_gb_s * intensity) * factor;
  const own = known[chosen] ?? known[0];
  const ends = [Math.min(limit.intensity, ridge) / 6, Math.max(limit.intensity, ridge) * 6];
  const label = own ? `Roofline: ${short(rate(own.time_ns))} ${unit} at ${short(limit.intensity)} FLOP per byte, below ${short(roof(limit.intensity))} ${unit}` : "Roofline";
  const draw = (width) => {
    const height = 320, left = 58, right = width - 22, upper = 26, bottom = height - 46;
    const svg = drawing(width, height, label);
    const x = scale(ends, left, right, { log: true, room: 0 });
    const rates = known.map((answer) => rate(answer.time_ns));
    const y = scale([...rates, roof(ends[0]), roof(ends[1]) * 1.6], bottom, upper, { log: true });
    axes(svg, { x, y, left, right, top: upper, bottom, xText: short, yText: short, xTitle: "arithmetic intensity, FLOP per byte", yTitle: unit });
    const corners = [ends[0], Math.min(Math.max(ridge, ends[0]), ends[1]), ends[1]];
    svg.append(s("path", { class: "under", d: `M${corners.map((at) => `${x(at)} ${y(roof(at))}`).join("L")}L${x(ends[1])} ${bottom}L${x(ends[0])} ${bottom}Z` }),
      path(corners.map((at) => [x(at), y(roof(at))]), { class: "roof" }));
    if (limit.peak_gflops) svg.append(s("text", { class: "tick", x: right - 4, y: y(roof(ends[1])) - 8, "text-anchor": "end" }, `${limit.dtype} peak ${short(limit.peak_gflops * factor)} ${unit}`));
    const middle = Math.sqrt(ends[0] * corners[1]);
    svg.append(s("text", { class: "tick", x: x(middle) - 6, y: y(roof(middle)) - 8, "text-anchor": "end" }, `${short(limit.bandwidth_gb_s)} GB/s`));
    svg.append(s("line", { class: "cursor", x1: x(limit.intensity), x2: x(limit.intensity), y1: y(roof(limit.intensity)), y2: bottom }));
    for (const answer of known) if (answer !== own) svg.append(s("circle", { class: "dot faint", cx: x(limit.intensity), cy: y(rate(answer.time_ns)), r: 3.5 }, s("title", {}, `${named(answer.config, answer.label)}: ${duration(answer.time_ns)}`)));
    if (own) {
      if (own.lower_ns) svg.append(s("line", { class: "whisker", x1: x(limit.intensity), x2: x(limit.intensity), y1: y(rate(own.lower_ns)), y2: y(rate(own.upper_ns)) }));
      const left_ = right - x(limit.intensity) < 112;
      svg.append(s("circle", { class: "dot", cx: x(limit.intensity), cy: y(rate(own.time_ns)), r: 7 }),
        s("text", { class: "label", x: x(limit.intensity) + (left_ ? -13 : 13), y: y(rate(own.time_ns)) + 5, "text-anchor": left_ ? "end" : "start" }, `${short(rate(own.time_ns))} ${unit}`));
    }
    return svg;
  };
  const data = table("Roofline", ["config", "time", unit, "share of the roof"], known.map((answer) => [named(answer.config, answer.label), duration(answer.time_ns), short(rate(answer.time_ns)), percent(limit.floor_ns / answer.time_ns)]), { right: [1, 2, 3] });
  return figure("How near to the device's limits?", `${count(limit.flops)} FLOP over ${count(limit.bytes)} bytes. The slope is what the memory of ${found.device} allows, the flat part its arithmetic; what fits into a cache may pass the slope.${limit.cores_share !== 1 ? ` With ${percent(limit.cores_share, 0)} of the cores.` : ""}`, draw, data);
}

/** The time as a product of factors. */
export function reasons(found) {
  if (!found.available) return h("p", { class: "empty" }, found.reason);
  const steps = [];
  let at = found.expected_ns ?? 1;
  if (found.expected_ns) steps.push({ name: "the work at rates that good kernels reach", from: null, to: at });
  steps.push({ name: found.expected_ns ? "how kernels miss that, on average" : "time of a typical vector", from: found.expected_ns ? at : null, to: at * found.mean, factor: found.mean });
  at *= found.mean;
  for (const item of found.contributions) {
    steps.push({ name: item.feature, value: item.label ?? short(item.value), from: at, to: at * item.factor, factor: item.factor });
    at *= item.factor;
  }
  if (found.others.features) {
    steps.push({ name: `${found.others.features} other features`, from: at, to: at * found.others.factor, factor: found.others.factor });
    at *= found.others.factor;
  }
  steps.push({ name: "predicted time", from: null, to: found.time_ns, last: true });
  const label = `Predicted ${duration(found.time_ns)}: ${found.contributions.slice(0, 3).map((item) => `${item.feature} ${times(item.factor)}`).join(", ")}`;
  const draw = (width) => {
    const wide = width > 560, step = wide ? 27 : 42, left = wide ? 250 : 8, right = width - 74;
    const height = steps.length * step + 34, svg = drawing(width, height, label);
    const x = scale(steps.flatMap((item) => [item.from ?? item.to, item.to]), left, right, { log: true, room: 0.07 });
    for (const tick of x.ticks) svg.append(s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: height - 26 }), s("text", { class: "tick", x: x(tick), y: height - 8, "text-anchor": "middle" }, duration(tick)));
    steps.forEach((item, number) => {
      const y = number * step + (wide ? 6 : 20), from = x(item.from ?? item.to), to = x(item.to);
      const text = item.value === undefined ? item.name : `${item.name} = ${item.value}`;
      svg.append(s("text", { class: item.last ? "label" : "name", x: wide ? left - 10 : left, y: wide ? y + 13 : y - 5, "text-anchor": wide ? "end" : "start" }, text.length > 36 ? `${text.slice(0, 35)}…` : text, s("title", {}, text)));
      if (item.from === null) svg.append(s("circle", { class: item.last ? "dot" : "dot faint", cx: to, cy: y + 8, r: item.last ? 6 : 4.5 }), s("text", { class: item.last ? "label" : "tick", x: to + 11, y: y + 13 }, duration(item.to)));
      else svg.append(s("rect", { class: item.factor >= 1 ? "slower" : "faster", x: Math.min(from, to), width: Math.max(1.5, Math.abs(to - from)), y, height: 16, rx: 3 }),
        s("text", { class: "tick", x: Math.max(from, to) + 7, y: y + 12 }, times(item.factor)));
      if (number + 1 < steps.length) svg.append(s("line", { class: "joint", x1: to, x2: to, y1: y + 16, y2: y + step }));
    });
    return svg;
  };
  const data = table("Factors", ["feature", "value", "factor", "time so far"], steps.map((item) => [item.name, item.value ?? "", item.factor ? times(item.factor) : "", duration(item.to)]), { right: [1, 2, 3] });
  return figure("Why this time?", "From the top: what the work takes at the rates that good kernels reach (70 % of the arithmetic, 80 % of the bandwidth), how much kernels miss that by on average, then what each feature of this problem and config does to the time, compared with typical vectors of this model (Shapley values). Multiplied, they are the prediction.", draw, data);
}

/** The measured problems that are most like this one. */
export function near(found, go, kept) {
  if (!found.available) return h("p", { class: "empty" }, found.reason);
  if (!found.problems.length) return h("p", { class: "empty" }, "Nothing was measured.");
  const { name } = apart(found.problems.map((item) => item.best));
  const rows = found.problems.map((item) => [
    h("button", { type: "button", class: "link", on: { click: () => go(item.problem) } }, assignments(kept(item.problem))),
    duration(item.best_ns), name(item.best), item.chosen_ns === null ? "not measured" : `${duration(item.chosen_ns)} (${times(item.chosen_ns / item.best_ns)})`]);
  return [h("p", {}, found.measured_here ? "This problem itself was measured." : "This problem was not measured; these are the nearest that were."),
    table("Measured near here", ["problem", "fastest", "its config", "the config above"], rows, { right: [1, 3] })];
}

/** The best time on every device, with its interval and its roofline. */
export function devices(found, current, choose) {
  const known = found.devices.filter((item) => item.time_ns);
  if (found.devices.length < 2 && known.length) return h("p", { class: "empty" }, `The models of this family that are here know one device, ${known[0].device}.`);
  const refused = found.devices.filter((item) => !item.time_ns);
  const best = Math.min(...known.map((item) => item.time_ns));
  const own = found.devices[0]?.model, several = new Set(known.map((item) => item.model)).size > 1;
  const titled = (item) => (several ? `${item.device}, ${item.model.split("/").pop()}` : item.device);
  const label = `Devices: ${known.map((item) => `${titled(item)} ${duration(item.time_ns)}`).join(", ")}`;
  const sorted = [...known].sort((one, other) => one.time_ns - other.time_ns);
  const draw = (width) => {
    const wide = width > 560, step = wide ? 34 : 48, left = wide ? Math.min(320, 40 + 7 * Math.max(...sorted.map((item) => titled(item).length))) : 8, right = width - 92, height = sorted.length * step + 30;
    const svg = drawing(width, height, label);
    const x = scale([...sorted.flatMap((item) => [item.time_ns, item.lower_ns ?? item.time_ns, item.upper_ns ?? item.time_ns, item.floor_ns ?? item.time_ns])], left, right, { log: true, room: 0.05 });
    for (const tick of x.ticks) svg.append(s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 26 }), s("text", { class: "tick", x: x(tick), y: height - 8, "text-anchor": "middle" }, duration(tick)));
    sorted.forEach((item, number) => {
      const y = number * step + (wide ? 16 : 30), chosen = item.device === current && item.model === own, name = titled(item);
      svg.append(s("text", { class: chosen ? "label" : "name", x: wide ? left - 12 : left, y: wide ? y + 5 : y - 12, "text-anchor": wide ? "end" : "start" }, name.length > 40 ? `${name.slice(0, 39)}…` : name, s("title", {}, `${item.title}, ${item.model}`)));
      if (item.floor_ns) svg.append(s("line", { class: "mark", x1: x(item.floor_ns), x2: x(item.floor_ns), y1: y - 9, y2: y + 9 }, s("title", {}, `roofline ${duration(item.floor_ns)}`)));
      if (item.lower_ns) svg.append(s("line", { class: "whisker", x1: x(item.lower_ns), x2: x(item.upper_ns), y1: y, y2: y }));
      svg.append(s("circle", { class: item.status === "ok" ? "dot" : "dot faint", cx: x(item.time_ns), cy: y, r: chosen ? 7 : 5.5, on: { click: () => choose(item) } }, s("title", {}, `${item.device}: ${duration(item.time_ns)}`)),
        s("text", { class: chosen ? "label" : "tick", x: Math.max(x(item.time_ns), item.upper_ns ? x(item.upper_ns) : 0) + 10, y: y + 5 }, duration(item.time_ns)));
    });
    return svg;
  };
  const rows = sorted.map((item) => [h("button", { type: "button", class: "link", on: { click: () => choose(item) } }, titled(item)), duration(item.time_ns), item.lower_ns ? `${duration(item.lower_ns)} to ${duration(item.upper_ns)}` : "–", times(item.time_ns / best), duration(item.floor_ns), named(item.config, item.label), item.status === "ok" ? item.model : `${item.model}, ${item.status.replaceAll("_", " ")}`]);
  return [known.length > 0 && figure("Which device?", "The best config's time on each device of the models of this family, with its 90 % interval; the orange mark is the roofline. A faint dot is extrapolated: do not rely on it. Click a dot to go to its device.", draw, table("Devices", ["device", "time", "90 % interval", "to the fastest", "roofline", "best config", "model"], rows, { right: [1, 2, 3, 4] })),
    refused.length > 0 && h("details", { class: "data" }, h("summary", {}, `${refused.length} ${refused.length > 1 ? "devices have" : "device has"} no answer`),
      h("ul", { class: "refused" }, refused.map((item) => h("li", {}, h("b", {}, item.device), ` (${item.model}): ${item.reason || item.status}`))))];
}
