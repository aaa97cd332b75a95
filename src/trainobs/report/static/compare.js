// Two sides of runs beside each other: which is faster, where its steps went, and under which conditions.
// The numbers and sentences are those of `trainobs compare` (report/comparison.py).

import { el, put, section, table } from "./dom.js";
import { Following } from "./follow.js";
import { counted, duration, gained, inUnit, quantity } from "./format.js";
import { coloursOf } from "./parts.js";

export { Source } from "./source.js";

const CAME = { faster: "B takes less", slower: "B takes more", none: "within noise", unknown: "unknown" };

// `source` is a Source with the piece "compare"; `refresh` asks again while a run goes on. Returns a function that ends it.
export function show(root, source, { refresh = false } = {}) {
  let [found, before] = [null, ""];
  const look = async (following) => {
    const goesOn = !found || Object.values(found.runs).flat().some((run) => run.outcome === null);
    if (!goesOn && !following.failed) return;
    source.forget();
    found = await source.get("compare");
    const now = JSON.stringify(found);
    if (following.ended || (now === before && !following.failed)) return;
    before = now;
    put(root, el("header", {}, el("h1", {}, "Comparison of runs")), el(root === document.body ? "main" : "div", {}, sections(found)));
  };
  const following = new Following(root, look, refresh);
  return () => following.end();
}

function sections(found) {
  return [answer(found), step(found), conditions(found), settings(found), runs(found)].filter(Boolean);
}

function answer({ text, answer, notes, runs: { A, B } }) {
  return section("compare", "Which is faster",
    el("p", { class: `kind ${answer}` }, text.answer),
    el("p", { class: "muted" }, `A is ${named(A)}; B is ${named(B)}.`),
    text.alone ? el("p", { class: "muted" }, text.alone) : null,
    notes.map((note) => el("p", { class: "advice" }, note)));
}

const named = ([first, ...more]) => (more.length ? `${first.run} and ${more.length} more` : first.run);

// The mean step of each side as a bar, both on one scale, and all numbers as a table.
function step(found) {
  const most = Math.max(...found.step_ns);
  const inBars = leaves(found.parts);
  const colours = coloursOf(inBars.map(({ name }) => name));
  const bars = ["A", "B"].map((side, i) => el("figure", {},
    el("figcaption", {}, el("b", {}, side), ` ${duration(found.step_ns[i])} a step`),
    el("div", { class: "bar", role: "img", style: `width:${(100 * found.step_ns[i]) / most}%`,
                "aria-label": `A mean step of ${side}: the table below has the numbers` },
      inBars.filter(({ ns }) => ns[i] > 0).map(({ name, label, ns }) => el("span", {
        style: `width:${(100 * ns[i]) / found.step_ns[i]}%;background:${colours.get(name)}`, title: `${label} ${duration(ns[i])}` })))));
  const [low, high] = found.gain_interval ?? [];
  const per = found.per === "step" ? "" : `, per ${found.per}`; // B may take longer for a step that does more
  const whole = ["the whole step", ...both(found.step_ns),
    low === undefined ? "unknown" : `${gained(low, high)}${per}`, `${CAME[found.answer]}${low === undefined ? "" : per}`];
  return section("compare-step", "Where a step of each went", el("div", { class: "sides" }, bars),
    table("Mean time of a step, without the first of each run", ["part", "A", "B", "B − A", "at 95 % between", ""], [...rows(found.parts, colours), whole]));
}

const leaves = (parts) => parts.flatMap((part) => (part.parts.length ? leaves(part.parts) : part));

// Parts, each followed by those that it consists of; none that took no time on either side.
function rows(parts, colours, depth = 0) {
  return parts.filter(({ ns }) => ns.some((value) => value !== 0)).flatMap((part) => {
    const swatch = part.parts.length ? null : el("i", { style: `background:${colours.get(part.name)}` });
    const label = el("span", { style: `padding-left:${1.5 * depth}em` }, swatch, part.label);
    const interval = part.interval_ns;
    const cell = interval ? `${signed(interval[0])} to ${signed(interval[1])}` : "unknown";
    return [[label, ...both(part.ns), cell, came(part)], ...rows(part.parts, colours, depth + 1)];
  });
}

function came({ interval_ns: interval, claim, difference_ns: difference }) {
  if (!interval) return CAME.unknown;
  if (!claim) return el("span", { class: "muted" }, CAME.none);
  return difference < 0 ? CAME.faster : CAME.slower;
}

const both = ([a, b]) => [duration(a), duration(b), signed(b - a)];

const signed = (ns) => (ns < 0 ? `−${duration(-ns)}` : `+${duration(ns)}`);

function conditions({ conditions: found }) {
  if (!found.length) return null;
  return section("compare-conditions", "Under which conditions", table("Means of a step, over the runs of each side", ["", "A", "B"],
    found.map(({ label, unit, values }) => [label, ...values.map((value) => inUnit(value, unit))])));
}

function settings({ changes, text }) {
  const rows = Object.entries(changes).map(([name, values]) => [name, ...values.map((value) =>
    (value === null ? null : typeof value === "object" ? JSON.stringify(value) : String(value)))]);
  return section("compare-settings", "Which settings differ",
    rows.length ? table(counted(rows.length, "setting"), ["", "A", "B"], rows) : el("p", {}, "None that is known."),
    el("p", { class: "sentence" }, text.predicted));
}

function runs({ runs: found }) {
  const rows = Object.entries(found).flatMap(([side, own]) => own.map((run) => [side, run.run, quantity(run.steps), duration(run.step_ns),
    `${run.rank} of ${run.ranks}`, `by ${run.observed_by}`, run.outcome ?? "killed, or still running"]));
  return section("compare-runs", "The runs", table(counted(rows.length, "run"),
    ["", "run", "steps after the first", "mean step", "rank", "observed", "ended"], rows));
}
