// One run as a page: `show` draws it into an element, piece by piece as they come.

import { charts } from "./charts.js";
import { checkpoints, embeddings, observed, ranks, workers } from "./details.js";
import { el, section } from "./dom.js";
import { duration, quantity } from "./format.js";
import { lanes } from "./lanes.js";
import { evidence, stepBar, verdictSection } from "./overview.js";
import { Source } from "./source.js";
import { timeline } from "./timeline.js";

const GROUPS = { storage: "Storage and page cache", processor: "Processor", memory: "Memory", network: "Network",
                 gpu: "GPU", "hot rows": "Hot rows", observing: "Cost of observing" };
const LANE_STEPS = 24;
const REFRESH_MS = 5000;

// `source` is a Source; `refresh` asks again while the run goes on. Returns a function that ends it.
export async function show(root, source, { refresh = false } = {}) {
  const page = new Page(root, source);
  await page.draw();
  const timer = refresh ? setInterval(() => page.refresh(), REFRESH_MS) : null;
  return () => { clearInterval(timer); page.end(); };
}

class Page {
  constructor(root, source) {
    this.root = root;
    this.source = source;
    this.mode = "time";
    this.range = null; // rows; null: all but the first, in which workers start
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.update().catch((error) => this.tell(error));
    this.scheme.addEventListener("change", this.redraw);
    addEventListener("resize", this.redraw);
  }

  end() {
    this.scheme.removeEventListener("change", this.redraw);
    removeEventListener("resize", this.redraw);
    this.root.replaceChildren();
  }

  async draw() {
    this.root.dataset.state = "loading";
    try {
      this.head = await this.source.get("head");
      this.frame();
      await this.update();
      await this.summary();
      this.root.dataset.state = "done";
    } catch (error) {
      this.tell(error);
    }
  }

  // A run that goes on has more steps; what is on the screen stays where it is.
  async refresh() {
    if (document.hidden || this.head.outcome) return;
    const before = this.head.steps;
    this.source.forget();
    try {
      this.head = await this.source.get("head");
      if (this.head.steps === before && !this.head.outcome) return;
      this.title();
      await this.update();
      await this.summary();
    } catch (error) {
      this.tell(error);
    }
  }

  tell(error) {
    this.root.dataset.state = "failed";
    this.notice ??= el("p", { class: "error", role: "alert" });
    this.notice.textContent = error.message;
    this.root.prepend(this.notice);
  }

  title() {
    const { run, info, steps, outcome } = this.head;
    const ended = outcome ? `ended: ${outcome}` : "killed, or still running";
    const by = { ebpf: "by eBPF", procfs: "by /proc, without eBPF", timing: "by timing alone" }[info.level] ?? "in an unknown way";
    this.header.replaceChildren(el("h1", {}, run.split("/").filter(Boolean).at(-1) ?? run), el("p", { class: "muted" },
      `${run}: ${quantity(steps)} steps, on ${info.host?.hostname ?? "an unknown host"}, observed ${by}; ${ended}`));
  }

  frame() {
    this.header = el("header");
    this.title();
    this.slots = Object.fromEntries(["verdict", "step", "steps", "lanes", "groups", "more"].map((name) => [name, el("div")]));
    this.root.replaceChildren(this.header, el("main", {}, Object.values(this.slots)));
    if (!this.head.steps) {
      this.slots.steps.append(el("p", { class: "sentence" }, "No step was recorded. In a loop of your own a step is a fetch of obs.loader(...), or what obs.step() holds."));
      return;
    }
    const modes = ["time", "share"].map((mode) => el("button", { type: "button", "aria-pressed": String(mode === this.mode),
      onclick: (event) => { this.mode = mode; for (const b of modes) b.ariaPressed = String(b === event.target); this.redraw(); } },
      mode === "time" ? "time" : "share of the step"));
    const zoom = (text, change) => el("button", { type: "button", onclick: () => this.zoom(...change(...this.rows())) }, text);
    const buttons = el("div", { class: "buttons" }, modes,
      zoom("zoom in", (a, b) => [a + (b - a) / 4, b - (b - a) / 4]), zoom("zoom out", (a, b) => [a - (b - a) / 2, b + (b - a) / 2]),
      zoom("◀ earlier", (a, b) => [a - (b - a) / 2, a + (b - a) / 2]), zoom("later ▶", (a, b) => [a + (b - a) / 2, b + (b - a) / 2]),
      el("button", { type: "button", onclick: () => { this.range = null; this.redraw(); } }, "whole run"));
    this.plot = el("figure", { tabindex: 0, role: "group", "aria-label": "Steps: use the arrow keys" });
    this.slots.steps.append(section("steps", "Steps", buttons, this.plot));
    this.lanePlot = el("figure", { tabindex: 0, role: "group", "aria-label": "Loader workers" });
    if (this.head.lanes) this.slots.lanes.append(section("lanes", "Loader workers", el("p", { class: "muted", id: "lanes-of" }), this.lanePlot, el("div", { id: "workers" })));
  }

  rows() {
    const { steps } = this.head;
    return this.range ?? [steps > 2 ? 1 : 0, steps];
  }

  zoom(from, to) {
    const { steps } = this.head;
    const width = Math.min(steps, Math.max(4, Math.round(to - from)));
    const first = Math.max(0, Math.min(steps - width, Math.round(from)));
    this.range = [first, first + width];
    this.redraw();
  }

  async update() {
    if (!this.head.steps) return;
    const [from, to] = this.rows();
    const data = await this.source.rows("parts", from, to);
    if (!data.row.length) return;
    const where = this.range ? `A step of steps ${data.step[0]} to ${data.step.at(-1)}` : "A mean step, without the first";
    const [bar, numbers] = stepBar(data, this.head, where);
    this.evidence ??= el("div");
    this.slots.step.replaceChildren(section("step", "Where a step goes", bar, el("div", { class: "beside" }, numbers, this.evidence)));
    this.chart?.destroy();
    this.chart = timeline(this.plot, data, this.head, this.mode, {
      zoom: (first, last) => this.zoom(first, last), pick: (row) => this.lanesAt(row) });
    await Promise.all([this.lanesAt(this.picked ?? Math.max(0, Math.floor((from + to) / 2))), this.groups(from, to), this.heat(from, to)]);
  }

  // Steps around a row, and the batches that they consumed.
  async lanesAt(row) {
    if (!this.head.lanes) return;
    this.picked = Math.min(row, this.head.steps - 1);
    const each = this.head.lane_steps;
    const number = Math.floor(this.picked / each);
    const note = this.root.querySelector("#lanes-of");
    if (!this.source.has(`lanes/${number}`)) {
      note.textContent = "This file does not hold the batches of these steps; `trainobs report RUN --step N` tells of them.";
      this.lanePlot.replaceChildren();
      return;
    }
    const piece = await this.source.get(`lanes/${number}`);
    const length = piece.steps.step.length;
    const show = Math.min(length, this.range ? Math.max(1, Math.min(LANE_STEPS, this.range[1] - this.range[0])) : LANE_STEPS);
    const first = Math.max(0, Math.min(length - show, (this.picked % each) - Math.floor(show / 2)));
    note.textContent = `Steps ${piece.steps.step[first]} to ${piece.steps.step[first + show - 1]}. Click on a step above to see others.`;
    lanes(this.lanePlot, piece, first, first + show);
  }

  async groups(from, to) {
    const { groups, metrics } = this.head;
    const width = Math.max(320, Math.min(620, (this.root.clientWidth - 60) / 2));
    const made = await Promise.all(Object.entries(GROUPS).map(async ([group, title]) => {
      const figures = charts(await this.source.rows(group, from, to), metrics, groups[group], width);
      return figures.length ? section(group.replace(" ", "-"), title, el("div", { class: "charts" }, figures)) : null;
    }));
    this.slots.groups.replaceChildren(...made.filter(Boolean));
  }

  async heat(from, to) {
    if (this.head.ranks.length < 2) return;
    this.rankRows = await this.source.rows("ranks", from, to);
    this.drawRanks?.(this.rankRows);
  }

  async summary() {
    const summary = await this.source.get("summary");
    this.slots.verdict.replaceChildren(verdictSection(summary));
    this.evidence?.replaceChildren(...[evidence(summary, this.head.metrics)].filter(Boolean));
    this.root.querySelector("#workers")?.replaceChildren(...[workers(summary)].filter(Boolean));
    const ofRanks = this.rankRows && ranks(summary, this.head);
    const step = summary.step;
    const spread = step ? el("p", { class: "muted" },
      `Of ${step.steps} steps${step.first_is_out ? " after the first" : ""}, 95 % take less than ${duration(step.p95_ns)}; the slowest took ${duration(step.max_ns)}.`) : null;
    this.root.querySelector("#steps p.spread")?.remove();
    spread?.classList.add("spread");
    if (spread) this.plot?.before(spread);
    this.slots.more.replaceChildren(...[checkpoints(summary), ofRanks?.made, embeddings(summary), observed(summary, this.head)].filter(Boolean));
    this.drawRanks = ofRanks?.draw;
    this.drawRanks?.(this.rankRows);
  }
}

export { Source };
