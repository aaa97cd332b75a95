// Numbers as people read them; the same rules as core/text.py.

const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]];
const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
const COUNTS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

// What is half-way rounds up, as in core/text.py, whose numbers have 64 bits, not 32.
const rounded = (value) => Number(value.toPrecision(6));
const near = (value) => rounded(value) * (1 + 1e-9);

function digits(exact) {
  if (Number.isInteger(rounded(exact)) && rounded(exact) < 1000) return String(rounded(exact));
  const value = near(exact);
  if (value > 0 && value < 0.005) return "<0.01"; // no zero: something was there
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

function scaled(value, units, base) {
  const [factor, unit] = units.find(([f]) => value >= 0.9995 * f) ?? [1, base];
  return `${digits(value / factor)} ${unit}`.trim();
}

export function duration(ns) {
  const seconds = Math.round(ns / 1e9);
  if (seconds <= 120) return scaled(ns, TIMES, "ns");
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const size = (count) => scaled(count, BYTES, "B");
export const quantity = (count) => scaled(count, COUNTS, "");

// A count of things with their name, as in "1 step" and "2,000 steps".
export const counted = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;

export function percent(share) {
  const value = near(100 * share);
  if (value > 0 && value < 0.01) return "<0.01 %";
  if (value >= 99.5 && share < 1 - 1e-6) return value < 99.95 ? `${value.toFixed(1)} %` : ">99.9 %";
  return `${share > 0 && share < 0.1 ? Number(value.toPrecision(2)) : value.toFixed(0)} %`;
}

export const times = (factor) => near(factor).toFixed(factor < 2 ? 2 : 1);

// A predicted speed-up, from the least to the most; null: nobody knows the most.
export function gained(low, high) {
  if (high === null) return `at least ${times(low)} times as fast`;
  return `${times(low) === times(high) ? times(low) : `${times(low)} to ${times(high)}`} times as fast`;
}

// A value in the unit of its metric.
export function inUnit(value, unit) {
  if (value === null || value === undefined) return "unknown";
  if (unit === "ns") return duration(value);
  if (unit === "bytes") return size(value);
  if (unit === "ratio") return percent(value);
  if (unit === "MHz") return `${value.toFixed(0)} MHz`;
  return `${quantity(value)} ${unit}`;
}

// The unit in which an axis up to `most` is labelled, and what a value is divided by for it.
export function axisUnit(most, unit) {
  const units = { ns: [TIMES, "ns"], bytes: [BYTES, "B"] }[unit];
  if (unit === "ratio") return { factor: 0.01, name: "%" };
  if (!units) return { factor: 1, name: unit };
  const [factor, name] = units[0].find(([f]) => most >= f) ?? [1, units[1]];
  return { factor, name };
}

// Distances between ticks of an axis of whole numbers.
export const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
