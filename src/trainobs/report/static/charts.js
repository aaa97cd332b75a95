// The charts of a group of columns: one for each title and unit, with a line for each column.

import uPlot from "./vendor/uPlot.esm.js";
import { colour, el, readout, table } from "./dom.js";
import { axisUnit, inUnit, WHOLE } from "./format.js";
import { mean } from "./parts.js";
import { rowAt, windowOf } from "./source.js";

// Paul Tol's bright scheme; lines differ in their dashes, too.
const LINES = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [], [6, 3]];
const HEIGHT = 150;

// Of the columns of `data` (see Source.rows) that are known and not all zero: {figure, drawn}, of which `drawn` is to
// be destroyed. `cursor.row` is where the keyboard is, in this chart and the others.
export function charts(data, metrics, names, width, cursor) {
  const byTitle = new Map();
  for (const name of names) {
    const about = metrics[name];
    if (!(data.columns[name] ?? []).some((value) => value)) continue;
    const key = `${about.chart} ${about.unit}`;
    byTitle.set(key, [...(byTitle.get(key) ?? []), name]);
  }
  return [...byTitle.values()].map((own) => chart(data, metrics, own, width, cursor));
}

// Values that are known; of a single one a chart is an empty frame with a dot.
const knownOf = (values) => values.filter((value) => value !== null).length;

// Indices of the points that are drawn: all where there are few; else those without a neighbour, which no line shows.
function pointsOf({ data: [steps, ...columns] }, line) {
  const values = columns[line - 1];
  const known = [...steps.keys()].filter((i) => (values[i] ?? null) !== null);
  return steps.length < 60 ? known : known.filter((i) => (values[i - 1] ?? values[i + 1] ?? null) === null);
}

function chart(data, metrics, names, width, cursor) {
  const { chart: title, unit, kind } = metrics[names[0]];
  const most = Math.max(...names.flatMap((name) => data.columns[name].map((value) => value ?? 0)));
  const { factor, name: axisName } = axisUnit(most, unit);
  const labels = names.length > 1 ? names.map((name) => metrics[name].alone) : [title];
  const per = kind === "sum" ? " a step" : "";
  const isLine = names.some((name) => knownOf(data.columns[name]) > 1);
  const plot = el("div");
  const [line, tell] = readout();
  const lines = names.map((_, k) => ({ stroke: LINES[k % LINES.length],
    dash: DASHES[k % DASHES.length], width: 1.5, points: { show: true, size: 5, filter: pointsOf } }));
  const stroke = { stroke: colour("ink"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } };
  const drawn = isLine ? new uPlot({ width, height: HEIGHT, series: [{}, ...lines], legend: { show: false },
    scales: { x: { time: false }, y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [{ ...stroke, incrs: WHOLE, size: 28 }, { ...stroke, size: 56 }], cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [({ cursor: { idx } }) => { if (idx !== null && idx !== undefined) say(idx); }] },
  }, [data.step, ...names.map((name) => data.columns[name].map((value) => value === null ? null : value / factor))], plot) : null;
  const say = (i, byKey) => {
    cursor.row = data.row[i];
    tell(`${windowOf(data, i)}: ` + names.map((name, k) =>
      `${labels[k]} ${inUnit(data.columns[name][i], unit)}`).join(", "), byKey);
  };
  const means = Object.fromEntries(names.map((name) => [name, inUnit(mean(data.columns[name], data.weights), unit)]));
  const ofWhat = kind === "sum" ? "mean of a step" : data.every > 1 ? "mean of its steps" : "mean";
  const said = (name, k) => {
    const at = data.columns[name].findIndex((value) => value !== null);
    const what = isLine ? ofWhat : at < 0 ? "" : data.every > 1 || data.row.length === 1 ? windowOf(data, at) : `known of ${windowOf(data, at)} alone`;
    return names.length > 1 ? `${labels[k]}${isLine || !what ? "" : `, ${what}`}` : what;
  };
  const figure = el("figure", { tabindex: 0, class: "small", role: "group", "aria-label": `${title}, ${axisName}${per}` },
    el("figcaption", {}, el("b", {}, title), ` ${axisName}${per}`), plot,
    el("ul", { class: "legend" }, names.map((name, k) => el("li", { title: metrics[name].tells },
      isLine ? el("i", { style: `background:${LINES[k % LINES.length]}` }) : null,
      `${said(name, k)}: ${means[name]}`))),
    line, el("details", {}, el("summary", {}, "What these are"),
      table(`${title}, ${ofWhat}`, ["metric", ofWhat, "what it tells"],
        names.map((name) => [metrics[name].alone, means[name], metrics[name].tells]))));
  figure.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const to = Math.min(data.row.length - 1, Math.max(0, rowAt(data, cursor) + step));
    drawn?.setCursor({ left: drawn.valToPos(data.step[to], "x"), top: HEIGHT / 3 }, false);
    say(to, true);
    event.preventDefault();
  };
  return { figure, drawn };
}
