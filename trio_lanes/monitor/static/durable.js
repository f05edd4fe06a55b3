// The store of durable lanes: instances, waiting jobs and why they wait, dead letters by error.
import { verdict } from "./elements.js";
import { focusIn, h, limit, seconds, tell, to } from "./tools.js";

/** @typedef {import("./types").View} View */

class Durable extends HTMLElement {
  operates = false;
  last = "";

  /** @param {View} view */
  set view(view) {
    const now = JSON.stringify(view, (key, value) => key === "age" || key === "left" ? undefined : value);
    if (now === this.last) return;
    this.last = now;
    const refocus = focusIn(this);
    const card = h("section", { class: "card", "aria-label": "Durable lanes" }, h("h2", {}, "Durable lanes"));
    this.replaceChildren(card);
    if (view.error !== undefined) { card.append(h("p", { class: "error" }, view.error)); return; }
    card.append(verdict(view.health, "stored"), this.#table("Lanes of the store", ["lane", "running", "waiting", "parked", "dead"], view.lanes.map((lane) =>
      [lane.name + (lane.paused ? " paused" : "") + (lane.unhandled ? ` · ${lane.unhandled} without handler` : ""),
        `${lane.running} of ${limit(lane.limit)}`, String(lane.waiting), String(lane.parked), String(lane.dead)])));
    const lanes = [...new Set(view.instances.flatMap((one) => Object.keys(one.lanes)))].sort();
    card.append(this.#table("Instances", ["instance", "running", "since", ...lanes], view.instances.map((one) =>
      [`${one.host} ${one.pid}`, String(one.running), seconds(one.age), ...lanes.map((lane) => String(one.lanes[lane] ?? 0))])));
    if (view.locks.length) card.append(h("h3", {}, "Locks"), h("ul", { class: "notes" }, ...view.locks.map((lock) => h("li", {},
      `${lock.name}: held by `, ...asked(lock.holders, lock.holding), ...(lock.waiting ? [`; ${lock.waiting} waiting: `, ...asked(lock.waiters, lock.waiting)] : [])))));
    if (view.quotas.length) card.append(h("h3", {}, "Quotas"), h("ul", { class: "notes" }, ...view.quotas.map((quota) => h("li", {},
      `${quota.name}: ` + quota.levels.map((level) => `${level.used} of ${level.limit} ${level.unit} in ${seconds(level.per)} used` +
        (level.left === null ? "" : `, replenished in ${seconds(level.left)}`)).join("; "), ...(quota.waiting ? [`; ${quota.waiting} waiting: `, ...asked(quota.waiters, quota.waiting)] : [])))));
    if (view.paused.length) card.append(h("h3", {}, "Paused sessions"), h("ul", { class: "notes" }, ...view.paused.map((one) => h("li", {},
      one.session + (one.left === null ? "" : ` — ${seconds(one.left)} more`)))));
    if (view.dead.length) card.append(h("h3", {}, `Dead letters: ${view.totals.dead}`), h("ul", { class: "notes" }, ...view.dead.map((group) => {
      const line = h("li", { class: "error" }, `${group.count} × ${group.error} in ${group.handler} `, h("small", {}, group.example));
      if (this.operates) line.append(" ", h("button", { type: "button", "data-key": `${group.handler} ${group.error}`, click: () => tell(this, "lanes-act", { do: "requeue",
        handler: group.handler, error: group.error, seen: group.count,
        ask: `Queue ${group.count} dead jobs of ${group.handler} again, which ended in ${group.error}? This cannot be undone.` }) }, "Requeue…"));
      return line;
    }), ...(view.more_dead > 0 ? [h("li", {}, `and ${view.more_dead} more`)] : [])));
    if (view.jobs.length) card.append(h("h3", {}, "Waiting jobs"), h("ul", { class: "notes" }, ...view.jobs.map((job) => h("li", {},
      to("stored", job.id, `${job.id} ${job.session ?? job.name}`),
      ` ${job.why_parked ?? job.state}, attempt ${job.attempt}` + (job.crashes ? `, ${job.crashes} crashes` : "")))));
    refocus();
  }

  /** @param {string} caption @param {string[]} head @param {string[][]} rows */
  #table(caption, head, rows) {
    return h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...rows.map(([name, ...cells]) => h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((text) => h("td", {}, text))))));
  }
}

/** Requests for a lock or a quota, of which there are more than are listed. @param {import("./types").Asked[]} requests @param {number} all */
function asked(requests, all) {
  const listed = requests.flatMap((one, at) => [at ? ", " : "", one.job === null ? `a task on ${one.where}` : to("stored", one.job, `job ${one.job}`),
    ` for ${seconds(one.age)}`]);
  return all > requests.length ? [...listed, ` and ${all - requests.length} more`] : listed;
}

customElements.define("lanes-durable", Durable);
export { Durable };
