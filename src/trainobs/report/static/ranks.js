// The ranks of a run: a row of a picture each, darker where a step took longer, and a table.

import { colour, el, prepare, put, readout, section, table } from "./dom.js";
import { duration, inUnit, percent, quantity } from "./format.js";
import { STEP, WAIT } from "./parts.js";
import { windowOf } from "./source.js";

const time = (ns) => inUnit(ns, "ns");

export class Ranks {
  constructor(place, head) {
    this.head = head;
    this.at = [0, 0];
    this.endings = el("div");
    this.sentence = el("p");
    this.figure = el("figure", { tabindex: 0, role: "group", "aria-label": "Step time of each rank: use the arrow keys" });
    [this.line, this.say] = readout("Point at a rank and step, or use the arrow keys.");
    this.scale = el("ul", { class: "legend" });
    this.table = el("div");
    place.replaceChildren(section("ranks", "Ranks", this.endings, this.sentence, this.figure, this.scale, this.line, this.table));
  }

  tell({ straggler: found, ranks, said }) {
    put(this.endings, ...(said.endings ? [el("p", { class: "advice" }, `${said.endings}.`)] : []));
    put(this.sentence, ...straggler(found, this.head.rank));
    const isFirst = ([rank]) => Number(rank) === found?.rank;
    const all = Object.entries(ranks).sort((a, b) => isFirst(b) - isFirst(a) || b[1].p50_ns - a[1].p50_ns);
    const byArrival = all.some(([, one]) => one.held_up_ns !== null);
    const rows = all.map(([rank, one]) => [`rank ${rank}`, one.host ?? "unknown", quantity(one.steps),
      time(one.p50_ns), time(one.p95_ns), time(one.wait_ns), ...(byArrival ? [time(one.held_up_ns)] : [])]);
    put(this.table, table(`By rank, ${found?.rank == null ? "" : "the one that holds the others up first, then "}the slowest first`,
      ["", "host", "steps", "median step", "95 % of steps below", "waits in collectives, a step",
       ...(byArrival ? ["held the others up, a step"] : [])], rows));
  }

  // `data` has the columns of each rank: see Source.rows.
  draw(data) {
    const { ranks } = this.head;
    const canvas = el("canvas", { role: "img", "aria-label": "Step time of each rank; the table below has medians" });
    const width = Math.max(240, this.figure.clientWidth);
    const high = Math.max(4, Math.min(18, 480 / ranks.length));
    const cell = width / Math.max(1, data.step.length);
    const times = ranks.map((rank) => data.columns[`${rank}/${STEP}`] ?? []);
    const [low, most] = scale(times);
    heat(prepare(canvas, width, high * ranks.length), times, [low, most], cell, high);
    put(this.scale, ...[[0, `${time(low)} a step`], [1, `${time(most)} or more`]].map(([part, text]) =>
      el("li", {}, el("i", { style: `background:${shade(part)}` }), text)), el("li", {}, `a row each: rank ${ranks[0]} above, rank ${ranks.at(-1)} below`));
    const move = ([x, y], byKey) => {
      const [i, k] = this.at = [Math.max(0, Math.min(data.step.length - 1, x)), Math.max(0, Math.min(ranks.length - 1, y))];
      const of = (name) => time(data.columns[`${ranks[k]}/${name}`]?.[i]);
      this.say(`rank ${ranks[k]}, ${windowOf(data, i)}: ${of(STEP)}, waited for data ${of(WAIT)}, for other ranks ${of("ranks/wait_ns")}`, byKey);
    };
    canvas.onmousemove = (event) => move([Math.floor(event.offsetX / cell), Math.floor(event.offsetY / high)]);
    this.figure.onkeydown = (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!by) return;
      move([this.at[0] + by[0], this.at[1] + by[1]], true);
      event.preventDefault();
    };
    this.figure.replaceChildren(canvas);
  }
}

// Sentences, and the command for more.
function straggler(found, shown) {
  if (!found?.known) return [`Whether one rank holds the others up is not known${found?.why ? `: ${found.why}` : ""}.`];
  if (found.rank === null && found.by === "waiting") return ["No rank waits less than every other by a tenth of the step, in the mean and in half of them."];
  const times = "at_times" in found ? ` In some steps ${found.at_times === found.rank ? "for longer" : `they wait for rank ${found.at_times}`}: ${duration(found.at_times_ns)} a step in the mean.` : "";
  if ("mostly" in found) return [`The others wait for rank ${found.mostly} for ${duration(found.mostly_ns)} a step, but for the rest for ${duration(found.rest_ns)} as well.${times}`];
  if (found.rank === null) return [`No rank holds the others up for a tenth of the step in most steps.${times}`];
  const told = `Rank ${found.rank} holds the others up for ${duration(found.held_up_ns)} a step, ${percent(Math.min(1, found.share))} of it.${times}`;
  if (found.rank === shown) return [told];
  const because = found.because ? ` That rank: ${found.because}.` : "";
  return [`${told}${because} For its page: `, el("span", { class: "whole" }, `trainobs report RUN --rank ${found.rank} --html FILE`)];
}

// The fastest step, and the slowest of 100.
function scale(all) {
  const known = all.flat().filter((value) => value !== null).sort((a, b) => a - b);
  return [known[0] ?? 0, known[Math.floor(0.99 * (known.length - 1))] ?? 1];
}

const shade = (part) => `hsl(${40 - 20 * part} 75% ${90 - 60 * part}%)`; // one hue: lightness alone orders it for every eye

// Cells of `cell` x `high` pixels, shaded between two times.
function heat(draw, all, [low, most], cell, high) {
  const unknown = colour("line");
  all.forEach((values, y) => values.forEach((value, x) => {
    const part = value === null ? 0 : Math.max(0, Math.min(1, (value - low) / Math.max(1, most - low)));
    draw.fillStyle = value === null ? unknown : shade(part);
    draw.fillRect(x * cell, y * high, Math.ceil(cell), high - (high > 6 ? 1 : 0));
  }));
}
