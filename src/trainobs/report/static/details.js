// What is not drawn over steps: checkpoints, embedding tables, and how the run was observed.

import { el, FIRST_ROWS, section, table } from "./dom.js";
import { counted, inUnit, percent, quantity, size } from "./format.js";

const time = (ns) => inUnit(ns, "ns");
const bytes = (count) => inUnit(count, "bytes");

export function workers(summary) {
  const rows = summary.workers.map((one) => [one.worker === null ? "training thread" : `worker ${one.worker}`, quantity(one.batches),
    time(one.made_ns), time(one.device_ns), time(one.cpu_wait_ns), time(one.compute_ns), time(one.sleep_ns), time(one.wait_ns)]);
  const head = ["", "batches", "a batch took", "reads from storage", "no CPU", "computes", "asleep otherwise", "training waited"];
  const of = summary.loader?.are_all === false ? ", of the batches that are known" : "";
  return rows.length ? table(`Means by worker${of}`, head, rows) : null;
}

export function checkpoints(summary) {
  const found = summary.checkpoints;
  if (!found.length) return null;
  const many = found.length > FIRST_ROWS;
  const sorted = many ? [...found].sort((a, b) => b.blocking_ns - a.blocking_ns) : found;
  const rows = sorted.map((one) => [one.step === null ? "before the first" : `step ${one.step}`, time(one.blocking_ns),
    bytes(one.written_bytes), time(one.write_ns), time(one.fsync_ns), bytes(one.later_block_bytes)]);
  return section("checkpoints", "Checkpoints", table(`${counted(rows.length, "checkpoint")}${many ? ", the longest first" : ""}`,
    ["saved in", "training blocked for", "written", "in write calls", "in fsync", "written to the device later"], rows));
}

export function embeddings(summary) {
  const found = summary.embeddings;
  if (!found) return null;
  const of = (name, metric) => summary.metrics[`${metric}{table=${name}}`]?.mean ?? null;
  const rows = found.tables.map((one) => ({ one, lookups: of(one.name, "embedding/lookup_count") }))
    .sort((a, b) => (b.lookups ?? -1) - (a.lookups ?? -1) || b.one.row_count * b.one.row_bytes - a.one.row_count * a.one.row_bytes)
    .map(({ one, lookups }) => [one.name, quantity(one.row_count), size(one.row_count * one.row_bytes),
      lookups === null ? "unknown" : quantity(lookups), bytes(of(one.name, "embedding/bytes")), one.placement ?? "unknown"]);
  const skew = Object.entries(found.skew?.tables ?? {}).map(([name, one]) => [name, quantity(one.lookup_count),
    ...["0.5", "0.9"].map((share) => (one.working_set[share] ? quantity(one.working_set[share]) : "unknown")),
    one.zipf.exponent === null ? "unknown" : one.zipf.exponent.toFixed(2)]);
  const budgets = (found.skew?.budgets ?? []).filter((one) => one.holds_rows).map((one) => [size(one.budget_bytes),
    percent(one.table_ratio), one.lookup_ratio === null ? "unknown" : percent(one.lookup_ratio)]);
  return section("tables", "Embedding tables",
    table(`${counted(rows.length, "table")}${rows.length > 1 ? ", the most looked up first" : ""}`, ["table", "rows", "size", "lookups a step", "read a step", "kept on"], rows),
    skew.length ? table("How few rows serve the lookups", ["table", "lookups counted", "rows that serve half", "rows that serve 90 %", "Zipf exponent"], skew) : null,
    budgets.length ? table("What the hottest rows of all tables would serve", ["memory", "of all tables", "of lookups"], budgets) : null);
}

// What is told of a loader; its other facts are for who reads the run log.
const LOADER = ["workers", "prefetch_factor", "batch_size", "batches", "pin_memory", "persistent_workers", "start_method", "iterable"];
const YES_NO = { true: "yes", false: "no" };

function loadersTable(loaders) {
  const told = LOADER.filter((name) => loaders.some((one) => (one[name] ?? null) !== null));
  return table("Loaders", told.map((name) => name.replaceAll("_", " ")),
    loaders.map((one) => told.map((name) => (one[name] === null || one[name] === undefined ? "–" : YES_NO[one[name]] ?? String(one[name])))));
}

export function observed(summary, head) {
  const { host = {}, capabilities = {}, settings = {}, loaders } = head.info;
  const off = Object.entries(capabilities ?? {}).filter(([, state]) => state !== "on");
  const unknown = Object.entries(summary.metrics).filter(([name, row]) => row.max === null && !name.endsWith("}") && !summary.doubtful.includes(name));
  const lost = summary.lost.steps ?? {}, { dropped, missing_steps: missing } = summary.lost;
  const isKnown = summary.outcome !== null && missing !== null;
  const facts = [["host", host?.hostname], ["kernel", host?.kernel], ["CPUs", host?.usable_cpu_count ?? host?.cpu_count], ["observed", `by ${head.observed_by}`],
                 ["processes in the job", head.info.world_size], ["trainobs", head.info.trainobs],
                 ["lost events", summary.lost.events ?? "unknown"],
                 ["steps not in the run log", isKnown ? (lost.runlog ?? 0) + dropped + missing : "unknown"],
                 ...(lost.tensorboard ? [["steps not in TensorBoard", lost.tensorboard]] : [])];
  const setup = Object.entries(settings ?? {}).filter(([, value]) => value !== null && typeof value !== "object");
  return section("observed", "How it was observed",
    table("The run", ["", ""], [...facts, ...setup].map(([name, value]) => [name.replaceAll("_", " "), value ?? "unknown"])),
    summary.unseen ? el("p", { class: "advice" }, `${summary.unseen}.`) : null,
    loaders?.length ? loadersTable(loaders) : null,
    off.length ? table("Probes that were off, and why", ["probe", ""], off) : null,
    Object.keys(summary.lost.files).length ? table("Files that could not be read", ["file", ""], Object.entries(summary.lost.files)) : null,
    unknown.length ? el("details", {}, el("summary", {}, `${counted(unknown.length, "metric")} ${unknown.length === 1 ? "was" : "were"} not measured`), el("p", {}, unknown.map(([name]) => name).join(", "))) : null,
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
