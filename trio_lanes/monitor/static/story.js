// The story of one job: what it is, why it waits as a tree and as a graph, and what would help.
import { called, h, seconds, svg, tell } from "./tools.js";

/** @typedef {import("./types").Job} Job */
/** @typedef {import("./types").Reason} Reason */
/** @typedef {import("./types").Told} Told */

class Story extends HTMLElement {
  operates = false;
  /** @type {number | null} */
  picked = null;
  last = "";

  connectedCallback() {
    if (this.firstChild) return;
    this.box = h("section", { class: "card story", "aria-label": "Job" });
    this.append(this.box);
    this.clear("Choose a job: on the time line, or by its session.");
  }

  /** @param {string} text */
  clear(text) {
    this.last = "";
    this.box?.replaceChildren(h("h2", {}, "Job"), h("p", {}, text));
  }

  /** @param {Told} told */
  set told(told) {
    // Ages are rounded, so that the panel is not built anew, and no focus is lost, at each frame.
    const now = JSON.stringify({ ...told, at: Math.round(told.at) });
    if (now === this.last) return;
    this.last = now;
    const focus = /** @type {HTMLElement | null} */ (this.contains(document.activeElement) ? document.activeElement : null)?.dataset.key;
    const facts = h("dl", {});
    for (const [name, text] of this.#facts(told)) facts.append(h("dt", {}, name), h("dd", {}, text));
    /** @type {Element[]} */
    const parts = [h("h2", {}, `Job ${told.id} · ${told.name}`), facts];
    if (told.why.length) {
      parts.push(h("h3", {}, told.state === "waiting" ? "Why does it wait?" : "What does it wait for?"), this.#tree(told.why, told.at), this.#graph(told));
    } else if (told.too_long) parts.push(h("p", {}, "Thousands of jobs wait in this lane: they are not listed."));
    if (told.help.length) parts.push(h("p", { class: "help" }, h("strong", {}, "What would help: "), told.help.join(" · ")));
    if (this.operates && (told.state === "waiting" || told.state === "running")) parts.push(this.#buttons(told));
    this.box?.replaceChildren(...parts);
    if (focus) /** @type {HTMLElement | null} */ (this.querySelector(`[data-key="${focus}"]`))?.focus();
  }

  /** @param {Told} told @returns {[string, string][]} */
  #facts(told) {
    const since = told.since ?? told.submitted;
    const age = told.state === "waiting" ? `waiting in ${told.lane} for ${seconds(told.at - since)}`
      : told.state === "running" ? `running in ${told.lane} for ${seconds(told.at - (told.started ?? told.at))}, slot ${told.slot ?? "none"}${told.cancel ? ", cancelled: its body still runs" : ""}`
      : `${told.state} after ${seconds((told.finished ?? told.at) - (told.started ?? told.submitted))}`;
    /** @type {[string, string][]} */
    const facts = [["state", age]];
    if (told.place !== null) facts.push(["place", `${told.place} of ${told.line}`]);
    else if (told.state === "waiting") facts.push(["place", told.session === null ? "not due yet, or far behind" : "in its session"]);
    const of = told.session === null ? "no session" : `session ${told.session}`;
    facts.push(["from", told.priority === undefined ? of : `${of} · owner ${told.owner ?? "none"} · priority ${told.priority}`]);
    if (told.parent) facts.push(["parent", called(told.parent)]);
    return facts;
  }

  /** @param {Reason[]} reasons @param {number} now @returns {HTMLElement} */
  #tree(reasons, now) {
    return h("ul", { class: "why" }, ...reasons.map((reason) => {
      const until = reason.until === null ? "" : ` — ${seconds(reason.until - now)} more`;
      const item = h("li", {}, h("strong", {}, reason.text), until);
      if (reason.jobs.length) {
        item.append(h("ul", {}, ...reason.jobs.map((job) => {
          const age = job.state === "running" ? `runs ${seconds(now - (job.started ?? now))}${job.cancel ? ", cancelled" : ""}` : job.state === "waiting" ? `waits ${seconds(now - job.submitted)}` : job.state;
          const pick = h("button", { type: "button", class: "link", "data-key": `job${job.id}`, click: () => tell(this, "lanes-pick", { id: job.id, text: called(job) }) }, called(job));
          const line = h("li", { class: job.cancel ? "warning" : "" }, pick, ` ${age}`);
          if (job.why.length) line.append(this.#tree(job.why, now));
          return line;
        }), ...(reason.more > 0 ? [h("li", {}, `and ${reason.more} more`)] : [])));
      }
      return item;
    }));
  }

  /** @param {Told} told */
  #graph(told) {
    /** @type {{x: number, y: number, text: string, kind: string}[]} */
    const nodes = [];
    /** @type {[number, number, number, number][]} */
    const lines = [];
    let y = 14;
    for (const reason of told.why.slice(0, 6)) {
      const holders = reason.jobs.slice(0, 5), top = y;
      for (const job of holders) {
        nodes.push({ x: 215, y, text: called(job), kind: job.cancel ? "bad" : job.state });
        y += 24;
      }
      if (!holders.length) y += 24;
      const middle = (top + y - 24) / 2;
      nodes.push({ x: 105, y: middle, text: reason.until === null ? (reason.kind === "session" ? reason.lane : `${reason.kind} ${reason.lane}`) : `${reason.kind} ${seconds(reason.until - told.at)}`, kind: reason.kind });
      holders.forEach((_, i) => lines.push([195, middle, 215, top + i * 24]));
      lines.push([85, -1, 105, middle]);
      y += 6;
    }
    const middle = Math.max(14, (y - 20) / 2);
    nodes.push({ x: 0, y: middle, text: called(told), kind: "self" });
    return svg("svg", { class: "graph", viewBox: `0 0 310 ${Math.max(y, 30)}`, role: "img", "aria-label": `Graph of waits of job ${told.id}: the list above in a drawing` },
      ...lines.map(([x1, y1, x2, y2]) => svg("path", { d: `M${x1} ${y1 < 0 ? middle : y1}C${(x1 + x2) / 2} ${y1 < 0 ? middle : y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` })),
      ...nodes.map((node) => svg("g", { class: `node ${node.kind}` }, svg("rect", { x: node.x + 0.5, y: node.y - 10, width: 90, height: 20, rx: 4 }),
        svg("text", { x: node.x + 45, y: node.y + 4 }, node.text.length > 15 ? `${node.text.slice(0, 14)}…` : node.text))));
  }

  /** @param {Told} told */
  #buttons(told) {
    const act = (/** @type {string} */ key, /** @type {string} */ text, /** @type {object} */ action, danger = false) =>
      h("button", { type: "button", "data-key": key, class: danger ? "danger" : "", click: () => tell(this, "lanes-act", action) }, text);
    const buttons = told.state === "waiting"
      ? [act("up", "Priority +1", { do: "priority", job: told.id, value: (told.priority ?? 0) + 1 }),
        act("down", "Priority −1", { do: "priority", job: told.id, value: (told.priority ?? 0) - 1 })] : [];
    buttons.push(act("cancel", "Cancel job…", { do: "cancel", job: told.id, seen: told.state,
      ask: `Cancel job ${told.id} ${told.name}, which is ${told.state}? This cannot be undone.` }, true));
    return h("p", { class: "buttons" }, ...buttons);
  }
}

customElements.define("lanes-story", Story);
export { Story };
