// One run as a page: `show` draws it into an element, piece by piece as they come.

import { charts } from "./charts.js";
import { checkpoints, embeddings, observed, workers } from "./details.js";
import { colour, el, put, section } from "./dom.js";
import { Following } from "./follow.js";
import { counted, duration } from "./format.js";
import { files } from "./io.js";
import { lanes } from "./lanes.js";
import { evidence, noSteps, spread, stepBar, verdictSection } from "./overview.js";
import { Ranks } from "./ranks.js";
import { Source } from "./source.js";
import { timeline } from "./timeline.js";

const GROUPS = { storage: "Storage and page cache", processor: "Processor", memory: "Memory", network: "Network",
                 gpu: "GPU", "hot rows": "Hot rows",
                 "own probes": "Own probes", observing: "Cost of observing" };
const LANE_STEPS = 24;
const RESIZED_MS = 150;
const PRINTING = ["beforeprint", "afterprint"];
const [LEAST_CHART, GAP] = [320, 28]; // as in page.css

// `source` is a Source; `refresh` asks again while the run goes on. Returns a function that ends it.
export function show(root, source, { refresh = false } = {}) {
  const page = new Page(root, source, refresh);
  return () => page.end();
}

class Page {
  constructor(root, source, refresh) {
    this.root = root;
    this.source = source;
    this.mode = "time";
    this.range = null; // rows; null: all but the first, in which workers start
    this.cursor = { row: null };
    this.turn = 0; // of drawing: a later one ends those before
    this.small = [];
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.following.attempt(() => this.update());
    this.resized = () => {
      clearTimeout(this.later);
      this.later = setTimeout(this.redraw, RESIZED_MS);
    };
    this.printing = ({ type }) => { // black on white, and as wide as paper: what is on a canvas stays as it was drawn
      document.documentElement.toggleAttribute("data-printing", type === "beforeprint");
      this.redraw();
    };
    this.scheme.addEventListener("change", this.redraw);
    addEventListener("resize", this.resized);
    for (const type of PRINTING) addEventListener(type, this.printing);
    this.following = new Following(root, (following) => this.look(following), refresh);
  }

  end() {
    clearTimeout(this.later);
    this.scheme.removeEventListener("change", this.redraw);
    removeEventListener("resize", this.resized);
    for (const type of PRINTING) removeEventListener(type, this.printing);
    this.following.end();
    this.clear();
  }

  clear() {
    this.turn += 1;
    for (const drawn of [this.chart, ...this.small]) drawn?.destroy();
    [this.chart, this.small] = [null, []];
  }

  // A run that goes on has more steps; what is on the screen stays where it is.
  async look(following) {
    const before = this.head;
    if (before?.outcome && !following.failed) return;
    this.source.forget();
    const head = await this.source.get("head");
    if (following.ended) return;
    this.head = head;
    if (before && !following.failed && head.steps === before.steps && !head.outcome) return;
    const shape = ({ steps, lanes, ranks }) => [steps > 0, lanes, ranks.length].join();
    if (!before || shape(before) !== shape(head)) this.frame();
    this.title();
    await this.update();
    const summary = await this.source.get("summary");
    if (!following.ended) this.summary(summary);
  }

  title() {
    const { run, info, observed_by, rank, steps, outcome } = this.head;
    const whose = info.world_size > 1 ? ` of rank ${rank} of ${info.world_size}` : "";
    const last = this.newest?.wall_ns ? `; the newest step ended on ${new Date(this.newest.wall_ns / 1e6).toLocaleString()}` : "";
    const ended = outcome ? `ended: ${outcome}` : `killed, or still running${last}`;
    const names = run.split("/").filter(Boolean);
    const own = names.at(-1) === "trainobs" ? names.slice(-2).join("/") : names.at(-1);
    put(this.header, el("h1", {}, own ?? run), el("p", { class: "muted" },
      `${run}: ${counted(steps, "step")}${whose}, on ${info.host?.hostname ?? "an unknown host"}, observed by ${observed_by}; ${ended}`));
  }

  // The places that things are drawn into.
  frame() {
    this.clear();
    this.header = el("header");
    this.slots = Object.fromEntries(["verdict", "step", "steps", "lanes", "groups", "ranks", "more"].map((name) => [name, el("div")]));
    this.root.replaceChildren(this.header, el("main", {}, Object.values(this.slots)));
    if (!this.head.steps) {
      this.slots.steps.append(noSteps(this.head));
      return;
    }
    this.slots.verdict.append(el("p", { class: "muted", role: "status" }, "Reading the run ..."));
    this.spread = el("p", { class: "muted" });
    this.plot = el("figure", { tabindex: 0, role: "group", "aria-label": "Steps: use the arrow keys" });
    this.slots.steps.append(section("steps", "Steps", this.buttons(), this.spread, this.plot));
    this.evidence = el("div");
    if (this.head.ranks.length > 1) this.ranks = new Ranks(this.slots.ranks, this.head);
    if (!this.head.lanes) return;
    this.lanesDrawn = null;
    this.lanesOf = el("p", { class: "muted", id: "lanes-of" });
    this.lanePlot = el("figure", { tabindex: 0, role: "group", "aria-label": "Loader workers: use the arrow keys" });
    this.workers = el("div", { id: "workers" });
    this.slots.lanes.append(section("lanes", "Loader workers", this.lanesOf, this.lanePlot, this.workers));
  }

  buttons() {
    const modes = ["time", "share"].map((mode) => el("button", { type: "button", "aria-pressed": String(mode === this.mode),
      onclick: (event) => { this.mode = mode; for (const b of modes) b.ariaPressed = String(b === event.target); this.redraw(); } },
      mode === "time" ? "time" : "share of the step"));
    const zoom = (text, change) => el("button", { type: "button", onclick: () => this.zoom(...change(...this.rows())) }, text);
    return el("div", { class: "buttons" }, modes,
      zoom("zoom in", (a, b) => [a + (b - a) / 4, b - (b - a) / 4]), zoom("zoom out", (a, b) => [a - (b - a) / 2, b + (b - a) / 2]),
      zoom("◀ earlier", (a, b) => [a - (b - a) / 2, a + (b - a) / 2]), zoom("later ▶", (a, b) => [a + (b - a) / 2, b + (b - a) / 2]),
      el("button", { type: "button", onclick: () => { this.range = null; this.redraw(); } }, "whole run"));
  }

  rows() {
    const { steps } = this.head;
    return this.range ?? [steps > 1 ? 1 : 0, steps];
  }

  zoom(from, to) {
    const { steps } = this.head;
    const width = Math.min(steps, Math.max(4, Math.round(to - from)));
    const first = Math.max(0, Math.min(steps - width, Math.round(from)));
    this.range = [first, first + width];
    this.redraw();
  }

  // What depends on the rows that are shown.
  async update() {
    if (!this.head?.steps) return;
    const turn = ++this.turn;
    const [from, to] = this.rows();
    const data = await this.source.rows("parts", from, to);
    if (turn !== this.turn || !data.row.length) return;
    this.steps(data);
    const picking = this.pick(this.picked ?? Math.max(0, Math.floor((from + to) / 2)));
    const groups = this.shown().map(([group]) => this.source.rows(group, from, to));
    const ranks = this.head.ranks.length > 1 ? this.source.rows("ranks", from, to) : null;
    const [rows, ofRanks] = await Promise.all([Promise.all(groups), ranks, picking]);
    if (turn !== this.turn) return;
    this.groups(rows);
    if (ofRanks) this.ranks.draw(ofRanks);
  }

  steps(data) {
    const last = data.step.at(-1) + data.weights.at(-1) - 1;
    const where = this.range ? `A step of steps ${data.step[0]} to ${last}` : this.head.steps > 1 ? "A mean step, without the first" : "The only step";
    const [bar, numbers] = stepBar(data, this.head, where);
    put(this.slots.step, section("step", "Where a step goes", bar, el("div", { class: "beside" }, numbers, this.evidence)));
    this.chart?.destroy();
    this.chart = timeline(this.plot, data, this.head, this.mode, {
      zoom: (first, end) => this.zoom(first, end), pick: (row) => this.following.attempt(() => this.pick(row)) }, this.cursor);
  }

  // Steps around a row, and the batches that they consumed.
  async pick(row) {
    if (!this.head.lanes) return;
    const picked = this.picked = Math.min(row, this.head.steps - 1);
    const each = this.head.lane_steps;
    const number = Math.floor(picked / each);
    if (!this.source.has(`lanes/${number}`)) {
      put(this.lanesOf, "This file does not hold the batches of these steps; `trainobs report RUN --step N` tells of them.");
      this.lanesDrawn = put(this.lanePlot);
      return;
    }
    const piece = await this.source.get(`lanes/${number}`);
    if (picked !== this.picked || this.following.ended) return;
    const length = piece.steps.step.length;
    const show = Math.min(length, this.range ? Math.max(1, Math.min(LANE_STEPS, this.range[1] - this.range[0])) : LANE_STEPS);
    const first = Math.max(0, Math.min(length - show, (picked % each) - Math.floor(show / 2)));
    const drawn = JSON.stringify([piece, first, show, this.lanePlot.clientWidth, colour("ink")]);
    if (drawn === this.lanesDrawn) return; // so that what was clicked on stays
    this.lanesDrawn = drawn;
    const [begin, end] = [piece.steps.step[first], piece.steps.step[first + show - 1]];
    put(this.lanesOf, begin === end ? `Step ${begin}.` : `Steps ${begin} to ${end}.`, this.head.steps > show ? " Click on a step above to see others." : "");
    lanes(this.lanePlot, piece, first, first + show);
  }

  // Groups of charts that the run has, each with its title.
  shown() {
    return Object.entries(GROUPS).filter(([group]) => this.head.groups[group]);
  }

  groups(rows) {
    const { groups, metrics } = this.head;
    const inner = this.slots.groups.clientWidth;
    const width = inner < 2 * LEAST_CHART + GAP ? Math.max(240, inner) : (inner - GAP) / 2;
    const before = this.small;
    this.small = [];
    put(this.slots.groups, ...this.shown().flatMap(([group, title], i) => {
      const made = charts(rows[i], metrics, groups[group], width, this.cursor);
      this.small.push(...made.map(({ drawn }) => drawn).filter(Boolean));
      const figures = made.map(({ figure }) => figure);
      return figures.length ? [section(group.replace(" ", "-"), title, el("div", { class: "charts" }, figures))] : [];
    }));
    for (const drawn of before) drawn.destroy();
  }

  summary(summary) {
    this.newest = summary.newest;
    this.title();
    put(this.slots.verdict, verdictSection(summary));
    put(this.slots.more, ...[files(summary), checkpoints(summary), embeddings(summary), observed(summary, this.head)].filter(Boolean));
    if (!this.head.steps) {
      put(this.slots.steps, noSteps(this.head, summary));
      return;
    }
    const { step } = summary;
    put(this.spread, spread(step));
    put(this.evidence, ...[evidence(summary, this.head)].filter(Boolean));
    if (this.head.lanes) put(this.workers, ...[workers(summary)].filter(Boolean));
    if (this.head.ranks.length > 1) this.ranks.tell(summary);
  }
}

export { Source };
