// The tab of TensorBoard: a list of runs to choose from, and the page of the one that was chosen; a second
// list of runs to compare it with, and above that page the comparison.

import { show as showComparison } from "./compare.js";
import { el } from "./dom.js";
import { show } from "./page.js";
import { Source } from "./source.js";

const LOOK_AGAIN_MS = 5000;

// Called by TensorBoard's frame; the server is packages/trainobs-tensorboard.
export async function render(root) {
  for (const name of ["vendor/uPlot.min.css", "page.css"]) {
    document.head.append(el("link", { rel: "stylesheet", href: new URL(name, import.meta.url) }));
  }
  const choice = el("select", { id: "run" });
  const other = el("select", { id: "with" });
  const [compared, place] = [el("div", { class: "trainobs", id: "compared" }), el("div", { class: "trainobs" })];
  root.replaceChildren(el("nav", {}, el("label", { for: "run" }, "Run "), choice, el("label", { for: "with" }, " compare with "), other), compared, place);
  let end = () => {};
  let endComparison = () => {};
  other.onchange = () => {
    endComparison();
    const query = { run: choice.value, with: other.value, path: "compare" };
    endComparison = other.value ? showComparison(compared, new Source(() => ask("data", query)), { refresh: true }) : () => {};
  };
  choice.onchange = async () => {
    end();
    const run = choice.value;
    for (const one of other.options) one.disabled = one.value === run;
    if (other.value === run) other.value = "";
    other.onchange();
    end = await show(place, new Source((path) => ask("data", { run, path })), { refresh: true });
  };
  const list = async () => {
    const { runs } = await ask("runs", {});
    if (!runs.length) {
      place.textContent = "There is no run log of trainobs in the log directory yet.";
      setTimeout(list, LOOK_AGAIN_MS);
      return;
    }
    const options = () => runs.map(({ run, name }) => el("option", { value: run }, name));
    choice.replaceChildren(...options());
    other.replaceChildren(el("option", { value: "" }, "none"), ...options());
    await choice.onchange();
  };
  await list();
}

async function ask(what, query) {
  const answer = await fetch(new URL(`../${what}?${new URLSearchParams(query)}`, import.meta.url));
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
