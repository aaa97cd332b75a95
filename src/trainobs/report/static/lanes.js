// The training thread and its loader workers on one time axis: who made which batch, and when.

import { colour, el, prepare, put, readout, table } from "./dom.js";
import { axisUnit, duration, size } from "./format.js";
import { CAUSES } from "./parts.js";

const LANE = 26;
const LEFT = 96;
const TOP = 22;
const MADE = [["device_ns", CAUSES[0][1], "reads from storage"], ["cpu_wait_ns", CAUSES[1][1], "has no CPU"],
              ["compute_ns", CAUSES[2][1], "computes"], ["sleep_ns", CAUSES[3][1], "asleep otherwise"]];

// Lanes of the steps [from, to), which are indices into the steps of `piece` (see "lanes/N").
export function lanes(figure, piece, from, to) {
  const { steps, batches } = piece;
  const begin = steps.start_ns[from];
  const end = Math.max(steps.end_ns[to - 1], begin + 1);
  const own = batches.begin_ns.map((_, i) => i)
    .filter((i) => batches.end_ns[i] >= begin && batches.begin_ns[i] <= end);
  const workers = [...new Set(batches.worker)].sort((a, b) => (a ?? -1) - (b ?? -1));
  const lane = (worker) => TOP + LANE * (1 + workers.indexOf(worker));
  const width = Math.max(240, figure.clientWidth);
  const height = TOP + LANE * (1 + workers.length) + 6;
  const canvas = el("canvas", { role: "img", "aria-label": label(piece, from, to, workers) });
  const draw = prepare(canvas, width, height);
  const x = (ns) => LEFT + ((width - LEFT - 8) * (ns - begin)) / (end - begin);
  const bar = (from_ns, to_ns, y, fill, high = LANE - 6) => {
    const [a, b] = [Math.max(LEFT, x(from_ns)), Math.min(width - 8, x(to_ns))];
    if (b > a) { draw.fillStyle = fill; draw.fillRect(a, y, Math.max(0.6, b - a), high); }
  };

  draw.font = "12px system-ui, sans-serif";
  axis(draw, begin, end, x, width, height);
  draw.fillStyle = colour("ink");
  draw.fillText("steps", 4, TOP + 15);
  workers.forEach((worker) => draw.fillText(nameOf(worker), 4, lane(worker) + 15));
  for (let k = from; k < to; k++) {
    const wait = steps.wait_ns[k] ?? 0;
    bar(steps.start_ns[k], steps.end_ns[k] - 0.1, TOP, "#4477aa");
    bar(steps.start_ns[k], steps.start_ns[k] + wait, TOP, "#e69f00");
    draw.fillStyle = colour("paper");
    draw.fillRect(x(steps.end_ns[k]) - 0.5, TOP, 1, LANE - 6);
  }
  for (const i of own) {
    const y = lane(batches.worker[i]);
    const fetched = batches.fetch_end_ns[i];
    if (fetched > batches.end_ns[i]) bar(batches.end_ns[i], fetched, y + 8, colour("line"), 4);
    bar(batches.begin_ns[i], batches.end_ns[i], y, colour("line"));
    let at = batches.begin_ns[i];
    for (const [name, fill] of MADE) {
      const part = batches[name][i] ?? 0;
      bar(at, at + part, y, fill);
      at += part;
    }
    draw.fillStyle = colour("paper");
    draw.fillRect(Math.max(LEFT, x(batches.begin_ns[i])) - 0.5, y, 1, LANE - 6);
  }
  const [line, tell] = readout("Click on a batch, or use the arrow keys, to see what it took.");
  let at = -1;
  const say = (k, byKey) => {
    at = k;
    tell(row(batches, own[k]).map((text, i) => `${HEAD[i]} ${text}`).join(", "), byKey);
  };
  canvas.onclick = (event) => {
    const hit = own.findIndex((i) => event.offsetY >= lane(batches.worker[i]) && event.offsetY < lane(batches.worker[i]) + LANE
      && event.offsetX >= x(batches.begin_ns[i]) && event.offsetX <= x(batches.end_ns[i]));
    if (hit >= 0) say(hit);
  };
  figure.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.target !== figure || !by || !own.length) return;
    say(Math.max(0, Math.min(own.length - 1, at + by)), true);
    event.preventDefault();
  };
  put(figure, canvas, legend(), line, listing(batches, own));
}

function nameOf(worker) {
  return worker === null ? "training thread" : `worker ${worker}`;
}

function label(piece, from, to, workers) {
  const { step } = piece.steps;
  const makers = workers.length === 1 ? nameOf(workers[0]) : `${workers.length} processes`;
  const which = to - from === 1 ? `Step ${step[from]}, and its batch` : `Steps ${step[from]} to ${step[to - 1]}, and their batches`;
  return `${which}, made by ${makers}. The table below has every number.`;
}

function legend() {
  const entries = [["#e69f00", "training waits for data"], ["#4477aa", "the rest of a step"],
                   ...MADE.map(([, fill, text]) => [fill, `loader ${text}`]), [colour("line"), "batch waits to be taken"]];
  return el("ul", { class: "legend" }, entries.map(([fill, text]) =>
    el("li", {}, el("i", { style: `background:${fill}` }), text)));
}

const HEAD = ["for", "made by", "took", ...MADE.map(([, , text]) => text), "read", "slowest read or open"];

function row(batches, i) {
  const time = (ns) => (ns === null ? "unknown" : duration(ns));
  const slowest = batches.slowest_ns[i] ? `${time(batches.slowest_ns[i])}: ${batches.slowest_file[i] ?? "unknown"}` : "–";
  return [`step ${batches.for_step[i]}`, nameOf(batches.worker[i]), time(batches.end_ns[i] - batches.begin_ns[i]),
          ...MADE.map(([name]) => time(batches[name][i])),
          batches.read_bytes[i] === null ? "unknown" : size(batches.read_bytes[i]), slowest];
}

function listing(batches, own) {
  const details = el("details", {}, el("summary", {}, `Table of ${own.length === 1 ? "1 batch" : `${own.length} batches`}`));
  details.ontoggle = () => {
    if (details.childElementCount === 1) details.append(table("Batches", HEAD, own.map((i) => row(batches, i))));
  };
  return details;
}

function axis(draw, begin, end, x, width, height) {
  const { factor, name } = axisUnit(end - begin, "ns");
  const span = (end - begin) / factor;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * 10 ** Math.floor(Math.log10(span) - 1))
    .find((each) => span / each <= 10) ?? span;
  draw.textAlign = "center";
  for (let at = 0; at <= span; at += every) {
    const ns = begin + at * factor;
    draw.fillStyle = colour("line");
    draw.fillRect(x(ns), TOP - 4, 1, height);
    draw.fillStyle = colour("muted");
    draw.fillText(`${Number(at.toPrecision(6))} ${name}`, Math.min(x(ns), width - 24), TOP - 8);
  }
  draw.textAlign = "left";
}
