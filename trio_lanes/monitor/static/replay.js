// What another limit would have done in the last minutes: a slider, and the waits before and after.
import { ask, h, say, seconds, table } from "./tools.js";

/** @typedef {{p50: number, p95: number, longest: number, per_second: number}} Waits */

class Replay extends HTMLElement {
  #lane = h("select", { "aria-label": "Lane", change: () => this.#reset() });
  #limit = h("input", { type: "range", min: "1", "aria-label": "Limit", input: () => this.#show(), change: () => void this.#ask() });
  #value = h("output");
  #answer = h("div", { "aria-live": "polite" });
  /** @type {Map<string, number>} */
  #limits = new Map();

  connectedCallback() {
    if (this.firstChild) return;
    this.append(h("section", { class: "card", "aria-label": "What if" }, h("h2", {}, "What if the limit had been …"),
      h("p", {}, this.#lane, " ", this.#limit, " ", this.#value), this.#answer));
  }

  /** @param {import("./types").Frame} frame */
  set frame(frame) {
    const rows = frame.lanes.filter((row) => row.limit !== null), names = rows.map((row) => row.name);
    this.#limits = new Map(rows.map((row) => [row.name, row.template ? (row.limit ?? 1) / row.alive : row.limit ?? 1]));
    if (names.join() === [...this.#lane.options].map((option) => option.value).join()) return;
    const kept = this.#lane.value;
    this.#lane.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(kept)) this.#lane.value = kept; else this.#reset();
  }

  #reset() {
    const limit = this.#limits.get(this.#lane.value) ?? 1;
    this.#limit.max = String(Math.max(8, 3 * limit));
    this.#limit.value = String(limit);
    this.#show();
  }

  #show() { say(this.#value, this.#limit.value); }

  async #ask() {
    const asked = `lane=${encodeURIComponent(this.#lane.value)}&limit=${this.#limit.value}`;
    this.#answer.replaceChildren("replaying …");
    const { said: found } = await ask(`replay?${asked}`);
    if (found.error !== undefined) { this.#answer.replaceChildren(found.error); return; }
    const row = (/** @type {string} */ name, /** @type {Waits} */ waits) => [name, seconds(waits.p50), seconds(waits.p95), seconds(waits.longest), waits.per_second.toFixed(2)];
    const title = `${found.jobs} jobs of ${seconds(found.seconds)}`;
    this.#answer.replaceChildren(h("p", {}, title), table(title, ["limit", "p50", "p95", "longest", "jobs/s"], [row("as it was", found.replayed), row(`with ${this.#limit.value}`, found.changed)]));
  }
}

customElements.define("lanes-replay", Replay);
