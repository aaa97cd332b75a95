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
    this.sentence = el("p");
    this.figure = el("figure", { tabindex: 0, role: "group", "aria-label": "Step time of each rank: use the arrow keys" });
    [this.line, this.say] = readout("Point at a rank and step, or use the arrow keys.");
    this.table = el("div");
    place.replaceChildren(section("ranks", "Ranks", this.sentence, this.figure, this.line, this.table));
  }

  tell({ straggler: found, ranks }) {
    put(this.sentence, straggler(found));
    const rows = Object.entries(ranks).map(([rank, one]) => [`rank ${rank}`, one.host ?? "unknown", quantity(one.steps),
      time(one.p50_ns), time(one.p95_ns), time(one.wait_ns), time(one.held_up_ns)]);
    put(this.table, table("By rank", ["", "host", "steps", "median step", "95 % of steps below", "waits in collectives, a step",
                                      "held the others up, a step"], rows));
  }

  // `data` has the columns of each rank: see Source.rows.
  draw(data) {
    const { ranks } = this.head;
    const canvas = el("canvas", { role: "img", "aria-label": "Step time of each rank; the table below has medians" });
    const width = Math.max(320, this.figure.clientWidth);
    const high = Math.max(4, Math.min(18, 480 / ranks.length));
    const cell = width / Math.max(1, data.step.length);
    heat(prepare(canvas, width, high * ranks.length), ranks.map((rank) => data.columns[`${rank}/${STEP}`] ?? []), cell, high);
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

function straggler(found) {
  if (!found?.known) return "Whether one rank holds the others up is not known.";
  if (found.rank === null) return "No rank holds the others up.";
  return `Rank ${found.rank} holds the others up for ${duration(found.held_up_ns)} a step, ${percent(found.share)} of it.`;
}

// Cells of `cell` x `high` pixels from the fastest step to the slowest of 100.
function heat(draw, all, cell, high) {
  const known = all.flat().filter((value) => value !== null).sort((a, b) => a - b);
  const [low, most] = [known[0] ?? 0, known[Math.floor(0.99 * (known.length - 1))] ?? 1];
  const unknown = colour("line");
  all.forEach((values, y) => values.forEach((value, x) => {
    const part = value === null ? 0 : Math.max(0, Math.min(1, (value - low) / Math.max(1, most - low)));
    draw.fillStyle = value === null ? unknown : `hsl(${220 - 190 * part} 70% ${88 - 50 * part}%)`;
    draw.fillRect(x * cell, y * high, Math.ceil(cell), high - (high > 6 ? 1 : 0));
  }));
}
