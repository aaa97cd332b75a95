// Steps along the run, each as a stack of its parts; drag to zoom, click for one step.

import uPlot from "./vendor/uPlot.esm.js";
import { colour, el, readout } from "./dom.js";
import { axisUnit, duration, percent, WHOLE } from "./format.js";
import { partsOf, STEP } from "./parts.js";
import { rowAt, windowOf } from "./source.js";

const HEIGHT = 260;

// Draws the windows of `data` (see Source.rows) into `figure`.
// `on.zoom(from, to)` and `on.pick(row)` tell what the user wants to see, in rows; `cursor.row` is where the keyboard
// is. Returns the chart, which is to be destroyed.
export function timeline(figure, data, head, mode, on, cursor) {
  const parts = partsOf(data.columns, head);
  const steps = data.columns[STEP] ?? [];
  const asShare = mode === "share";
  const sums = data.row.map((_, i) => parts.reduce((sum, part) => sum + (part.values[i] ?? 0), 0));
  const whole = data.row.map((_, i) => Math.max(steps[i] ?? 0, sums[i]));
  const most = asShare ? 1 : Math.max(...whole, 1);
  const { factor, name } = asShare ? axisUnit(1, "ratio") : axisUnit(most, "ns");

  const heights = [];
  let below = data.row.map(() => 0);
  for (const part of parts) {
    below = below.map((sum, i) => sum + (part.values[i] ?? 0));
    heights.push(below.map((sum, i) => (asShare ? sum / (whole[i] || 1) : sum) / factor));
  }
  const series = [{}];
  const rows = [data.step];
  for (let k = parts.length - 1; k >= 0; k--) { // the tallest first, so that each one shows
    series.push({ label: parts[k].label, fill: parts[k].colour, stroke: parts[k].colour, width: 0,
                  points: { show: false }, paths: uPlot.paths.stepped({ align: 1, extend: true }) });
    rows.push(heights[k]);
  }
  const top = 1.6 * most; // of the line, so that one long step leaves the others their height
  let cut = "";
  const peaks = data.columns[`${STEP}/peak`];
  if (data.every > 1 && peaks && !asShare) {
    series.push({ label: "slowest step", stroke: colour("ink"), width: 1, points: { show: false } });
    if (peaks.some((peak) => peak > top)) cut = `, cut off at ${duration(top)}`;
    rows.push(peaks.map((peak) => peak === null ? null : Math.min(peak, top) / factor));
  }
  const end = data.step.at(-1) + data.weights.at(-1);
  const windowAt = (chart, left) => Math.max(0, data.step.findLastIndex((step) => step <= chart.posToVal(left, "x")));
  let at = rowAt(data, cursor);
  const [line, tell] = readout(at < 0 ? hint(data, cut) : describe(data, parts, steps, at));
  const holder = el("div");
  const chart = new uPlot({
    width: Math.max(240, figure.clientWidth), height: HEIGHT, series, legend: { show: false },
    scales: { x: { time: false, range: [data.step[0], end] }, y: { range: (_u, _low, high) => [0, asShare ? 100 : high * 1.02 || 1] } },
    axes: [{ ...axis("step"), incrs: WHOLE, size: 34, labelSize: 18, labelGap: -6 }, { ...axis(asShare ? "share of the step, %" : `step time, ${name}`), size: 64 }],
    cursor: { drag: { x: true, y: false, setScale: false } },
    hooks: {
      setCursor: [(chart) => { if (chart.cursor.left >= 0) say(windowAt(chart, chart.cursor.left)); }],
      setSelect: [(chart) => {
        const { left, width } = chart.select;
        if (width < 4) return;
        const [first, last] = [windowAt(chart, left), windowAt(chart, left + width)];
        on.zoom(data.row[first], data.row[last] + data.every);
      }],
    },
  }, rows, holder);

  const say = (i, byKey) => {
    at = i;
    cursor.row = data.row[i];
    tell(describe(data, parts, steps, i), byKey);
  };
  const move = (i) => {
    chart.setCursor({ left: chart.valToPos(data.step[i] + data.weights[i] / 2, "x"), top: HEIGHT / 2 }, false);
    say(i, true);
  };
  const pick = () => { if (at >= 0) on.pick(data.columns[`${STEP}/peak_row`]?.[at] ?? data.row[at]); };
  chart.over.addEventListener("click", () => { if (chart.select.width < 4) pick(); });
  figure.replaceChildren(holder, line);
  figure.onkeydown = (event) => {
    const last = data.row.length - 1;
    const to = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1), Home: 0, End: last }[event.key];
    if (to !== undefined) move(to);
    else if (event.key === "Enter") pick();
    else return;
    event.preventDefault();
  };
  return chart;
}

function axis(label) {
  return { label, stroke: colour("ink"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } };
}

function hint(data, cut) {
  const each = data.every > 1 ? `each point is the mean of up to ${data.every} steps, without the first of the run; the line is the slowest of them${cut}. ` : "";
  return `${each}Drag to zoom, click for one step; with the keyboard: arrows, Home, End, Enter.`;
}

function describe(data, parts, steps, i) {
  const of = windowOf(data, i);
  const step = steps[i];
  if (step === null || step === undefined) return `${of}: unknown`;
  const shares = parts.filter((part) => part.values[i] > 0.005 * step).sort((a, b) => b.values[i] - a.values[i])
    .map((part) => `${part.label} ${duration(part.values[i])} (${percent(part.values[i] / step)})`);
  return `${of}: ${duration(step)}; ${shares.join(", ")}`;
}
