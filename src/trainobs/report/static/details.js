// What is not drawn over steps: checkpoints, ranks, embedding tables, and how the run was observed.

import { colour, el, prepare, section, table } from "./dom.js";
import { duration, inUnit, percent, quantity, size } from "./format.js";
import { STEP, WAIT } from "./parts.js";

const time = (ns) => (ns === null || ns === undefined ? "unknown" : duration(ns));
const bytes = (count) => (count === null || count === undefined ? "unknown" : size(count));

export function workers(summary) {
  const rows = summary.workers.map((one) => [one.worker === null ? "in training" : `worker ${one.worker}`, quantity(one.batches),
    time(one.made_ns), time(one.device_ns), time(one.cpu_wait_ns), time(one.compute_ns), time(one.sleep_ns), time(one.wait_ns)]);
  const head = ["", "batches", "a batch took", "reads from storage", "no CPU", "computes", "asleep, cause unknown", "training waited"];
  return rows.length ? table("Means by worker", head, rows) : null;
}

export function checkpoints(summary) {
  if (!summary.checkpoints.length) return null;
  const rows = summary.checkpoints.map((one) => [one.step === null ? "before the first" : `step ${one.step}`, time(one.blocking_ns),
    bytes(one.written_bytes), time(one.write_ns), time(one.fsync_ns), bytes(one.later_block_bytes)]);
  return section("checkpoints", "Checkpoints", table(`${rows.length} of them`,
    ["saved in", "training blocked for", "written", "in write calls", "in fsync", "written to the device later"], rows));
}

// Ranks as rows of a picture, darker where a step took longer; and as a table.
export function ranks(summary, head) {
  const figure = el("figure", { tabindex: 0 });
  const readout = el("p", { class: "readout", "aria-live": "polite" }, "Point at a rank and step, or use the arrow keys.");
  const rows = Object.entries(summary.ranks).map(([rank, one]) => [`rank ${rank}`, one.host ?? "unknown", quantity(one.steps),
    time(one.p50_ns), time(one.p95_ns), time(one.wait_ns), one.held_up_ns === null ? "unknown" : duration(one.held_up_ns)]);
  const draw = (data) => heat(figure, readout, data, head);
  const made = section("ranks", "Ranks", el("p", {}, straggler(summary.straggler)), figure, readout,
    table("By rank", ["", "host", "steps", "median step", "95 % of steps below", "waits in collectives, a step", "held the others up, a step"], rows));
  return { made, draw };
}

function straggler(found) {
  if (!found?.known) return "Whether one rank holds the others up is not known.";
  if (found.rank === null) return "No rank holds the others up.";
  return `Rank ${found.rank} holds the others up for ${duration(found.held_up_ns)} a step, ${percent(found.share)} of it.`;
}

function heat(figure, readout, data, head) {
  const canvas = el("canvas", { role: "img", "aria-label": "Step time of each rank; the table below has medians" });
  const width = Math.max(320, figure.clientWidth);
  const high = Math.max(4, Math.min(18, 480 / head.ranks.length));
  const draw = prepare(canvas, width, high * head.ranks.length);
  const all = head.ranks.map((rank) => data.columns[`${rank}/${STEP}`] ?? []);
  const known = all.flat().filter((value) => value !== null).sort((a, b) => a - b);
  const [low, most] = [known[0] ?? 0, known[Math.floor(0.99 * (known.length - 1))] ?? 1];
  const cell = width / Math.max(1, data.step.length);
  all.forEach((values, y) => values.forEach((value, x) => {
    const part = value === null ? 0 : Math.max(0, Math.min(1, (value - low) / Math.max(1, most - low)));
    draw.fillStyle = value === null ? colour("line") : `hsl(${220 - 190 * part} 70% ${88 - 50 * part}%)`;
    draw.fillRect(x * cell, y * high, Math.ceil(cell), high - (high > 6 ? 1 : 0));
  }));
  let at = [0, 0];
  const say = ([x, y]) => {
    at = [Math.max(0, Math.min(data.step.length - 1, x)), Math.max(0, Math.min(head.ranks.length - 1, y))];
    const rank = head.ranks[at[1]];
    const of = (name) => time(data.columns[`${rank}/${name}`]?.[at[0]]);
    readout.textContent = `rank ${rank}, step ${data.step[at[0]]}: ${of(STEP)}, waited for data ${of(WAIT)}, for other ranks ${of("ranks/wait_ns")}`;
  };
  canvas.onmousemove = (event) => say([Math.floor(event.offsetX / cell), Math.floor(event.offsetY / high)]);
  figure.onkeydown = (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    say([at[0] + move[0], at[1] + move[1]]);
    event.preventDefault();
  };
  figure.replaceChildren(canvas);
}

export function embeddings(summary) {
  const found = summary.embeddings;
  if (!found) return null;
  const of = (name, metric) => summary.metrics[`${metric}{table=${name}}`]?.mean ?? null;
  const rows = found.tables.map((one) => ({ one, lookups: of(one.name, "embedding/lookup_count") }))
    .sort((a, b) => (b.lookups ?? -1) - (a.lookups ?? -1) || b.one.row_count * b.one.row_bytes - a.one.row_count * a.one.row_bytes)
    .map(({ one, lookups }) => [one.name, quantity(one.row_count), size(one.row_count * one.row_bytes),
      lookups === null ? "unknown" : quantity(lookups), bytes(of(one.name, "embedding/read_bytes")), one.placement ?? "unknown"]);
  const skew = Object.entries(found.skew?.tables ?? {}).map(([name, one]) => [name, quantity(one.lookup_count),
    ...["0.5", "0.9"].map((share) => (one.working_set[share] ? quantity(one.working_set[share]) : "unknown")),
    one.zipf.exponent === null ? "unknown" : one.zipf.exponent.toFixed(2)]);
  const budgets = (found.skew?.budgets ?? []).filter((one) => one.holds_rows).map((one) => [size(one.budget_bytes),
    percent(one.table_ratio), one.lookup_ratio === null ? "unknown" : percent(one.lookup_ratio)]);
  return section("tables", "Embedding tables",
    table(`${rows.length} tables, the most looked up first`, ["table", "rows", "size", "lookups a step", "read a step", "kept on"], rows),
    skew.length ? table("How few rows serve the lookups", ["table", "lookups counted", "rows that serve half", "rows that serve 90 %", "Zipf exponent"], skew) : null,
    budgets.length ? table("What the hottest rows of all tables would serve", ["memory", "of all tables", "of lookups"], budgets) : null);
}

export function observed(summary, head) {
  const { host = {}, capabilities = {}, settings = {}, loaders } = head.info;
  const off = Object.entries(capabilities ?? {}).filter(([, state]) => state !== "on");
  const unknown = Object.entries(summary.metrics).filter(([name, row]) => row.max === null && !name.endsWith("}"));
  const facts = [["host", host?.hostname], ["kernel", host?.kernel], ["CPUs", host?.usable_cpu_count ?? host?.cpu_count], ["observed by", head.info.level],
                 ["processes in the job", head.info.world_size], ["trainobs", head.info.trainobs],
                 ["lost events", summary.lost.events ?? "unknown"],
                 ["steps not in the run log", Object.values(summary.lost.steps ?? {}).reduce((a, b) => a + b, 0)]];
  const setup = Object.entries(settings ?? {}).filter(([, value]) => value !== null && typeof value !== "object");
  return section("observed", "How it was observed",
    table("The run", ["", ""], [...facts, ...setup].map(([name, value]) => [name.replaceAll("_", " "), value ?? "unknown"])),
    loaders?.length ? table("Loaders", Object.keys(loaders[0]).map((name) => name.replaceAll("_", " ")),
      loaders.map((one) => Object.values(one).map((value) => (value === null ? "–" : String(value))))) : null,
    off.length ? table("Probes that were off, and why", ["probe", ""], off) : null,
    Object.keys(head.unreadable).length ? table("Files that could not be read", ["file", ""], Object.entries(head.unreadable)) : null,
    unknown.length ? el("details", {}, el("summary", {}, `${unknown.length} metrics were not measured`), el("p", {}, unknown.map(([name]) => name).join(", "))) : null,
    everything(summary));
}

function everything(summary) {
  const details = el("details", {}, el("summary", {}, "Every number"));
  details.ontoggle = () => {
    if (details.childElementCount > 1) return;
    const rows = Object.entries(summary.metrics).filter(([, row]) => row.max !== null)
      .map(([name, row]) => [name, ...["mean", "p50", "p95", "max", "sum"].map((key) => (row[key] === null ? null : inUnit(row[key], row.unit)))]);
    details.append(table("All metrics", ["metric", "mean", "median", "95 % below", "most", "sum of the run"], rows));
  };
  return details;
}
