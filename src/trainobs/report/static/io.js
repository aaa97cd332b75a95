// What was read and written of files, and exchanged with peers, where a run counted that.

import { el, section, table } from "./dom.js";
import { counted, duration, percent, quantity, size } from "./format.js";

// Paul Tol's muted scheme: what read-ahead helps is blue, what it does not is warm.
const ORDERS = [
  ["consecutive_count", "where the call before had ended", "#4477aa"],
  ["first_count", "first of an open file", "#88ccee"],
  ["forward_count", "further on", "#ddcc77"],
  ["backward_count", "before it", "#cc6677"],
];
const UNKNOWN = "#bbbbbb";
const PICTURED = 3;
const HEIGHT = 120;

export function files(summary) {
  const { io } = summary;
  if (!io) return null;
  if (io.state !== "on") return section("io", "I/O by file and peer", el("p", { class: "muted" }, `Files were not counted: ${io.state}.`));
  const data = io.classes.find((one) => one.op === "read" && one.class === "data");
  return section("io", "I/O by file and peer",
    io.unknown.map((text) => el("p", { class: "advice" }, `Not in these numbers: ${text}.`)),
    summary.no_files ? el("p", {}, summary.no_files) : table("By kind of file, in all epochs; “each byte”: how often calls moved it in an epoch",
      ["", "calls", "bytes", "each byte", "at a page", "opens", "mappings"],
      io.classes.map((one) => [name(one), quantity(one.count), size(one.bytes), times(one),
        one.aligned === null ? null : percent(one.aligned), quantity(one.open_count), quantity(one.mmap_count)])),
    el("div", { class: "charts" }, orders(io.classes), data ? sizes(data) : null, ...epochs(io.epochs, io.unnamed_bytes !== null || io.reads_unseen), data ? opens(data) : null),
    largest(io.files), io.epochs.length ? calls(io.epochs) : null, peers(io), collectives(io.collectives));
}

function name(one) {
  return `${one.class} ${one.op === "read" ? "read" : "written"}`;
}

function times({ times_least: low, times_most: high }) {
  if (low === null) return null;
  if (high === null) return `at least ${low.toFixed(2)} times`;
  const texts = new Set([low.toFixed(2), high.toFixed(2)]);
  return `${[...texts].join(" to ")} times`;
}

function figure(title, note, ...children) {
  return el("figure", { class: "small" }, el("figcaption", {}, el("b", {}, title), ` ${note}`), children.flat());
}

// Where calls began, of the kinds with most bytes.
function orders(classes) {
  const shown = classes.filter((one) => one.count).slice(0, PICTURED);
  if (!shown.length) return null;
  const bars = shown.flatMap((one) => {
    const known = ORDERS.map(([key, label, fill]) => [one[key], label, fill]);
    const rest = one.count - known.reduce((sum, [count]) => sum + count, 0);
    const parts = [...known, [rest, "not known", UNKNOWN]].filter(([count]) => count);
    const said = parts.map(([count, label]) => `${label} ${percent(count / one.count)}`).join(", ");
    return [el("p", {}, `${name(one)}: ${quantity(one.count)} calls`),
      el("div", { class: "bar", role: "img", "aria-label": `${name(one)}: ${said}` }, parts.map(([count, label, fill]) =>
        el("span", { style: `width:${(100 * count) / one.count}%;background:${fill}`, title: `${label} ${percent(count / one.count)}` },
          count > 0.1 * one.count ? el("em", {}, percent(count / one.count)) : null)))];
  });
  const legend = [...ORDERS.map(([, label, fill]) => [label, fill]), ["not known", UNKNOWN]];
  return figure("Where a call began", "seen from the call before on the same open file", bars,
    el("ul", { class: "legend" }, legend.map(([label, fill]) => el("li", {}, el("i", { style: `background:${fill}` }), label))));
}

// Bars that stand, each {label, value, said}.
function columns(bars) {
  const most = Math.max(...bars.map(({ value }) => value ?? 0), Number.MIN_VALUE);
  return el("div", { class: "columns", role: "img", "aria-label": bars.map(({ label, said }) => `${label}: ${said}`).join(", ") },
    bars.map(({ label, value, said }) => el("span", { title: `${label}: ${said}` }, el("em", {}, said),
      value === null ? null : el("i", { style: `height:${(HEIGHT * value) / most}px` }), label)));
}

function binary(count) {
  const unit = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([from]) => count >= from) ?? [1, "B"];
  return `${count / unit[0]} ${unit[1]}`;
}

function sizes(data) {
  if (!data.call_bytes.length) return null;
  return figure("Sizes of calls", "on training data; each from its label up to twice as many bytes",
    columns(data.call_bytes.map(({ from, count }) => ({ label: binary(from), value: count, said: quantity(count) }))));
}

function opens(data) {
  if (!data.file_opens.length) return null;
  const label = (from) => (from === 1 ? "once" : `${from} to ${2 * from - 1}`);
  return figure("How often a file was opened", "in an epoch; files of training data",
    columns(data.file_opens.map(({ from, count }) => ({ label: label(from), value: count, said: quantity(count) }))));
}

// What workers read after the last step was for no epoch that was trained.
function label({ epoch, is_ahead: isAhead }) {
  return isAhead ? "ahead" : String(epoch);
}

// By epoch: how fast training data was read, and how much of the data set the page cache held at its end.
function epochs(found, isDoubted) {
  const some = found.length > 24 ? found.filter((_, i) => i % Math.ceil(found.length / 24) === 0) : found;
  const read = some.map((epoch) => {
    const one = epoch.classes.find(({ op, class: kind }) => op === "read" && kind === "data");
    const rate = one && epoch.seconds && !isDoubted ? one.bytes / epoch.seconds : null;
    return { label: label(epoch), value: rate, said: rate === null ? "unknown" : `${size(rate)}/s` };
  });
  const held = some.map((epoch) => {
    const { cache } = epoch;
    const share = cache ? cache.cached_bytes / cache.sampled_bytes : null;
    return { label: label(epoch), value: share, said: share === null ? "unknown" : percent(share) };
  });
  const looks = found.map(({ cache }) => cache).filter(Boolean);
  const last = looks.at(-1);
  const of = last && (last.sampled_count < last.file_count ? `${quantity(last.sampled_count)} of ${quantity(last.file_count)} files` : counted(last.file_count, "file"));
  return [
    read.some(({ value }) => value) ? figure("Data read", "in a second, by epoch; of a validation where workers read it, or files known to be data", columns(read)) : null,
    last ? figure("Of the data set in the page cache", `as an epoch was over, of ${of}${last.is_all ? "" : " that were found; there may be more"}`,
      columns(held)) : null,
  ];
}

function largest(found) {
  if (!found.length) return null;
  const same = (one) => found.filter(({ file, op }) => file === one.file && op === one.op).length > 1;
  const rows = found.map((one) => [same(one) ? `${one.file} #${one.inode}` : one.file, name(one), size(one.bytes), quantity(one.count), quantity(one.open_count), times(one), size(one.size), quantity(one.epochs)]);
  return el("details", {}, el("summary", {}, "Files of which most bytes were moved"),
    table(`${rows.length} files, of those that were among the largest of their kind in an epoch; what was moved of a file in other epochs is not in its row; #: the inode of a file whose name others have, too`,
      ["file", "", "bytes", "calls", "opened", "each byte", "its size", "in epochs"], rows));
}

function calls(found) {
  const sum = (op, key) => found.reduce((total, { calls: of }) => total + of[op][key], 0);
  return table("Calls about files", ["", "calls", "failed", "time"], [["stat", "stat and its like"], ["list", "listing directories"]].map(([op, label]) =>
    [label, quantity(sum(op, "count")), quantity(sum(op, "failed_count")), duration(sum(op, "ns"))]));
}

const SHOWN_PHASES = ["forward", "backward", "optimizer"];

function peerName({ peer, port, rank }, own) {
  if (rank === own) return "itself, and its children";
  if (rank !== null) return `rank ${rank}`;
  if (peer === null) return "others, not told apart";
  if (peer === "0.0.0.0") return "not connected";
  if (port === null) return peer;
  return peer.includes(":") ? `[${peer}]:${port}` : `${peer}:${port}`;
}

function peers({ peers: found, rank }) {
  if (!found?.length) return null;
  const amount = (bytes) => (bytes === null ? null : size(bytes));
  const rows = found.map((one) => {
    const phases = Object.values(one.phases).reduce((sum, bytes) => sum + bytes, 0);
    const share = (bytes) => percent((bytes ?? 0) / (phases + one.apart_bytes || 1));
    return [peerName(one, rank), amount(one.sent_bytes), amount(one.received_bytes),
      ...SHOWN_PHASES.map((phase) => share(one.phases[phase])), share(one.apart_bytes)];
  });
  return table("Network by peer; then shares of the bytes, by what the training thread did meanwhile; “apart”: of workers and other children",
    ["", "sent", "received", ...SHOWN_PHASES, "apart"], rows);
}

function collectives(found) {
  if (!found) return null;
  const each = (bytes) => (bytes === null ? null : size(bytes / found.steps));
  const rows = found.kinds.map((one) => [one.kind, (one.count / found.steps).toFixed(2), each(one.input_bytes), each(one.output_bytes)]);
  rows.push(["on sockets: sent, received", "", each(found.sent_bytes), each(found.received_bytes)]);
  return table(`Collectives in a step: bytes of the tensors of this rank, as torch has noted them; means of ${found.steps} of ${found.of_steps} steps, in which all are known`,
    ["", "calls", "given", "got"], rows);
}
