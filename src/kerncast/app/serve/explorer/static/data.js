// The view of a dataset: what it holds, how its rows ended, how noisy they are, its problems, where a model does worst.

import { Line } from "./api.js";
import { axes, bars, drawing, figure, histogram, scale } from "./charts.js";
import { h, put, s, say, settled, table } from "./dom.js";
import { assignments, count, distinct, duration, named, percent, times } from "./words.js";

const SORTS = [["failed", "most failures"], ["noise", "noisiest"], ["spread", "widest spread"], ["configs", "most configs"], ["best_ns", "fastest"]];

export class DataView {
  #name;
  #state;
  #remember;
  #sources;
  #facts;
  #kept;
  #lines = { problems: new Line(), rows: new Line(), worst: new Line() };
  #places = Object.fromEntries(["problems", "rows", "worst"].map((name) => [name, h("div", { class: "place" })]));

  constructor(sources, name, facts, state, remember) {
    [this.#sources, this.#name, this.#facts, this.#state, this.#remember] = [sources, name, facts, state, remember];
    this.#state.sort ??= "failed";
    this.#state.page ??= 0;
    this.#state.text ??= "";
    this.#kept = (problem) => Object.fromEntries(Object.entries(problem).filter(([name]) => !(name in facts.constant)));
    this.element = h("div", { class: "answers" }, this.#summary(), this.#noise(), this.#problems(), this.#worst());
    this.#askProblems();
  }

  static async open(sources, name, state, remember) {
    const facts = await new Line().ask("dataset", { dataset: name, family: state.family ?? null });
    return new DataView(sources, name, facts, state, remember);
  }

  get #asked() {
    return { dataset: this.#name, family: this.#facts.family };
  }

  #summary() {
    const facts = this.#facts, ok = facts.statuses.find((item) => item.value === "ok")?.rows ?? 0;
    const family = facts.families.length > 1 && h("label", { for: "family" }, "Family ", h("select", { id: "family", on: { change: (event) => { this.#remember({ family: event.target.value }); dispatchEvent(new HashChangeEvent("hashchange")); } } },
      facts.families.map((name) => h("option", { value: name, selected: name === facts.family }, name))));
    const cards = [["rows", count(facts.rows), facts.devices.map((item) => `${item.value} (${count(item.rows)})`).join(", ")], ["problems", count(facts.problems), distinct(facts.pooled)], ["configs", count(facts.configs), ""],
      ["worked", percent(ok / facts.rows), `${count(facts.rows - ok)} failed`], ["noise of a row", percent(facts.noise.median, 2), facts.noise.p90 === null ? "not recorded" : `P90 ${percent(facts.noise.p90, 2)}; deviation of its samples`]];
    return h("section", { class: "answer", "aria-labelledby": "data-title" }, h("div", { class: "head" }, h("h1", { id: "data-title" }, this.#name), family),
      h("p", { class: "small" }, [facts.family, ...facts.software.map((item) => item.value).filter(Boolean).slice(0, 3)].join(", ")),
      Object.keys(facts.constant).length > 0 && h("p", { class: "small" }, `every problem ${assignments(facts.constant)}`),
      facts.unfinished && h("p", { class: "note" }, facts.unfinished),
      h("dl", { class: "cards" }, cards.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value), more && h("small", {}, more)))),
      h("h3", {}, "How rows ended"),
      bars(facts.statuses.map((item) => ({ name: item.value, value: item.rows, kind: item.value === "ok" ? "good" : "bad" })), { text: (item) => `${count(item.value)} (${percent(item.value / facts.rows)})` }),
      facts.errors.length > 0 && h("details", { class: "data" }, h("summary", {}, "What failed rows say"), table("Messages of failed rows", ["message", "status", "rows"], facts.errors.map((item) => [item.error, item.status, count(item.rows)]), { right: [2], kind: "wrap" })));
  }

  #noise() {
    const { noise, repeats } = this.#facts;
    if (noise.median === null && !repeats.length) return null;
    const text = (value) => percent(value, value < 0.001 ? 2 : value < 0.01 ? 1 : 0);
    return h("section", { "aria-labelledby": "noise-title" }, h("h2", { id: "noise-title" }, "Noise"),
      noise.median !== null && figure("How far samples are from their row's time", "Median absolute deviation of a row's samples, relative to its time. Differences between configs that are smaller than this are not known.",
        histogram(noise.edges, noise.rows, { xText: text, label: `Noise of rows: median ${percent(noise.median, 2)}`, marks: [{ at: noise.median, name: "median" }, ...(noise.p90 > 1.4 * noise.median ? [{ at: noise.p90, name: "P90" }] : [])] }),
        table("Noise of rows", ["from", "to", "rows"], noise.rows.map((rows, place) => [text(noise.edges[place]), text(noise.edges[place + 1]), count(rows)]).filter((row) => row[2] !== "0"), { right: [0, 1, 2] })),
      repeats.length > 0 && [h("h3", {}, "What was measured more than once"), table("Repeats", ["size", "measurements", "MAD", "MAD P90", "slowest / fastest", "P99"],
        repeats.map((band) => [band.band, count(band.measurements), percent(band.relative_mad_median, 2), percent(band.relative_mad_p90, 2), band.slowest_over_fastest_median.toFixed(3), band.slowest_over_fastest_p99.toFixed(3)]), { right: [1, 2, 3, 4, 5] })]);
  }

  #problems() {
    const search = h("input", { id: "text", type: "search", value: this.#state.text, placeholder: `${this.#facts.problem[0]}=128`, on: { input: settled(() => { this.#state.text = search.value; this.#state.page = 0; this.#askProblems(); }, 250) } });
    const sort = h("select", { id: "sort", on: { change: () => { this.#state.sort = sort.value; this.#state.page = 0; this.#askProblems(); } } }, SORTS.map(([value, title]) => h("option", { value, selected: value === this.#state.sort }, title)));
    return h("section", { "aria-labelledby": "problems-title" },
      h("div", { class: "head" }, h("h2", { id: "problems-title" }, "Problems"), h("div", { class: "tools" }, h("label", { for: "text" }, "Where ", search), h("label", { for: "sort" }, "First ", sort))),
      this.#places.problems, this.#places.rows);
  }

  async #ask(name, body, draw, said) {
    const place = this.#places[name];
    place.classList.add("busy");
    try {
      const found = await this.#lines[name].ask(name, body);
      if (found !== null) {
        put(place, draw(found));
        say(said(found));
      }
    } catch (error) {
      put(place, h("p", { class: "warning" }, error.message));
      say(error.message);
    }
    place.classList.remove("busy");
  }

  #askProblems() {
    const { sort, page, text } = this.#state;
    this.#remember({ sort, page, text });
    put(this.#places.rows);
    this.#ask("problems", { ...this.#asked, sort, page, text }, (found) => this.#listed(found), (found) => `${count(found.total)} problems, page ${found.page + 1}`);
  }

  #listed(found) {
    const placed = this.#facts.pooled ? ["device"] : [];
    const rows = found.problems.map((item) => [h("button", { type: "button", class: "link", on: { click: () => this.#askRows(item) } }, assignments(this.#kept(item.problem)) || assignments(item.problem)),
      ...placed.map((name) => item[name]), duration(item.best_ns), item.best_ns === null ? "nothing worked" : named(item.best), count(item.configs), count(item.failed), item.spread === null ? "–" : times(item.spread), percent(item.noise, 2)]);
    const pages = Math.ceil(found.total / found.page_size);
    const turn = (step) => () => { this.#state.page = found.page + step; this.#askProblems(); };
    return [table("Problems", ["problem", ...placed, "fastest", "config", "configs", "failed", "slowest / fastest", "noise"], rows, { right: [1, 3, 4, 5, 6].map((place) => place + placed.length) }),
      h("p", { class: "pages" }, h("button", { type: "button", disabled: found.page === 0, on: { click: turn(-1) } }, "Before"), ` ${count(found.total)} problems, page ${found.page + 1} of ${Math.max(1, pages)} `, h("button", { type: "button", disabled: found.page + 1 >= pages, on: { click: turn(1) } }, "Next"))];
  }

  #askRows(item) {
    this.#ask("rows", { ...this.#asked, problem: item.problem, device: item.device }, (found) => {
      const measured = found.rows.filter((row) => row.time_ns !== null);
      const draw = (width) => {
        const height = 260, left = 62, right = width - 10, top = 24, bottom = height - 44, svg = drawing(width, height, `Times of ${measured.length} rows of ${assignments(item.problem)}`);
        const x = scale([0, Math.max(1, measured.length - 1)], left + 8, right - 8, { room: 0 });
        const y = scale(measured.map((row) => row.time_ns), bottom, top, { log: true });
        axes(svg, { x: Object.assign(x, { ticks: [] }), y, left, right, top, bottom, xText: String, yText: duration, xTitle: "configs, fastest first", yTitle: "measured time" });
        measured.forEach((row, place) => svg.append(s("circle", { class: place ? "dot faint" : "dot", cx: x(place), cy: y(row.time_ns), r: place ? 3.5 : 6 }, s("title", {}, `${named(row.config, row.label)}: ${duration(row.time_ns)}`))));
        return svg;
      };
      const rows = found.rows.map((row) => [named(row.config, row.label), row.status, duration(row.time_ns), row.time_ns && row.time_ns_mad !== null ? percent(row.time_ns_mad / row.time_ns, 2) : "–", count(row.samples), row.error ?? ""]);
      return h("div", { class: "detail" }, h("h3", {}, `${assignments(this.#kept(item.problem))} on ${item.device}`),
        measured.length > 0 && figure("Measured times", found.total > found.rows.length ? `The first ${count(found.rows.length)} of ${count(found.total)} rows.` : `${count(found.total)} rows.`, draw),
        table("Rows of this problem", ["config", "status", "time", "noise", "samples", "message"], rows, { right: [2, 3, 4] }));
    }, (found) => `${count(found.total)} rows of ${assignments(this.#kept(item.problem))}`).then(() => this.#places.rows.scrollIntoView({ block: "nearest" }));
  }

  #worst() {
    const models = this.#sources.models.filter((item) => item.family === this.#facts.family);
    if (!models.length) return null;
    const select = h("select", { id: "judged" }, models.map((item) => h("option", { value: item.id, selected: item.id === this.#state.judged }, item.id)));
    const judge = h("button", { type: "button", id: "judge", on: { click: () => { this.#remember({ judged: select.value }); this.#ask("worst", { ...this.#asked, model: select.value }, (found) => judged(found, this.#kept), (found) => `${count(found.problems)} problems judged`); } } }, "Judge it");
    return h("section", { id: "worst", "aria-labelledby": "worst-title" }, h("div", { class: "head" }, h("h2", { id: "worst-title" }, "Where a model does worst"), h("div", { class: "tools" }, h("label", { for: "judged" }, "Model ", select), judge)), this.#places.worst);
  }
}

const HOW = {
  out_of_fold: "The model was trained on these rows, so each problem is judged by the fold that had not seen it.",
  unseen: "Only problems that the model has not seen.",
  seen: "The model was trained on all of these problems: these figures flatter it.",
};

function judged(found, kept) {
  const overall = found.overall, value = (name) => overall[name]?.value ?? null, choosing = value("efficiency_mean") !== null;
  const cards = [["mean efficiency", "efficiency_mean"], ["P10", "efficiency_p10"], ["worst", "efficiency_min"], ["best config chosen", "top1"], ["noise ceiling", "noise_ceiling"], ["MAPE of the time", "mape"], ["90 % interval covers", "coverage_90"]].filter(([, name]) => value(name) !== null);
  const placed = found.pooled ? ["device"] : [], right = (places) => ({ right: places.map((place) => place + placed.length) }), at = (item) => placed.map((name) => item[name]);
  const rows = choosing
    ? found.worst.map((item) => [assignments(kept(item.problem)), ...at(item), percent(item.efficiency), duration(item.chosen_ns), named(item.chosen), duration(item.best_ns), named(item.best)])
    : found.worst_predictions.map((item) => [assignments(kept(item.problem)), ...at(item), times(item.ratio), duration(item.predicted_ns), named(item.config), duration(item.measured_ns)]);
  return [h("p", { class: found.how === "seen" ? "warning" : null }, `${HOW[found.how]} ${count(found.problems)} problems${found.pooled ? `, ${distinct(found.pooled)}` : ""}.`),
    h("dl", { class: "cards" }, cards.map(([title, name]) => h("div", {}, h("dt", {}, title), h("dd", {}, percent(value(name))), overall[name].lower !== null && overall[name].lower !== undefined && h("small", {}, `${percent(overall[name].lower)} to ${percent(overall[name].upper)}`)))),
    choosing ? table("Worst problems", ["problem", ...placed, "efficiency", "chosen takes", "chosen", "best takes", "best"], rows, right([1, 2, 4]))
      : table("Worst predictions", ["problem", ...placed, "predicted / measured", "predicted", "config", "measured"], rows, right([1, 2, 4]))];
}
