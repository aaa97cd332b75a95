// The tab of TensorBoard: a list of runs to choose from, and the page of the one that was chosen; a second
// list of runs to compare it with, and above that page the comparison.

import { show as showComparison } from "./compare.js";
import { el, put } from "./dom.js";
import { Following } from "./follow.js";
import { show } from "./page.js";
import { Source } from "./source.js";

// Called by TensorBoard's frame; the server is packages/trainobs-tensorboard.
export function render(root) {
  for (const name of ["vendor/uPlot.min.css", "page.css"]) {
    document.head.append(el("link", { rel: "stylesheet", href: new URL(name, import.meta.url) }));
  }
  const choice = el("select", { id: "run" });
  const other = el("select", { id: "with" });
  const note = el("p", { class: "muted" });
  const [compared, place] = [el("div", { class: "trainobs", id: "compared" }), el("div", { class: "trainobs", id: "shown" })];
  const nav = el("nav", {}, el("label", { for: "run" }, "Run"), choice, el("label", { for: "with" }, "compare with"), other, note);
  root.replaceChildren(nav, compared, place);
  let [end, endComparison] = [() => {}, () => {}];
  other.onchange = () => {
    endComparison();
    const query = { run: choice.value, with: other.value, path: "compare" };
    endComparison = other.value ? showComparison(compared, new Source(() => ask("data", query)), { refresh: true }) : () => {};
  };
  choice.onchange = () => {
    end();
    const run = choice.value;
    if (other.value === run) other.value = "";
    for (const one of other.options) one.disabled = one.value === run;
    other.onchange();
    end = show(place, new Source((path) => ask("data", { run, path })), { refresh: true });
  };
  const names = new Map(); // also of a run that is chosen, and no longer there
  let before = "";
  const list = async () => {
    const { runs, complete } = await ask("runs", {});
    put(note, !runs.length ? "There is no run log of trainobs in the log directory yet. Links that lead out of it are not followed."
      : complete ? "" : "There may be more runs: the log directory is too large to be searched. Start TensorBoard with one nearer to them.");
    for (const { run, name } of runs) names.set(run, name);
    const chosen = [choice.value, other.value];
    const shown = [...new Set([...runs.map(({ run }) => run), ...chosen.filter(Boolean)])];
    if (shown.join() === before) return;
    before = shown.join();
    const options = () => shown.map((run) => el("option", { value: run }, names.get(run)));
    choice.replaceChildren(...options());
    other.replaceChildren(el("option", { value: "" }, "none"), ...options());
    [choice.value, other.value] = [chosen[0] || shown[0], chosen[1]];
    if (!chosen[0]) choice.onchange();
    else for (const one of other.options) one.disabled = one.value === choice.value;
  };
  new Following(nav, list, true);
}

async function ask(what, query) {
  let [answer, found] = [];
  try {
    answer = await fetch(new URL(`../${what}?${new URLSearchParams(query)}`, import.meta.url));
    found = await answer.json();
  } catch (error) {
    throw new Error(`TensorBoard does not answer.\n  found: ${error.message}\n  do:    see that it still runs; it is asked again every few seconds`);
  }
  if (!answer.ok) throw new Error(found.error);
  return found;
}
