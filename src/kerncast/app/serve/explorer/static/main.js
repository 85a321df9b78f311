// The page: which view, of what. Its state is in the address, so that a link leads back to it.

import { Refused, get } from "./api.js";
import { DataView } from "./data.js";
import { ModelView, modelTitle } from "./model.js";
import { WatchView } from "./watch.js";
import { h, put } from "./dom.js";

const view = document.getElementById("view"), views = document.getElementById("views"), trouble = document.getElementById("trouble");
let sources = null, current = null, shows = 0;

function read() {
  try {
    return JSON.parse(decodeURIComponent(location.hash.slice(1))) || {};
  } catch {
    return {};
  }
}

function write(state) {
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(state))}`);
}

function complain(error) {
  put(trouble, h("p", { class: "warning" }, error instanceof Refused ? error.message : "Something went wrong on this page."));
  if (!(error instanceof Refused)) throw error;
}

const optionsOf = (items, chosen) => {
  const groups = new Map();
  for (const item of items) groups.set(item.family, [...(groups.get(item.family) || []), item]);
  return [...groups].map(([family, models]) => h("optgroup", { label: family }, models.map((item) => h("option", { value: item.id, selected: item.id === chosen }, modelTitle(item)))));
};

/** The tabs and what is chosen in them. */
function navigation(state) {
  const tab = (name, title, open) => h("button", { type: "button", id: `tab-${name}`, class: "tab", "aria-current": state.view === name ? "page" : null, on: { click: open } }, title);
  const pick = state.view === "model"
    ? h("select", { id: "model", "aria-label": "Model", on: { change: (event) => show({ view: "model", model: event.target.value }) } }, optionsOf(sources.models, state.model))
    : sources.datasets.length > 1 && h("select", { id: "dataset", "aria-label": "Dataset", on: { change: (event) => show({ view: state.view, dataset: event.target.value }) } }, sources.datasets.map((name) => h("option", { value: name, selected: name === state.dataset }, name)));
  const focus = views.contains(document.activeElement) ? document.activeElement.id : "";
  put(views, sources.models.length > 0 && tab("model", "Models", () => show({ view: "model", model: state.model })),
    sources.datasets.length > 0 && [tab("data", "Data", () => show({ view: "data", dataset: state.dataset })), tab("watch", "Sweep", () => show({ view: "watch", dataset: state.dataset }))], pick);
  if (focus) document.getElementById(focus)?.focus(); // who walks by keyboard stays where they were
}

async function show(asked) {
  const turn = ++shows; // what is asked for later is shown, whatever arrives first
  current?.close?.();
  current = null;
  const state = { ...asked };
  const own = sources.models.filter((item) => item.origin !== "shipped");
  const there = { model: sources.models.length, data: sources.datasets.length, watch: sources.datasets.length };
  if (!there[state.view]) state.view = sources.running.length ? "watch" : sources.datasets.length ? "data" : "model";
  if (state.view === "model" && !sources.models.some((item) => item.id === state.model)) state.model = (own[0] || sources.models[0])?.id;
  if (state.view !== "model" && !sources.datasets.includes(state.dataset)) state.dataset = sources.running[0] ?? sources.datasets[0];
  put(trouble);
  navigation(state);
  write(state);
  const keep = (more) => { Object.assign(state, more); if (turn === shows) write(state); };
  view.setAttribute("aria-busy", "true");
  try {
    if (state.view === "model" && !state.model || state.view !== "model" && !state.dataset) {
      put(view, h("p", { class: "empty" }, "There is nothing here yet: add a model to the store, or open a dataset with `kerncast serve --open`."));
      return;
    }
    const kind = { model: ModelView, data: DataView, watch: WatchView }[state.view];
    const opened = await kind.open(sources, state.view === "model" ? state.model : state.dataset, state, keep);
    if (turn !== shows) {
      opened.close?.();
      return;
    }
    current = opened;
    put(view, current.element);
    document.title = `${state.model || state.dataset}: kerncast explorer`;
  } catch (error) {
    if (turn !== shows) return;
    put(view);
    complain(error);
  } finally {
    if (turn === shows) view.removeAttribute("aria-busy");
  }
}

async function start() {
  try {
    sources = await get("sources");
  } catch (error) {
    complain(error);
    return;
  }
  put(document.getElementById("foot"), `kerncast ${sources.version}. This page asks nobody but its own server.`,
    sources.problems > 0 && ` ${sources.problems} models cannot be read; kerncast models lists them.`);
  await show(read());
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds what is shown
  view.focus();
});
addEventListener("hashchange", () => sources && show(read()));
start();
