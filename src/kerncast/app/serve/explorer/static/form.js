// The problem: a field for each parameter; sizes may be typed or dragged.

import { h, settled } from "./dom.js";

const STEPS = 240;

/** A slider position for a size, evenly by its logarithm over the trained range. */
const toSlider = (fact, value) => {
  const low = Math.log(Math.max(fact.trained_low, 1)), high = Math.log(Math.max(fact.trained_high, 1));
  return Math.round((STEPS * (Math.log(Math.max(value, 1)) - low)) / (high - low));
};

const fromSlider = (fact, place) => {
  const low = Math.log(Math.max(fact.trained_low, 1)), high = Math.log(Math.max(fact.trained_high, 1));
  const size = Math.exp(low + (place / STEPS) * (high - low));
  // Sizes that people use: multiples of what is usual for their size.
  const step = Math.max(fact.step, size >= 1024 ? 128 : size >= 256 ? 32 : size >= 64 ? 8 : 1);
  return Math.min(fact.trained_high, Math.max(fact.trained_low, Math.round(size / step) * step || fact.trained_low));
};

const isFixed = (fact) => fact.fixed;

export class ProblemForm {
  #facts;
  #fields = new Map();
  #changed;

  constructor(facts, problem, changed) {
    this.#facts = facts.parameters;
    this.#changed = settled(changed, 120);
    const varying = this.#facts.filter((fact) => !isFixed(fact)), fixed = this.#facts.filter(isFixed);
    this.element = h("form", { class: "problem-form", on: { submit: (event) => event.preventDefault() } },
      h("h2", {}, "Problem"),
      varying.map((fact) => this.#field(fact, problem[fact.name])),
      fixed.length > 0 && h("details", { class: "fixed" }, h("summary", {}, `${fixed.length} more, trained with one value`),
        fixed.map((fact) => this.#field(fact, problem[fact.name]))));
  }

  /** The values that are filled in. */
  get problem() {
    const found = {};
    for (const [name, field] of this.#fields) {
      const value = field.read();
      if (value !== null) found[name] = value;
    }
    return found;
  }

  /** Fill in some values, as if they were typed. */
  set(values) {
    for (const [name, value] of Object.entries(values)) this.#fields.get(name)?.write(value);
    this.#changed();
  }

  #field(fact, value) {
    const id = `p-${fact.name}`;
    const control = fact.kind === "size" ? this.#size(fact, id) : this.#label(fact, id);
    this.#fields.set(fact.name, control);
    if (value !== undefined && value !== null) control.write(value);
    return h("div", { class: "field" },
      h("label", { for: id, title: fact.doc || null }, fact.name),
      h("div", { class: "control" }, control.elements),
      fact.trained && h("small", { id: `${id}-trained` }, `trained with ${fact.trained}`));
  }

  #size(fact, id) {
    const typed = h("input", { id, type: "number", inputmode: "numeric", min: fact.low, max: fact.high, step: 1, required: !fact.optional,
      placeholder: fact.absent || null, autocomplete: "off", "aria-describedby": fact.trained ? `${id}-trained` : null });
    const slides = fact.trained_low !== undefined && fact.trained_low < fact.trained_high;
    const slider = slides && h("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${fact.name}, by dragging` });
    const follow = () => {
      if (!slider || typed.value === "") return;
      slider.value = toSlider(fact, Number(typed.value));
      slider.setAttribute("aria-valuetext", typed.value);
    };
    typed.addEventListener("input", () => { follow(); this.#changed(); });
    slider && slider.addEventListener("input", () => { typed.value = fromSlider(fact, Number(slider.value)); slider.setAttribute("aria-valuetext", typed.value); this.#changed(); });
    return {
      elements: slider ? [typed, slider] : [typed],
      read: () => (typed.value === "" ? null : Number(typed.value)),
      write: (value) => { typed.value = value; follow(); },
    };
  }

  #label(fact, id) {
    const labels = fact.labels.map(String);
    const select = h("select", { id, on: { change: () => this.#changed() } },
      fact.optional && h("option", { value: "" }, fact.absent || "none"),
      labels.map((label) => h("option", { value: label }, label)));
    return {
      elements: [select],
      read: () => (select.value === "" ? null : fact.labels[labels.indexOf(select.value)]),
      write: (value) => { if (labels.includes(String(value))) select.value = String(value); },
    };
  }
}

/** The values of a problem that may differ from one to another. */
export const varyingOf = (facts) => {
  const names = new Set(facts.parameters.filter((fact) => !isFixed(fact)).map((fact) => fact.name));
  return (problem) => Object.fromEntries(Object.entries(problem).filter(([name]) => names.has(name)));
};

/** The parameters that one can go along, sizes first. */
export const axesOf = (facts) =>
  facts.parameters.filter((fact) => !isFixed(fact))
    .sort((one, other) => Number(Boolean(one.labels)) - Number(Boolean(other.labels))).map((fact) => fact.name);
