// The tab of TensorBoard: a list of runs to choose from, and the page of the one that was chosen.

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
  const place = el("div", { class: "trainobs" });
  root.replaceChildren(el("nav", {}, el("label", { for: "run" }, "Run "), choice), place);
  let end = () => {};
  choice.onchange = async () => {
    end();
    const run = choice.value;
    end = await show(place, new Source((path) => ask("data", { run, path })), { refresh: true });
  };
  const list = async () => {
    const { runs } = await ask("runs", {});
    if (!runs.length) {
      place.textContent = "There is no run log of trainobs in the log directory yet.";
      setTimeout(list, LOOK_AGAIN_MS);
      return;
    }
    choice.replaceChildren(...runs.map(({ run, name }) => el("option", { value: run }, name)));
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
