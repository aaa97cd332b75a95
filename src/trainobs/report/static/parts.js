// What a step is made of: names and colours. The colours are Paul Tol's muted and light schemes,
// which people who are colour-blind tell apart (https://sronpersonalpages.nl/~pault/).
// Waiting is warm, computing is blue, what comes now and then is green.

export const STEP = "step/duration_ns";
export const WAIT = "loader/wait_ns";

const HANDED = "loader/handover_ns";
const STARTING = "loader/start_stop_ns"; // as a metric a part of HANDED; here beside it, so that all add up
const OFF_CPU = "sched/wait_offcpu_ns";
const TAKING = "loader/taking_ns"; // no metric: what taking any batch over costs the training thread

// What the loader was waited for.
export const CAUSES = [
  ["loader/device_ns", "#882255"],
  ["loader/cpu_wait_ns", "#cc6677"],
  ["loader/compute_ns", "#ddcc77"],
  ["loader/sleep_ns", "#aa4499"],
  [HANDED, "#ee8866"],
  [STARTING, "#ffaabb"],
];

const PARTS = [
  ...CAUSES,
  [WAIT, "#e69f00"],
  [TAKING, "#eedd88"],
  ["phase/transfer_ns", "#999933"],
  ["phase/forward_ns", "#88ccee"],
  ["phase/backward_ns", "#4477aa"],
  ["phase/optimizer_ns", "#332288"],
  ["phase/checkpoint_ns", "#117733"],
  ["phase/validation_ns", "#44aa99"],
  ["phase/logging_ns", "#bbcc33"],
];
const REST = ["phase/other_ns", "#bbbbbb"];
const UNMEASURED = "#e8e8e8";
const OWN_COLOURS = ["#aaaa00", "#99ddff", "#b997c7", "#77aadd", "#44bb99"];

// The parts of some windows that are not zero, each {name, label, colour, values}; they add up to
// the step, what was not measured included. Phases with names of one's own come after the known ones.
export function partsOf(measured, { parts, metrics, taking }) {
  const columns = withStartingApart(measured);
  const known = new Set([...PARTS, REST].map(([name]) => name));
  const own = parts.filter((name) => !known.has(name)).map((name, i) => [name, OWN_COLOURS[i % OWN_COLOURS.length]]);
  const split = splitWait(columns, taking);
  const waits = new Set(CAUSES.map(([name]) => name));
  const labelOf = (name) => (name === TAKING ? taking.label : `${waits.has(name) ? "waiting: " : ""}${metrics[name].label}`);
  const found = [...PARTS, ...own, REST].map(([name, colour]) => {
    const values = split[name] ?? columns[name];
    return values && { name, label: labelOf(name), colour, values };
  });
  const shown = found.filter((part) => part && part.values.some((value) => value > 0));
  const rest = (columns[STEP] ?? []).map((step, i) =>
    step === null ? null : Math.max(0, step - shown.reduce((sum, part) => sum + (part.values[i] ?? 0), 0)));
  const unmeasured = { name: "", label: "in no part that was measured", colour: UNMEASURED, values: rest };
  return total(rest) > 0.005 * total(columns[STEP]) ? [...shown, unmeasured] : shown;
}

function withStartingApart(columns) {
  const [handed, starting] = [columns[HANDED], columns[STARTING]];
  if (!handed || !starting) return columns;
  return { ...columns, [HANDED]: handed.map((ns, i) => (ns === null ? null : Math.max(0, ns - (starting[i] ?? 0)))) };
}

// The wait for data without what its causes explain and without the taking over of batches, which is what of the
// wait the training thread computed, and at most what the verdict allows (verdict/parts.py).
function splitWait(columns, allowed) {
  const wait = columns[WAIT];
  if (!wait) return {};
  const causes = CAUSES.map(([name]) => columns[name]).filter(Boolean);
  const unexplained = wait.map((ns, i) => ns === null ? null : Math.max(0, ns - causes.reduce((sum, cause) => sum + (cause[i] ?? 0), 0)));
  const rest = total(unexplained) < 0.002 * total(wait) ? [] : unexplained; // rounding
  if (!allowed || !columns[OFF_CPU]) return { [WAIT]: rest };
  const whole = columns[HANDED] ?? rest;
  const taken = whole.map((ns, i) => {
    const off = columns[OFF_CPU][i];
    if (ns === null || off === null) return null;
    return Math.min(ns, allowed.ns, allowed.share * (columns[STEP][i] ?? 0), Math.max(0, wait[i] - off));
  });
  const left = whole.map((ns, i) => (ns === null ? null : ns - (taken[i] ?? 0)));
  return { [WAIT]: rest, [columns[HANDED] ? HANDED : WAIT]: left, [TAKING]: taken };
}

// The colour of each part by its metric; what is waited for without a cause has that of the wait.
export function coloursOf(names) {
  const known = new Map([...PARTS, REST].map(([name, colour]) => [name, colour]));
  const own = names.filter((name) => name.startsWith("phase/") && !known.has(name));
  return new Map(names.map((name) => [name, known.get(name)
    ?? (name.startsWith("loader/") ? known.get(WAIT) : OWN_COLOURS[own.indexOf(name) % OWN_COLOURS.length] ?? UNMEASURED)]));
}

export function total(values) {
  return (values ?? []).reduce((sum, value) => sum + (value ?? 0), 0);
}

// The mean of what is known; `weights` are steps in each window.
export function mean(values, weights) {
  let [sum, count] = [0, 0];
  (values ?? []).forEach((value, i) => {
    if (value === null) return;
    const weight = weights?.[i] ?? 1;
    sum += weight * value;
    count += weight;
  });
  return count ? sum / count : null;
}
