// Keeps an element up to date with something that goes on, and says in it what went wrong until it is well again.

import { el, shown } from "./dom.js";

const REFRESH_MS = 5000;

export class Following {
  // `look` draws what is new: at once and, with `refresh`, every few seconds, never twice at a time.
  constructor(root, look, refresh) {
    this.root = root;
    this.look = look;
    this.notice = el("p", { class: "error", role: "alert" });
    this.ended = this.failed = this.busy = false;
    root.dataset.state = "loading";
    this.again();
    this.timer = refresh ? setInterval(() => { if (!document.hidden) this.again(); }, REFRESH_MS) : null;
  }

  async again() {
    if (this.busy) return;
    this.busy = true;
    await this.attempt(() => this.look(this));
    this.busy = false;
  }

  async attempt(work) {
    try {
      await work();
      if (this.ended) return;
      this.failed = false;
      this.notice.remove();
      this.root.dataset.state = "done";
    } catch (error) {
      if (!this.ended) this.tell(error);
    }
  }

  tell(error) {
    this.failed = true;
    this.root.dataset.state = "failed";
    const text = error.message.split("\n").map(shown).join("\n");
    if (this.notice.textContent !== text) this.notice.textContent = text; // said aloud once
    if (this.root.firstChild !== this.notice) this.root.prepend(this.notice);
  }

  end() {
    this.ended = true;
    clearInterval(this.timer);
    delete this.root.dataset.state;
    this.root.replaceChildren();
  }
}
