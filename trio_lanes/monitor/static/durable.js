// The store of durable lanes: instances, waiting jobs and why they wait, dead letters by error.
import { verdict } from "./elements.js";
import { Panel, h, limit, seconds, table, tell, to } from "./tools.js";

/** @typedef {import("./types").View} View */

/** How the commits of an instance go. @param {import("./types").Activity | null} said */
function committed(said) {
  if (said === null) return "";
  const { batch, longest_wait: wait, image_age: age, commits_a_second: rate, late_share: late } = said;
  return [rate !== null && `${rate.toFixed(1)} a second`, late !== null && `${(100 * late).toFixed(0)} % late`, wait && `longest wait ${seconds(wait)}`,
    batch && `batch ${batch}`, age !== null && `image ${seconds(age)} old`].filter(Boolean).join(" · ");
}

class Durable extends Panel {
  operates = false;

  /** @param {View} view */
  set view(view) {
    if (view.error !== undefined && view.age === undefined) this.failed = view.error;
    else this.#show({ ...view, at: Math.round(view.at / 5), operates: this.operates }, () => this.#parts(view));
  }

  /** Say why the store cannot be shown. @param {string} error */
  set failed(error) {
    this.#show(error, () => [h("p", { class: "error" }, error)]);
  }

  /** @param {unknown} data @param {() => (Node | string)[]} parts */
  #show(data, parts) {
    this.fill(data, () => [h("section", { class: "card", "aria-label": "Durable lanes" }, h("h2", {}, "Durable lanes"), ...parts())]);
  }

  /** @param {View} view */
  #parts({ error, age, at, health, left_out, lanes, ended, instances, locks, quotas, paused, schedules, dead, more_dead: more, totals, jobs }) {
    const places = new Map(instances.map((one) => [one.id, `${one.host} ${one.pid}`]));
    const left = (/** @type {number | null} */ until, /** @type {string} */ before, after = "") => until === null ? "" : before + seconds(Math.max(0, until - at)) + after;
    const listed = (/** @type {string} */ title, /** @type {(Node | string)[][]} */ lines) => lines.length ? [h("h3", {}, title), h("ul", { class: "notes" }, ...lines.map((line) => h("li", {}, ...line)))] : [];
    // The requests for a lock or a quota, of which there are more than are listed.
    const asked = (/** @type {import("./types").Asked[]} */ requests, /** @type {number} */ all) => [...requests.flatMap((one, i) => {
      const where = places.get(one.instance) ?? "an instance that is gone";
      return [i ? ", " : "", one.job === null ? `a task on ${where}` : to("stored", one.job, `job ${one.job}`), ` for ${seconds(Math.max(0, at - one.since))}`];
    }), all > requests.length ? ` and ${all - requests.length} more` : ""];
    const waiting = (/** @type {{waiting: number, waiters: import("./types").Asked[]}} */ one) => one.waiting ? [`; ${one.waiting} waiting: `, ...asked(one.waiters, one.waiting)] : [];
    return [
      ...(error === undefined ? verdict({ health, left_out }) : [h("p", { class: "error" }, `${error}; all below is as of ${seconds(age ?? 0)} ago`)]),
      table("Lanes of the store", ["lane", "running", "waiting", "parked", "dead"], Object.entries(lanes).map(([name, lane]) =>
        [name + (lane.paused ? " paused" : "") + (lane.unhandled ? ` · ${lane.unhandled} without handler` : ""),
          `${lane.running} of ${limit(lane.concurrency)}`, `${lane.waiting}`, `${lane.parked}`, `${lane.dead}`])),
      table("Instances", ["instance", "running", "by lane", "commits", "since"], instances.map((one) =>
        [`${one.host} ${one.pid}`, `${one.running}`, Object.entries(one.lanes).sort().map(([name, runs]) => `${name} ${runs}`).join(" · ") || "–", committed(one.activity) || "–", seconds(at - one.since)])),
      ...listed("Ended jobs", Object.entries(ended).map(([name, ends]) => [`${name}: ` + Object.entries(ends).map(([state, count]) => `${count} ${state}`).join(" · ")])),
      ...listed("Locks", locks.map((lock) => [`${lock.key}: held by `, ...asked(lock.holders, lock.holding), ...waiting(lock)])),
      ...listed("Quotas", quotas.map((quota) => [`${quota.name}: ` + quota.levels.map(({ used, limit: most, full_at: full }) =>
        `${used} of ${most.limit} ${most.unit} ${typeof most.per === "string" ? `a ${most.per} in ${most.timezone}` : `in ${seconds(most.per)}`} used` + left(full, ", replenished in ")).join("; "), ...waiting(quota)])),
      ...listed("Paused sessions", Object.entries(paused).map(([session, until]) => [session + left(until, " — ", " more")])),
      ...listed("Schedules", schedules.map((one) => [one.name + (one.next === null ? " paused" : left(one.next, " — next in ")) +
        (one.last === null ? "" : `, last ${seconds(Math.max(0, at - one.last))} ago`) + (one.skipped ? `, ${one.skipped} skipped` : "")])),
      ...listed(`Dead letters: ${totals.dead}`, [...dead.map((group) => [
        h("span", { class: "error" }, `${group.count} × ${group.error} in ${group.handler} `, h("small", {}, group.example)),
        ...(this.operates ? [" ", h("button", { type: "button", "data-key": `${group.handler} ${group.error}`, click: () => tell(this, "lanes-act", { do: "requeue",
          handler: group.handler, error: group.error, seen: group.count,
          ask: `Queue ${group.count} dead jobs of ${group.handler} again, which ended in ${group.error}? This cannot be undone.` }) }, "Requeue…")] : [])]),
      ...(more > 0 ? [[`and ${more} more, which are shown when those above are gone`]] : [])]),
      ...listed("Waiting jobs", jobs.map((job) => [to("stored", job.id, `${job.id} ${job.name}`), ` ${job.why ?? job.state}` + left(job.until, ", ", " more"), h("small", {},
        [job.session, job.lane, `submitted ${seconds(Math.max(0, at - job.submitted_at))} ago`, job.attempt && `attempt ${job.attempt}`, job.crashes && `${job.crashes} crashes`].filter(Boolean).join(" · "))])),
    ];
  }
}

customElements.define("lanes-durable", Durable);
export { Durable };
