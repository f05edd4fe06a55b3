// The last hour, also while no page was open: a strip for each number, and all that was noticed.
import { noted } from "./elements.js";
import { ask, clock, h, seconds, svg } from "./tools.js";

/** @typedef {{columns: string[], labels: string[], label: string, walls: number[], samples: number[][], notes: import("./types").Note[]}} Hour */
const WIDE = 720, HIGH = 30, EVERY = 5;

class LastHour extends HTMLElement {
  #lane = h("select", { "aria-label": "Lane of the last hour", change: () => void this.#ask() });
  #strips = h("div", { class: "strips" });
  #notes = h("ol", { class: "notes" });
  #count = h("summary", {}, "all that was noticed");
  #asked = -Infinity;
  #last = "";

  connectedCallback() {
    if (this.firstChild) return;
    this.append(h("section", { class: "card", "aria-label": "Last hour" }, h("div", { class: "legend" }, h("h2", {}, "Last hour"), this.#lane), this.#strips,
      h("details", { class: "plain" }, this.#count, this.#notes)));
  }

  /** @param {import("./types").Frame} frame */
  set frame(frame) {
    if (frame.at < this.#asked + EVERY) return;
    this.#asked = frame.at;
    void this.#ask();
  }

  async #ask() {
    const { ok, said } = await ask(`hour?lane=${encodeURIComponent(this.#lane.value)}`);
    if (ok) this.#show(said);
  }

  /** @param {Hour} hour */
  #show({ columns, labels, label, walls, samples, notes }) {
    const names = ["", ...labels];
    if (names.join() !== [...this.#lane.options].map((option) => option.value).join()) {
      this.#lane.replaceChildren(...names.map((name) => h("option", { value: name }, name || "all lanes")));
      this.#lane.value = label;
    }
    const of = (/** @type {string} */ name) => samples.map((row) => row[columns.indexOf(name)]);
    const more = (/** @type {number[]} */ counts) => counts.map((count, i) => Math.max(0, count - (counts[i - 1] ?? count)));
    const last = (/** @type {number[]} */ values) => values[values.length - 1] ?? 0, top = (/** @type {number[]} */ values) => Math.max(0, ...values);
    const slots = of("slots"), limits = of("limit"), waiting = of("waiting"), oldest = of("oldest"), failed = more(of("failed")), overdue = of("overdue");
    const ended = more(of("finished")).reduce((sum, one) => sum + one, 0), lost = failed.reduce((sum, one) => sum + one, 0);
    const strip = (/** @type {string} */ name, /** @type {string} */ text, /** @type {number[]} */ values, kind = "", most = top(values)) => {
      const x = (/** @type {number} */ i) => WIDE - (samples.length - 1 - i) * WIDE / 720, y = (/** @type {number} */ value) => HIGH - 1 - (HIGH - 3) * value / (most || 1);
      const marks = notes.filter((note) => note.wall > (walls[0] ?? Infinity) && ["limit", "paused", "reset", "cleared", "closing"].includes(note.kind))
        .map((note) => WIDE - (last(walls) - note.wall) / EVERY);
      const line = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      return [h("span", {}, name, h("small", {}, text)), svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}: ${text}`, class: kind },
        svg("polygon", { points: `${x(0)},${HIGH} ${line} ${WIDE},${HIGH}` }), ...marks.map((at) => svg("path", { d: `M${at.toFixed(1)} 0V${HIGH}` })))];
    };
    const since = walls.length ? `since ${clock(walls[0])}` : "";
    this.#strips.replaceChildren(
      ...strip("slots", `${last(slots)} now, up to ${top(slots)} of ${last(limits) < 0 ? "∞" : last(limits)}`, slots, "", Math.max(top(slots), top(limits))),
      ...strip("waiting", `${last(waiting)} now, up to ${top(waiting)}`, waiting, "grey"),
      ...strip("oldest wait", `${seconds(last(oldest))} now, up to ${seconds(top(oldest))}`, oldest, "grey"),
      ...strip("failed", `${lost} of ${ended} that ended ${since}`, failed, "red"),
      ...strip("overdue", `${last(overdue)} now, up to ${top(overdue)}`, overdue, "red"),
      h("span", {}), h("p", { class: "axis" }, ...["−60 min", "−45", "−30", "−15", "now"].map((text) => h("small", {}, text))));
    const seen = notes.map((note) => note.seq).join();
    if (seen === this.#last) return;
    this.#last = seen;
    this.#count.replaceChildren(`all that was noticed: ${notes.length}`);
    this.#notes.replaceChildren(...noted(notes));
  }
}

customElements.define("lanes-hour", LastHour);
