// How the choice changes: along one axis, and over two as a map of winners.

import { axes, band, drawing, figure, path, scale } from "./charts.js";
import { h, s, table } from "./dom.js";
import { apart, brief, duration, percent } from "./words.js";

const COLOURS = 10;
const colour = (winner) => (winner === null ? "none" : winner < COLOURS ? `w${winner}` : "more");

/** The configs that win somewhere, by their colours. */
function legend(configs, wins) {
  const listed = configs.slice(0, COLOURS), rest = configs.length - listed.length, { name, common } = apart(configs);
  return [h("ul", { class: "winners" },
    listed.map((config, place) => h("li", {}, h("span", { class: `swatch w${place}`, "aria-hidden": "true" }), h("span", {}, name(config), h("small", {}, ` wins ${wins[place]}`)))),
    rest > 0 && h("li", {}, h("span", { class: "swatch more", "aria-hidden": "true" }), h("span", {}, `${rest} others`))),
  common && h("p", { class: "small" }, `All have ${common}.`)];
}

const winsOf = (cells, configs) => configs.map((_, place) => cells.filter((cell) => cell.winner === place).length);

/** Times along one axis: the best, its interval, and the configs that win somewhere. */
export function along(found, current, go) {
  const labels = typeof found.values[0] !== "number";
  const several = found.configs.length > 1;
  const wins = winsOf(found.best, found.configs), { name } = apart(found.configs);
  const label = `Along ${found.axis}: from ${duration(found.best[0].time_ns)} to ${duration(found.best.at(-1).time_ns)}, ${found.configs.length} winning configs`;
  const draw = (width) => {
    const height = 330, left = 64, right = width - 12, top = 26, bottom = height - 46;
    const svg = drawing(width, height, label);
    const times_ = [...found.best.flatMap((cell) => [cell.time_ns, cell.lower_ns, cell.upper_ns]), ...found.times.flat(), ...found.floor_ns].filter((time) => time);
    if (!times_.length) return svg;
    const x = scale(found.values, left, right, labels ? { labels } : { log: true, room: 0.02 });
    const y = scale(times_, bottom, top, { log: true });
    axes(svg, { x, y, left, right, top, bottom, xText: brief, yText: duration, xTitle: found.axis, yTitle: "predicted time" });
    const at = (times) => found.values.map((value, place) => [x(value), times[place] ? y(times[place]) : NaN]);
    svg.append(band(at(found.best.map((cell) => cell.lower_ns)), at(found.best.map((cell) => cell.upper_ns)), { class: "band" }));
    svg.append(path(at(found.floor_ns), { class: "roof dashed" }));
    if (several) found.times.forEach((line, place) => svg.append(path(at(line), { class: `line thin ${colour(place)}` })));
    svg.append(path(at(found.best.map((cell) => cell.time_ns)), { class: "line" }));
    if (found.values.includes(current) || (!labels && current >= found.values[0] && current <= found.values.at(-1))) svg.append(s("line", { class: "cursor", x1: x(current), x2: x(current), y1: top, y2: bottom }));
    found.values.forEach((value, place) => {
      const cell = found.best[place];
      if (!cell.time_ns) return;
      svg.append(s("circle", { class: `dot point ${several ? colour(cell.winner) : ""}`, cx: x(value), cy: y(cell.time_ns), r: 5, on: { click: () => go({ [found.axis]: value }) } },
        s("title", {}, `${found.axis}=${value}: ${duration(cell.time_ns)}, ${cell.winner === null ? cell.status : name(found.configs[cell.winner])}`)));
    });
    return svg;
  };
  const rows = found.values.map((value, place) => {
    const cell = found.best[place];
    return [h("button", { type: "button", class: "link", on: { click: () => go({ [found.axis]: value }) } }, String(value)), duration(cell.time_ns), cell.lower_ns ? `${duration(cell.lower_ns)} to ${duration(cell.upper_ns)}` : "–", duration(found.floor_ns[place]), cell.winner === null ? cell.reason || cell.status : name(found.configs[cell.winner])];
  });
  return [figure(`Along ${found.axis}`, `The thick line is the best config's time with its 90 % interval${several ? ", the thin ones are the configs that win somewhere" : ""}; the dashed one is the roofline. A dot has the colour of its winner; click it to go there.`, draw,
    table(`Along ${found.axis}`, [found.axis, "time", "90 % interval", "roofline", "best config"], rows, { right: [1, 2, 3] })),
  several && legend(found.configs, wins)];
}

const SHADES = 8;
const LAYERS = {
  winner: { title: "which config wins", of: () => null },
  share: { title: "share of the roofline", of: (cell) => (cell.floor_ns && cell.time_ns ? Math.min(1, cell.floor_ns / cell.time_ns) : NaN), text: (value) => percent(value, 0) },
  time: { title: "predicted time", of: (cell) => cell.time_ns ?? NaN, text: duration, log: true },
};

/** The map of winners over two axes. Arrow keys move over it, Enter or a click goes there. */
export function winnersMap(found, current, go, layer) {
  const xs = found.x.values, ys = found.y.values, { name } = apart(found.configs);
  const at = (column, row) => found.cells[row * xs.length + column];
  const nearest = (values, value) => values.reduce((best, item, place) => {
    const far = typeof item === "number" ? Math.abs(Math.log(Math.max(item, 1)) - Math.log(Math.max(value, 1))) : Number(item !== value);
    return far < best[0] ? [far, place] : best;
  }, [Infinity, 0])[1];
  const spot = { column: nearest(xs, current[found.x.name]), row: nearest(ys, current[found.y.name]) };
  const shown = found.configs.length < 2 && layer === "winner" ? "share" : layer;
  const { of, text, log } = LAYERS[shown];
  const numbers = found.cells.map(of).filter(Number.isFinite), as = log ? Math.log : (value) => value;
  const low = Math.min(...numbers.map(as)), high = Math.max(...numbers.map(as));
  const shade = (cell) => {
    const value = of(cell);
    return Number.isFinite(value) ? `shade${Math.min(SHADES - 1, Math.floor((SHADES * (as(value) - low)) / (high - low || 1)))}` : "none";
  };
  const words = (column, row) => {
    const cell = at(column, row), place = `${found.x.name}=${xs[column]}, ${found.y.name}=${ys[row]}: `;
    if (!cell.time_ns) return place + (cell.reason || cell.status);
    return `${place}${duration(cell.time_ns)}${cell.floor_ns ? `, ${percent(cell.floor_ns / cell.time_ns, 0)} of the roofline` : ""}${found.configs.length > 1 ? `, ${name(found.configs[cell.winner])}` : ""}`;
  };
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" }, words(spot.column, spot.row));
  const draw = (width) => {
    const left = 62, right = width - 8, top = 26, side = (right - left) / xs.length;
    const tall = Math.max(14, Math.min(side, 30)), bottom = top + tall * ys.length, height = bottom + 46;
    const svg = drawing(width, height, `Map over ${found.x.name} and ${found.y.name}: ${LAYERS[shown].title}. Use the arrow keys.`);
    const mark = s("rect", { class: "spot", width: side - 1, height: tall - 1, rx: 2 });
    const move = (column, row) => {
      spot.column = Math.min(Math.max(column, 0), xs.length - 1);
      spot.row = Math.min(Math.max(row, 0), ys.length - 1);
      mark.setAttribute("x", left + spot.column * side);
      mark.setAttribute("y", bottom - (spot.row + 1) * tall);
      readout.textContent = words(spot.column, spot.row);
    };
    const choose = () => go({ [found.x.name]: xs[spot.column], [found.y.name]: ys[spot.row] });
    ys.forEach((_, row) => xs.forEach((__, column) => {
      const cell = at(column, row);
      svg.append(s("rect", { class: `cell ${shown === "winner" ? colour(cell.winner) : shade(cell)}`, x: left + column * side, y: bottom - (row + 1) * tall, width: Math.max(1, side - 1), height: tall - 1, rx: 2,
        on: { click: () => { move(column, row); choose(); }, pointerenter: () => { readout.textContent = words(column, row); } } }));
    }));
    const everyX = Math.ceil(xs.length / Math.max(1, Math.floor((right - left) / 54))), everyY = Math.ceil((ys.length * 18) / (bottom - top));
    xs.forEach((value, place) => place % everyX === 0 && svg.append(s("text", { class: "tick", x: left + (place + 0.5) * side, y: bottom + 17, "text-anchor": "middle" }, brief(value))));
    ys.forEach((value, place) => place % everyY === 0 && svg.append(s("text", { class: "tick", x: left - 7, y: bottom - (place + 0.5) * tall + 4, "text-anchor": "end" }, brief(value))));
    svg.append(s("text", { class: "title", x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, found.x.name), s("text", { class: "title", x: left, y: top - 10 }, found.y.name), mark);
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.addEventListener("pointerleave", () => { readout.textContent = words(spot.column, spot.row); });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (step) move(spot.column + step[0], spot.row + step[1]);
      else if (event.key === "Enter" || event.key === " ") choose();
      else return;
      event.preventDefault();
    });
    move(spot.column, spot.row);
    return svg;
  };
  const rows = ys.map((value, row) => [String(value), ...xs.map((_, column) => { const cell = at(column, row); return shown === "winner" ? (cell.winner === null ? "–" : String(cell.winner + 1)) : text(of(cell)); })]);
  const few = found.asked < found.candidates ? ` Asked about the ${found.asked} configs that do best on the measured problems, of ${found.candidates}.` : "";
  const shades = shown !== "winner" && numbers.length > 0 && h("p", { class: "shades" }, h("span", {}, text(log ? Math.exp(low) : low)), Array.from({ length: SHADES }, (_, place) => h("i", { class: `shade${place}` })), h("span", {}, text(log ? Math.exp(high) : high)));
  return [figure(`${found.x.name} × ${found.y.name}: ${LAYERS[shown].title}`, `Each cell is one problem; the others of its parameters are as on the left. Arrow keys move, Enter or a click goes there.${few}`, draw,
    table("Map", [`${found.y.name} \\ ${found.x.name}`, ...xs.map(String)], rows, { right: xs.map((_, place) => place + 1) })),
  readout, shown === "winner" ? legend(found.configs, winsOf(found.cells, found.configs)) : shades];
}

export const layers = Object.entries(LAYERS).map(([name, layer]) => [name, layer.title]);
