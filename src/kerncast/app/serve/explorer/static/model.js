// The view of a model: a problem on the left, what the model says about it on the right.

import { Line, get } from "./api.js";
import { along, layers, winnersMap } from "./change.js";
import { devices, headline, near, ranking, reasons, roofline } from "./answer.js";
import { ProblemForm, axesOf, varyingOf } from "./form.js";
import { broken, h, put, say, settled } from "./dom.js";
import { count, duration, named, percent } from "./words.js";

const SECTIONS = [
  ["ranked", "Ranked configs"], ["limits", "Roofline"], ["why", "Why"], ["along", "Along one axis"], ["map", "Map"],
  ["near", "Measured near here"], ["devices", "Devices"],
];

export class ModelView {
  #state;
  #facts;
  #sources;
  #remember;
  #form;
  #places = {};
  #lines = Object.fromEntries(["rank", "why", "near", "along", "map", "devices"].map((name) => [name, new Line()]));
  #found = null;
  #chosen = 0;
  #kept = { along: "", map: "" };
  #answers = {};

  constructor(sources, facts, state, remember) {
    [this.#sources, this.#facts, this.#state, this.#remember] = [sources, facts, state, remember];
    const axes = axesOf(facts);
    this.#state.device ??= facts.devices[0].name;
    this.#state.axis = axes.includes(state.axis) ? state.axis : axes[0];
    this.#state.x = axes.includes(state.x) ? state.x : axes[0];
    this.#state.y = axes.includes(state.y) && state.y !== this.#state.x ? state.y : axes.find((name) => name !== this.#state.x);
    this.#state.layer ??= facts.chooses ? "winner" : "share";
    this.#form = new ProblemForm(facts, { ...facts.problem, ...state.problem }, () => this.#ask());
    this.element = h("div", { class: "split" }, this.#side(), this.#main(axes));
    this.#ask();
  }

  static async open(sources, id, state, remember) {
    return new ModelView(sources, await get("model", { id }), state, remember);
  }

  #side() {
    const facts = this.#facts;
    const known = facts.devices.map((item) => item.name);
    const device = h("select", { id: "device", on: { change: () => { this.#state.device = device.value; this.#ask(); } } },
      facts.devices.map((item) => h("option", { value: item.name, selected: item.name === this.#state.device }, item.title === item.name ? item.name : `${item.name} (${item.title})`)));
    if (!known.includes(this.#state.device)) this.#state.device = known[0];
    return h("aside", { class: "side", "aria-label": "Model and problem" },
      h("div", { class: "field" }, h("label", { for: "device" }, "Device"), h("div", { class: "control" }, device)),
      this.#form.element,
      h("p", { class: "card" }, facts.card),
      facts.notes.length > 0 && h("details", { class: "fixed" }, h("summary", {}, "What its data leave open"), h("ul", {}, facts.notes.map((note) => h("li", {}, note)))));
  }

  #main(axes) {
    const place = (name) => (this.#places[name] = h("div", { class: "place" }));
    const hidden = new Set();
    if (!this.#facts.chooses) hidden.add("ranked");
    if (axes.length < 1) hidden.add("along");
    if (axes.length < 2) hidden.add("map");
    const shown = SECTIONS.filter(([name]) => !hidden.has(name));
    const tools = {
      along: axes.length > 1 && this.#select("Axis", axes, "axis", () => this.#askAlong()),
      map: axes.length > 1 && [this.#select("Across", axes, "x", () => this.#askMap()), this.#select("Up", axes, "y", () => this.#askMap()),
        this.#choose("Colour", layers.filter(([name]) => this.#facts.chooses || name !== "winner"), "layer", () => this.#drawMap())],
    };
    return h("div", { class: "answers" },
      h("section", { class: "answer", "aria-labelledby": "answer-title" }, h("h1", { id: "answer-title" }, broken(this.#facts.family)), this.#facts.software.length > 0 && h("p", { class: "small" }, `learned from ${count(this.#facts.rows)} rows of ${this.#facts.software.join(", ")}`), place("headline")),
      shown.map(([name, title]) => h("section", { id: name, class: name === "limits" || name === "why" ? "half" : null, "aria-labelledby": `${name}-title` },
        h("div", { class: "head" }, h("h2", { id: `${name}-title` }, title), tools[name] && h("div", { class: "tools" }, tools[name])), place(name))));
  }

  #select(title, values, key, act) {
    return this.#choose(title, values.map((name) => [name, name]), key, act);
  }

  #choose(title, values, key, act) {
    const select = h("select", { id: `tool-${key}`, on: { change: () => { this.#state[key] = select.value; this.#save(); act(); } } },
      values.map(([value, text]) => h("option", { value, selected: value === this.#state[key] }, text)));
    return h("label", { for: `tool-${key}` }, title, " ", select);
  }

  #save() {
    this.#state.problem = this.#form.problem;
    this.#remember(this.#state);
  }

  #go(values) {
    this.#form.set(values);
    document.getElementById("answer-title").scrollIntoView({ block: "nearest" });
  }

  get #asked() {
    return { model: this.#facts.id, device: this.#state.device, problem: this.#form.problem };
  }

  async #show(name, line, path, body, draw) {
    const place = this.#places[name];
    if (!place) return;
    place.classList.add("busy");
    try {
      const found = await this.#lines[line].ask(path, body);
      if (found === null) return;
      place.classList.remove("busy");
      put(place, draw(found));
    } catch (error) {
      place.classList.remove("busy");
      put(place, h("p", { class: "warning" }, error.message));
      if (name === "headline") say(error.message);
    }
  }

  #ask() {
    this.#save();
    this.#chosen = 0;
    this.#show("headline", "rank", "rank", { ...this.#asked, k: 12 }, (found) => {
      this.#found = found;
      const best = found.answers[0];
      say(best.time_ns === null ? `${best.status}: ${best.reason}` : `${duration(best.time_ns)}, ${named(best.config, best.label)}`);
      this.#drawRanked();
      this.#askConfig();
      return headline(found);
    });
    this.#askAlong();
    this.#askMapLater();
    this.#askDevices();
  }

  #drawRanked() {
    if (this.#places.ranked) put(this.#places.ranked, ranking(this.#found, this.#chosen, (place) => { this.#chosen = place; this.#drawRanked(); this.#askConfig(); document.getElementById(`config-${place}`).focus(); }));
    put(this.#places.limits, roofline(this.#found, this.#chosen));
  }

  #askConfig() {
    const answer = this.#found.answers[this.#chosen], config = answer?.config;
    if (!answer || answer.time_ns === null) {
      for (const name of ["why", "near"]) put(this.#places[name], h("p", { class: "empty" }, "There is no prediction to explain."));
      return;
    }
    this.#show("why", "why", "why", { ...this.#asked, config }, reasons);
    this.#show("near", "near", "near", { ...this.#asked, config }, (found) => near(found, (values) => this.#go(values), varyingOf(this.#facts)));
  }

  /** Everything of a question but the axes: while only these change, an answer is still good. */
  #others(...axes) {
    const asked = this.#asked;
    return JSON.stringify([asked.device, axes, Object.entries(asked.problem).filter(([name]) => !axes.includes(name))]);
  }

  #askAlong() {
    const axis = this.#state.axis, key = axis && this.#others(axis);
    if (!axis) return;
    const draw = (found) => along(found, this.#form.problem[axis], (values) => this.#go(values));
    if (key === this.#kept.along && this.#answers.along) {
      put(this.#places.along, draw(this.#answers.along));
      return;
    }
    this.#show("along", "along", "along", { ...this.#asked, axis }, (found) => {
      [this.#kept.along, this.#answers.along] = [key, found];
      return draw(found);
    });
  }

  #askMapLater = settled(() => this.#askMap(), 350);

  #askMap() {
    const { x, y } = this.#state;
    if (!x || !y || !this.#places.map) return;
    if (x === y) {
      put(this.#places.map, h("p", { class: "empty" }, "Choose two different axes."));
      return;
    }
    const key = this.#others(x, y);
    if (key === this.#kept.map && this.#answers.map) {
      this.#drawMap();
      return;
    }
    this.#show("map", "map", "map", { ...this.#asked, x, y }, (found) => {
      [this.#kept.map, this.#answers.map] = [key, found];
      return this.#mapped();
    });
  }

  /** Another device of this model, or the model of another device. */
  #chooseDevice(item) {
    if (item.model !== this.#facts.id) {
      this.#remember({ ...this.#state, model: item.model, device: item.device });
      dispatchEvent(new HashChangeEvent("hashchange"));
      return;
    }
    const select = document.getElementById("device");
    select.value = this.#state.device = item.device;
    this.#ask();
    select.focus();
  }

  #mapped() {
    const alone = new Set(this.#answers.map.cells.map((cell) => cell.winner)).size < 2;
    const select = document.getElementById("tool-layer");
    if (alone && this.#state.layer === "winner" && select) select.value = this.#state.layer = "share";
    return winnersMap(this.#answers.map, this.#form.problem, (values) => this.#go(values), this.#state.layer);
  }

  #drawMap() {
    if (this.#answers.map) put(this.#places.map, this.#mapped());
  }

  #askDevices = settled(() => this.#show("devices", "devices", "devices", { model: this.#facts.id, problem: this.#form.problem }, (found) => devices(found, this.#state.device, (item) => this.#chooseDevice(item))), 250);
}

/** What a model is called in the list: its id, and how good it was. */
export const modelTitle = (item) =>
  `${item.id}${item.efficiency ? `, ${percent(item.efficiency)} of the best` : item.mape ? `, ${percent(item.mape)} off` : ""}`;
