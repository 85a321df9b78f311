// The view of a running sweep: rate, time left, statuses, drift of the sentinel, the best so far.

import { Line } from "./api.js";
import { axes, bars, drawing, figure, path, scale } from "./charts.js";
import { h, put, s, say, table } from "./dom.js";
import { assignments, count, duration, named, percent, short, span } from "./words.js";

const EVERY = 1000, SLOWLY = 5000;
const STATES = { running: "measuring now", ended: "not running", finished: "finished", none: "no sweep is running" };

export class WatchView {
  #name;
  #line = new Line();
  #timer = 0;
  #state = "";

  constructor(name, found) {
    this.#name = name;
    this.element = h("div", { class: "answers" });
    this.#draw(found);
  }

  static async open(_, name) {
    return new WatchView(name, await new Line().ask("watch", { dataset: name }));
  }

  close() {
    clearTimeout(this.#timer);
    this.#timer = -1;
  }

  async #look() {
    try {
      const found = await this.#line.ask("watch", { dataset: this.#name });
      if (found !== null && this.#timer !== -1) this.#draw(found);
    } catch (error) {
      if (this.#timer === -1) return;
      put(this.element, h("p", { class: "warning" }, error.message));
      if (this.#state !== "lost") say(error.message);
      this.#state = "lost";
      this.#timer = setTimeout(() => this.#look(), SLOWLY); // a server that was started again goes on
    }
  }

  #draw(found) {
    if (this.#timer === -1) return;
    if (found.state !== this.#state) say(`Sweep ${STATES[found.state]}: ${count(found.measured)} vectors measured`);
    this.#state = found.state;
    const boxes = [...this.element.querySelectorAll(".scroll")].map((box) => [box.id, box.scrollLeft]);
    const focus = document.activeElement?.id, open = [...this.element.querySelectorAll("details[open]")].map((item) => item.id);
    put(this.element, this.#summary(found), this.#drift(found.drift), this.#best(found));
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const [id, at] of boxes) document.getElementById(id)?.scrollTo({ left: at });
    if (focus && focus !== document.activeElement?.id) document.getElementById(focus)?.focus();
    this.#timer = setTimeout(() => this.#look(), found.state === "running" ? EVERY : SLOWLY);
  }

  #summary(found) {
    const share = found.vectors ? Math.min(1, found.measured / found.vectors) : null;
    const failed = found.statuses.filter((item) => item.value !== "ok").reduce((total, item) => total + item.rows, 0);
    const cards = [["measured", count(found.measured), found.vectors ? `of ${count(found.vectors)} vectors` : "vectors"], ["rate", found.rate === null ? "–" : `${short(found.rate)} / s`, found.rate ? `${count(Math.round(found.rate * 3600))} an hour` : ""],
      ["time left", found.state === "running" ? span(found.seconds_left) : "–", `${span(found.seconds)} so far`], ["failed", found.measured ? percent(failed / found.measured) : "–", `${count(failed)} vectors`],
      ["problems", count(found.problems), ""], ["drift of the reference", found.drift ? `${((found.drift.now - 1) * 100).toFixed(1)} %` : "–", found.drift ? `worst ${((found.drift.worst - 1) * 100).toFixed(1)} %` : "no reference yet"]];
    return h("section", { class: "answer", "aria-labelledby": "sweep-title" }, h("h1", { id: "sweep-title" }, this.#name, " ", h("span", { class: `state ${found.state}` }, STATES[found.state])),
      found.family && h("p", { class: "small" }, `${found.family} by ${found.backend} on ${found.device}`),
      found.ended && h("p", { class: "note" }, `It is not finished, because ${found.ended}: run the same kerncast collect again to continue.`),
      share !== null && h("div", { class: "scale", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share), "aria-label": "Measured" }, h("div", { class: "fill", css: { width: `${100 * share}%` } })),
      h("dl", { class: "cards" }, cards.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value), more && h("small", {}, more)))),
      found.statuses.length > 0 && [h("h3", {}, "How vectors ended"), bars(found.statuses.map((item) => ({ name: item.value, value: item.rows, kind: item.value === "ok" ? "good" : "bad" })), { text: (item) => count(item.value) })],
      found.errors.length > 0 && h("details", { class: "data", id: "sweep-errors" }, h("summary", {}, "What failed vectors say"), table("Messages", ["message", "status", "vectors"], found.errors.map((item) => [item.error, item.status, count(item.rows)]), { right: [2], kind: "wrap" })));
  }

  #drift(drift) {
    if (!drift || drift.points.length < 2) return null;
    const draw = (width) => {
      const height = 200, left = 56, right = width - 10, top = 24, bottom = height - 40, svg = drawing(width, height, `Reference kernel: ${percent(drift.now - 1)} above its best now`);
      const x = scale(drift.points.map((point) => point.seconds), left, right, { room: 0 }), y = scale([1, 1.05, ...drift.points.map((point) => point.ratio)], bottom, top);
      axes(svg, { x, y, left, right, top, bottom, xText: span, yText: (value) => `+${((value - 1) * 100).toFixed(0)} %`, xTitle: "since the beginning", yTitle: "reference kernel against its best" });
      svg.append(path(drift.points.map((point) => [x(point.seconds), y(point.ratio)]), { class: "line" }));
      drift.points.forEach((point) => svg.append(s("circle", { class: "dot point", cx: x(point.seconds), cy: y(point.ratio), r: 3 }, s("title", {}, `${span(point.seconds)}: +${((point.ratio - 1) * 100).toFixed(1)} %`))));
      return svg;
    };
    return h("section", { "aria-labelledby": "drift-title" }, h("h2", { id: "drift-title" }, "Drift"),
      figure("Is the machine as fast as it was?", "A fixed kernel runs between samples. If it becomes slower and stays so, the machine throttles or is busy, and times are measured again where that matters.", draw,
        table("Drift", ["since the beginning", "above its best"], drift.points.map((point) => [span(point.seconds), percent(point.ratio - 1)]), { right: [1] })));
  }

  #best(found) {
    if (!found.best.length) return found.state === "none" ? h("p", { class: "empty" }, "Start one with kerncast collect, and it appears here.") : null;
    const rows = found.best.map((item) => [assignments(item.problem), duration(item.time_ns), item.config === null ? "nothing worked yet" : named(item.config), count(item.vectors), count(item.failed)]);
    return h("section", { "aria-labelledby": "best-title" }, h("h2", { id: "best-title" }, "Best so far"), h("p", {}, found.problems > rows.length ? `The ${rows.length} problems that were measured last, of ${count(found.problems)}.` : "The problems that were measured last come first."),
      table("Best config of each problem so far", ["problem", "time", "best config", "vectors", "failed"], rows, { right: [1, 3, 4] }));
  }
}
