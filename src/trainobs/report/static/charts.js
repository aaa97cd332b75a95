// The charts of a group of columns: one for each title and unit, with a line for each column.

import uPlot from "./vendor/uPlot.esm.js";
import { colour, el, table } from "./dom.js";
import { axisUnit, inUnit, WHOLE } from "./format.js";
import { mean } from "./parts.js";

// Paul Tol's bright scheme; lines differ in their dashes, too.
const LINES = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [], [6, 3]];
const HEIGHT = 150;

// Figures of the columns of `data` (see Source.rows) that are known and not all zero.
export function charts(data, metrics, names, width) {
  const byTitle = new Map();
  for (const name of names) {
    const about = metrics[name];
    if (!(data.columns[name] ?? []).some((value) => value)) continue;
    const key = `${about.chart} ${about.unit}`;
    byTitle.set(key, [...(byTitle.get(key) ?? []), name]);
  }
  return [...byTitle.values()].map((own) => chart(data, metrics, own, width));
}

function chart(data, metrics, names, width) {
  const { chart: title, unit, kind } = metrics[names[0]];
  const most = Math.max(...names.flatMap((name) => data.columns[name].map((value) => value ?? 0)));
  const { factor, name: axisName } = axisUnit(most, unit);
  const per = kind === "sum" ? " a step" : "";
  const plot = el("div");
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const lines = names.map((name, k) => ({ label: metrics[name].label, stroke: LINES[k % LINES.length],
    dash: DASHES[k % DASHES.length], width: 1.5, points: { show: data.row.length < 60, size: 4 } }));
  const stroke = { stroke: colour("ink"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } };
  const drawn = new uPlot({ width, height: HEIGHT, series: [{}, ...lines], legend: { show: false },
    scales: { x: { time: false }, y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [{ ...stroke, incrs: WHOLE, size: 28 }, { ...stroke, size: 56 }], cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [({ cursor: { idx } }) => { if (idx !== null && idx !== undefined) say(idx); }] },
  }, [data.step, ...names.map((name) => data.columns[name].map((value) => value === null ? null : value / factor))], plot);
  let at = 0;
  const say = (i) => {
    at = i;
    readout.textContent = `step ${data.step[i]}: ` + names.map((name) =>
      `${metrics[name].label} ${inUnit(data.columns[name][i], unit)}`).join(", ");
  };
  const means = kind === "sum" ? "mean of a step" : data.every > 1 ? "mean of its steps" : "mean";
  const figure = el("figure", { tabindex: 0, class: "small", role: "group", "aria-label": `${title}, ${axisName}${per}` },
    el("figcaption", {}, el("b", {}, title), ` ${axisName}${per}`), plot,
    el("ul", { class: "legend" }, names.map((name, k) => el("li", { title: metrics[name].tells },
      el("i", { style: `background:${LINES[k % LINES.length]}` }),
      `${metrics[name].label}: ${inUnit(mean(data.columns[name]), unit)}`))),
    readout, el("details", {}, el("summary", {}, "What these are"),
      table(`${title}, ${means}`, ["metric", means, "what it tells"],
        names.map((name) => [metrics[name].label, inUnit(mean(data.columns[name]), unit), metrics[name].tells]))));
  figure.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    say(Math.min(data.row.length - 1, Math.max(0, at + step)));
    drawn.setCursor({ left: drawn.valToPos(data.step[at], "x"), top: HEIGHT / 3 });
    event.preventDefault();
  };
  return figure;
}
