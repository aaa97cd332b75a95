// The answer first: the verdict, what would help, and where a step goes.

import { el, section, table } from "./dom.js";
import { counted, duration, gained, inUnit, percent, quantity } from "./format.js";
import { STEP, mean, partsOf } from "./parts.js";

const LEAST = 0.001; // share of the step below which evidence says nothing

export function verdictSection({ verdict: { run, epochs }, would_help: help, said }) {
  const others = Object.entries(epochs);
  const muted = (text) => (text ? el("p", { class: "muted" }, text) : null);
  return section("verdict", "Verdict",
    [said.lost, said.killed].filter(Boolean).map((text) => el("p", { class: "advice" }, text)),
    el("p", { class: "kind" }, run.text[0]),
    muted(said.meaning && [said.meaning, ...run.notes.map((note) => ` Note: ${note}.`)].join("")),
    run.advice ? el("p", { class: "advice" }, el("b", {}, "Advice: "), run.text.at(-1).replace(/^advice: /, "")) : null,
    helpTable(help) ?? muted(said.unknown),
    muted(said.workers),
    others.length > 1 ? el("details", {}, el("summary", {}, `Verdicts on ${others.length} epochs`),
      el("ul", {}, others.map(([epoch, one]) => el("li", {}, `epoch ${epoch}: ${one.text[0]}`)))) : null);
}

// In place of steps, where there are none.
export function noSteps({ info, outcome }, summary) {
  const spells = info.settings?.attached?.periods;
  if (!spells?.length) return el("p", { class: "sentence" }, summary?.no_steps ?? `No step was recorded${outcome ? "" : " yet"}.`);
  const rows = spells.map(({ begin_ns, end_ns, period_ns, low_ns, high_ns }) => [duration(begin_ns - spells[0].begin_ns), duration(end_ns - begin_ns),
    quantity(1e9 / period_ns), duration(period_ns), low_ns === null ? null : `${duration(low_ns)} to ${duration(high_ns)}`]);
  return section("periods", "Period",
    el("p", { class: "sentence" }, "No function of torch was found in the process, so that nobody knows its steps."),
    table("Estimated from the periodicity of its system calls", ["began after", "lasted", "a second", "period", "95 % interval"], rows));
}

// The numbers that the verdict was made from.
export function evidence({ verdict: { run } }, { metrics }) {
  const told = run.evidence.filter(({ share }) => share === null || share >= LEAST);
  const shown = new Map(); // metric -> how deep it stands below what it is a part of
  for (const { metric } of told) shown.set(metric, 1 + (shown.get(metrics[metric]?.within) ?? -1));
  const labelOf = (name) => (shown.get(name) ? "\u2003".repeat(shown.get(name)) + metrics[name].label : metrics[name]?.alone ?? name);
  const rows = told.map((row) => [labelOf(row.metric),
    inUnit(row.value, row.unit), row.share === null ? null : percent(row.share)]);
  return rows.length ? table("What the verdict rests on", ["", "a step", "share of the step"], rows) : null;
}

// How steps differ, in words.
const ENOUGH = 20; // steps from which on 95 % of them are a matter

export function spread(step) {
  if (!(step?.steps > 1)) return "";
  const most = step.steps >= ENOUGH ? `95 % take less than ${duration(step.p95_ns)}; ` : "";
  const first = step.first_is_long ? ` The first took ${duration(step.first_ns)}, ${percent(step.first_share)} of the time of all steps.` : "";
  const last = step.failed_ns ? ` The last, up to the exception, took ${duration(step.failed_ns)}, ${percent(step.failed_share)} of the time of all.` : "";
  return `Of ${counted(step.steps, "step")}${step.first_is_out ? " after the first" : ""}, ${most}the slowest took ${duration(step.max_ns)}.${first}${last}`;
}

// Changes with the gains that a replay predicts; null where there are none.
function helpTable({ changes }) {
  if (!changes.length) return null;
  const best = Math.max(...changes.map((one) => one.gain[1]));
  const bar = (low, high) => {
    const em = (gain) => `${(8 * (gain - 1)) / Math.max(best - 1, 0.01)}em`;
    return el("span", { class: "gain", style: `width:${em(high)}` }, el("span", { style: `width:${em(low)}` }));
  };
  const rows = changes.map(({ change, means, gain: [low, high] }) =>
    [el("span", { class: "whole" }, change), means, gained(low, high), bar(low, high)]);
  return table("What would help, predicted by a replay; bars from the least to the most gain", ["change", "what it means", "gain", ""], rows);
}

// The mean step of the windows of `data`: a bar, and a table.
export function stepBar(data, head, title) {
  const means = Object.fromEntries(Object.entries(data.columns).map(([name, values]) => [name, [mean(values, data.weights)]]));
  const [step] = means[STEP] ?? [null];
  if (step === null) return [el("p", { class: "muted" }, "The time of these steps is not known."), null];
  const shares = partsOf(means, head).map((part) => ({ ...part, ns: part.values[0], share: part.values[0] / step }));
  const bar = el("div", { class: "bar", role: "img", "aria-label": `${title}: the table below has the numbers` },
    shares.map(({ colour, share, label }) => el("span", { style: `width:${100 * share}%;background:${colour}`, title: `${label} ${percent(share)}` },
      el("em", {}, percent(share), el("span", { style: `--needs:calc(${label.length + 7}ch + 18px)` }, ` ${label}`)))));
  const rows = [...shares].sort((a, b) => b.share - a.share).map((part) => [
    el("span", {}, el("i", { style: `background:${part.colour}` }), part.label), duration(part.ns), percent(part.share)]);
  return [bar, table(`${title}: ${duration(step)}`, ["part", "time", "share"], rows)];
}
