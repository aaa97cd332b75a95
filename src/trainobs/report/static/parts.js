// What a step is made of: names and colours. The colours are Paul Tol's muted and light schemes,
// which people who are colour-blind tell apart (https://sronpersonalpages.nl/~pault/).
// Waiting is warm, computing is blue, what comes now and then is green.

export const STEP = "step/duration_ns";
export const WAIT = "loader/wait_ns";

export const CAUSES = [
  ["loader/device_ns", "waiting: loader reads from storage", "#882255"],
  ["loader/cpu_wait_ns", "waiting: loader has no CPU", "#cc6677"],
  ["loader/compute_ns", "waiting: loader computes", "#ddcc77"],
  ["loader/sleep_ns", "waiting: loader asleep, cause unknown", "#aa4499"],
  ["loader/handover_ns", "waiting: batches on their way", "#ee8866"],
];

const PARTS = [
  ...CAUSES,
  [WAIT, "waiting for data", "#e69f00"],
  ["phase/transfer_ns", "moving the batch", "#999933"],
  ["phase/forward_ns", "forward", "#88ccee"],
  ["phase/backward_ns", "backward", "#4477aa"],
  ["phase/optimizer_ns", "optimizer", "#332288"],
  ["phase/checkpoint_ns", "checkpoint", "#117733"],
  ["phase/validation_ns", "validation", "#44aa99"],
  ["phase/logging_ns", "logging", "#bbcc33"],
];
const REST = ["phase/other_ns", "everything else", "#bbbbbb"];
const UNMEASURED = "#e8e8e8";
const OWN_COLOURS = ["#aaaa00", "#99ddff", "#ffaabb", "#77aadd", "#44bb99", "#eedd88"];

// The parts of some windows that are not zero, each {name, label, colour, values}; they add up to
// the step, what was not measured included. Phases with names of one's own come after the known ones.
export function partsOf(columns, names) {
  const known = new Set([...PARTS, REST].map(([name]) => name));
  const own = names.filter((name) => !known.has(name)).map((name, i) =>
    [name, name.replace(/^phase\/|_ns$/g, ""), OWN_COLOURS[i % OWN_COLOURS.length]]);
  const causes = CAUSES.map(([name]) => columns[name]).filter(Boolean);
  const found = [...PARTS, ...own, REST].map(([name, label, colour]) => {
    let values = columns[name];
    if (name === WAIT && values) { // what no cause explains
      values = values.map((wait, i) => wait === null ? null
        : Math.max(0, wait - causes.reduce((sum, cause) => sum + (cause[i] ?? 0), 0)));
      if (total(values) < 0.002 * total(columns[WAIT])) return null; // rounding
    }
    return values && { name, label, colour, values };
  });
  const shown = found.filter((part) => part && part.values.some((value) => value > 0));
  const rest = (columns[STEP] ?? []).map((step, i) =>
    step === null ? null : Math.max(0, step - shown.reduce((sum, part) => sum + (part.values[i] ?? 0), 0)));
  const unmeasured = { name: "", label: "in no part that was measured", colour: UNMEASURED, values: rest };
  return total(rest) > 0.005 * total(columns[STEP]) ? [...shown, unmeasured] : shown;
}

// The colour of each part by its metric; what is waited for without a cause has that of the wait.
export function coloursOf(names) {
  const known = new Map([...PARTS, REST].map(([name, , colour]) => [name, colour]));
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
