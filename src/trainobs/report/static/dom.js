// Elements. Text is always set as text: names come from files, and may hold anything.

// Control characters, changes of direction and lone surrogates, shown as escapes.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

export function shown(text) {
  return String(text).replace(UNSEEN, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
}

// An element with attributes and children; strings become text.
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(child instanceof Node ? child : shown(child));
  }
  return made;
}

// A table with a caption; the first cell of each row is its header.
export function table(caption, head, rows) {
  const header = el("tr", {}, head.map((text) => (text ? el("th", { scope: "col" }, text) : el("td"))));
  const body = rows.slice(0, FIRST_ROWS).map(([first, ...rest]) =>
    el("tr", {}, el("th", { scope: "row", class: classOf(first) }, first), rest.map((cell) => el("td", { class: classOf(cell) }, cell ?? "–"))));
  return el("div", { class: "scroll" },
    el("table", {}, el("caption", {}, caption), el("thead", {}, header), el("tbody", {}, body)),
    rows.length > FIRST_ROWS ? others(caption, head, rows.slice(FIRST_ROWS)) : null);
}

// A number and its unit stay on one line. Words are whole but for names, which may be longer than a screen.
const HAS_UNIT = /^\S*\d\S* \S{1,3}$/;
const LONG = /\S{21}/;

function classOf(cell) {
  const text = cell?.textContent ?? String(cell ?? "");
  return HAS_UNIT.test(text) || text.length < 9 ? "whole" : LONG.test(text) ? "long" : null;
}

// A browser takes seconds to lay out the 20,000 checkpoints of a long run.
export const FIRST_ROWS = 200;

// The rows after the first, made when somebody asks for them.
function others(caption, head, rows) {
  const place = el("details", {}, el("summary", {}, `${rows.length} more rows`));
  place.addEventListener("toggle", () => {
    if (!place.open || place.childElementCount > 1) return;
    for (let at = 0; at < rows.length; at += FIRST_ROWS) place.append(table(`${caption}: continued`, head, rows.slice(at, at + FIRST_ROWS)));
  });
  return place;
}

// A section with its heading; `id` is what the page's list of contents leads to.
export function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), ...children);
}

// Puts children into a place. What was open there, or had the focus, is so again.
export function put(place, ...children) {
  const isOpen = new Set([...place.querySelectorAll("details[open]")].map(nameOf));
  const active = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  place.replaceChildren(...children);
  for (const one of place.querySelectorAll("details")) one.open = isOpen.has(nameOf(one));
  if (document.activeElement !== document.body || active === null) return;
  [...place.querySelectorAll("summary, [tabindex]")].find((one) => nameOf(one) === active)?.focus({ preventScroll: true });
}

// By what an element is known after it was drawn again with other numbers.
function nameOf(element) {
  const summary = element.closest("details")?.firstElementChild.textContent.replace(/\d+/g, "");
  return [element.tagName, element.closest("section")?.id, element.closest("figure")?.getAttribute("aria-label"), summary].join("\n");
}

// A line that says what is pointed at, and a function that sets it. What a key points at is read aloud; what a
// mouse does is not, or there would be no end of it.
export function readout(text = "") {
  const line = el("p", { class: "readout", "aria-live": "polite" }, text);
  const say = (now, byKey = false) => {
    line.setAttribute("aria-live", byKey ? "polite" : "off");
    line.textContent = shown(now);
  };
  return [line, say];
}

// What a canvas is drawn with, light or dark.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A canvas as sharp as the screen; returns its context, in CSS pixels.
export function prepare(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
