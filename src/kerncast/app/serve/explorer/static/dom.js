// Elements from values. Text only ever becomes text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "css") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An HTML element: h("p", { class: "note" }, "text", other). */
export const h = (tag, properties, ...children) => filled(document.createElement(tag), properties, children);

/** The same for SVG. */
export const s = (tag, properties, ...children) => filled(document.createElementNS(SVG, tag), properties, children);

/** A name that a line may end within, after each of its parts. */
export const broken = (name) => name.split(/(?<=[/_])/).flatMap((part) => [part, h("wbr", {})]);

/** Put these children, and no others, into an element. */
export function put(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Wait until nobody has called for some milliseconds. */
export function settled(act, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
}

/** Say something to those who do not see the page change. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/** A name for an element from its words, by which it is found again after it is drawn again. */
export const slug = (kind, words) => `${kind}-${words.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;

/** A table in a box that scrolls sideways by itself. Cells are texts, nodes, or { value, class }. */
export function table(caption, columns, rows, { kind = "", right = [] } = {}) {
  const cell = (tag, item, place, more) => {
    const plain = item instanceof Node || item === null || typeof item !== "object";
    const classes = [right.includes(place) ? "right" : "", plain ? "" : item.class || ""].join(" ").trim();
    return h(tag, { class: classes || null, ...more }, plain ? item ?? "–" : item.value);
  };
  return h("div", { class: "scroll", id: slug("box", caption), tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: `figures ${kind}` },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((name, place) => cell("th", name, place, { scope: "col" })))),
      h("tbody", {}, rows.map((row) => row instanceof Node ? row
        : h("tr", {}, row.map((item, place) => cell(place ? "td" : "th", item, place, place ? {} : { scope: "row" })))))));
}
