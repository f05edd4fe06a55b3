// The panel of what was chosen: a job and why it waits, the jobs of a session or a lane, or what was found.
import { Panel, called, h, lasted, seconds, table, tell, to } from "./tools.js";

/** @typedef {import("./types").Line} Line */
/** @typedef {import("./types").JobFacts} JobFacts */

class Story extends Panel {
  operates = false;

  connectedCallback() {
    if (this.firstChild) return;
    this.box = h("section", { class: "card story", "aria-label": "Chosen" });
    this.append(this.box);
    this.clear();
  }

  /** @param {string} title @param {string} text */
  clear(title = "Job", text = "Choose a job, a session or a lane, or search for one.") {
    this.#fill(title, text, () => [h("p", {}, text)]);
  }

  /** Show a job. @param {JobFacts} job */
  set job(job) {
    // Ages are rounded, so that the panel is not built anew at each frame.
    this.#fill(`Job ${job.id} · ${job.name}`, { ...job, at: Math.round(job.at), operates: this.operates }, () => {
      const facts = h("dl", {});
      for (const [name, ...parts] of this.#facts(job)) facts.append(h("dt", {}, name), h("dd", {}, ...parts));
      /** @type {Element[]} */
      const parts = [facts];
      if (job.roots.length) parts.push(h("h3", {}, job.state === "waiting" ? "Why does it wait?" : "What does it wait for?"), ...job.roots.map((root) => way(root)));
      parts.push(...spent(job.waits));
      if (this.operates && (job.state === "waiting" || job.state === "running")) parts.push(this.#buttons(job));
      return parts;
    });
  }

  /** Show a job of the store. @param {import("./types").StoredFacts} job */
  set stored(job) {
    this.#fill(`Job ${job.id} of the store · ${job.name}`, { ...job, at: Math.round(job.at), operates: this.operates }, () => {
      /** @type {[string, string | Node][]} */
      const facts = [["state", job.state + (job.why ? `: ${job.why}` : "") + (job.until === null ? "" : `, ${seconds(Math.max(0, job.until - job.at))} more`)], ["lane", job.lane],
        ["session", job.session ?? "none"], ["attempts", `${job.attempt}${job.crashes ? `, ${job.crashes} crashes` : ""}`]];
      if (job.error) facts.push(["error", job.error]);
      if (job.children) facts.push(["children", `${job.children[0]} of ${job.children[1]} ended`]);
      const dead = job.state === "dead" || job.state === "failed", act = (/** @type {string} */ verb, /** @type {string} */ text) =>
        h("p", { class: "buttons" }, h("button", { type: "button", "data-key": verb, click: () => tell(this, "lanes-act", { do: verb, job: job.id }) }, text));
      return [h("dl", {}, ...facts.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])), ...job.roots.map((root) => way(root, "stored")), ...spent(job.waits),
        ...(this.operates && dead ? [act("retry", "Queue again")] : []), ...(this.operates && job.state === "parked" ? [act("promote", "Make it due now")] : []),
        h("h3", {}, "Attempts"), h("ul", { class: "jobs" }, ...job.history.map((one) => h("li", { class: one.error ? "warning" : "" },
          `${one.number}: ${one.how ?? "runs"} after ${seconds((one.ended_at ?? job.at) - one.started_at)}, begun ${seconds(Math.max(0, job.at - one.started_at))} ago`, h("small", {}, [`${one.host} ${one.pid}`, one.error].filter(Boolean).join(" · "))))),
        .../** @type {const} */ (["payload", "outcome"]).flatMap((name) => job[name] ? [h("h3", {}, name), h("pre", { tabindex: "0" }, job[name])] : [])];
    });
  }

  /** Show the jobs of a session or of a lane. @param {"session" | "lane"} kind @param {import("./types").Listed} found */
  list(kind, found) {
    const { key, waiting, active, paused, at } = found, tried = (found.tried ?? []).slice(-8).reverse();
    this.#fill(`${kind === "session" ? "Session" : "Lane"} ${key}`, { ...found, at: Math.round(at) }, () => [
      h("p", {}, `${waiting} waiting · ${active} running${paused ? " · paused" : ""}`), ...listed(found.jobs, at),
      ...(tried.length ? [h("h3", {}, "Limits that it has tried"), h("ul", { class: "jobs" }, ...tried.map((one) => h("li", {}, String(one.limit), h("small", {}, `${one.reason}, ${seconds(at - one.at)} ago`))))] : []),
      ...(found.ended ? [...spent(found.ended.waits, found.ended.recorded), ...failures(found.ended, at)] : []),
      ...(waiting + active > found.jobs.length ? [h("p", { class: "soft" }, `The first ${found.jobs.length} are listed.`)] : [])]);
  }

  /** Show what was found. @param {string} text @param {import("./types").Found} found @param {number} at */
  found(text, found, at) {
    const names = (/** @type {"session" | "lane"} */ kind, /** @type {string[]} */ keys) =>
      keys.length ? [h("h3", {}, `${kind}s`), h("ul", { class: "notes" }, ...keys.map((key) => h("li", {}, to(kind, key, key))))] : [];
    const whole = found.looked === found.there, full = found.jobs.length === found.most;
    const scope = full ? `The first ${found.most} jobs are listed: ${found.looked} of ${found.there} were looked at.`
      : `${found.jobs.length || "No"} ${found.jobs.length === 1 ? "job" : "jobs"} of the ${whole ? `${found.there} that wait or run` : `${found.looked} that were looked at; ${found.there} wait or run`}.`;
    this.#fill(`Found: ${text}`, found, () => [h("p", { role: "status" }, scope), ...names("lane", found.lanes), ...names("session", found.sessions), ...listed(found.jobs, at),
      ...(found.ended.length ? [h("h3", {}, "ended"), ...listed(found.ended, at)] : [])]);
  }

  /** Show what has ended. @param {string} title @param {import("./types").Ended} found */
  ended(title, found) {
    const { at, outcomes, names } = found;
    const counts = Object.entries(outcomes).map(([state, count]) => `${count} ${state}`).join(" · ");
    this.#fill(title, { ...found, at: Math.round(at / 5) }, () => [
      h("p", {}, found.since === null ? "No job has ended that the monitor has seen." : `The last ${found.recorded} that were seen, since ${seconds(at - found.since)} ago: ${counts}.`),
      ...spent(found.waits, found.recorded), ...failures(found, at), ...(names.length ? [h("h3", {}, "By name"), table("Ended jobs by name", ["name", "jobs", "wait p50 · p95", "run p50 · p95"], names.map(({ name, count, quantiles: q }) =>
        [to("name", name, name), String(count), q ? `${seconds(q[0])} · ${seconds(q[1])}` : "–", q ? `${seconds(q[2])} · ${seconds(q[3])}` : "–"]))] : []),
      ...(found.jobs.length ? [h("h3", {}, "The last that failed"), ...listed(found.jobs, at)] : [])]);
  }

  /** @param {string} title @param {unknown} data @param {() => Element[]} parts */
  #fill(title, data, parts) {
    if (this.box) this.fill([title, data], () => [h("h2", { tabindex: "-1", "data-key": "title" }, title), ...parts()], this.box);
  }

  /** Whoever has chosen reads on here. */
  enter() { this.querySelector("h2")?.focus(); }

  /** @param {JobFacts} job @returns {[string, ...(string | Node)[]][]} */
  #facts(job) {
    /** @type {[string, ...(string | Node)[]][]} */
    const facts = [["state", `${lasted(job, job.at)}${job.state === "running" ? `, slot ${job.slot ?? "none"}` : ""}`],
      ["lane", to("lane", job.label, job.lane)]];
    if (job.place !== null) facts.push(["place", `${job.place} of ${job.line}`]);
    else if (job.state === "waiting") facts.push(["place", job.session === null ? "not due yet, or far behind" : "in its session"]);
    facts.push(["from", job.session === null ? "no session" : to("session", job.session, job.session),
      job.priority === undefined ? "" : ` · owner ${job.owner ?? "none"} · priority ${job.priority}`]);
    if (job.parent) facts.push(["parent", to("job", job.parent.id, called(job.parent))]);
    if (job.children) facts.push(["children", `${job.children[0]} of ${job.children[1]} ended`]);
    return facts;
  }

  /** @param {JobFacts} job */
  #buttons(job) {
    const act = (/** @type {string} */ key, /** @type {string} */ text, /** @type {object} */ action, danger = false) =>
      h("button", { type: "button", "data-key": key, class: danger ? "danger" : "", click: () => tell(this, "lanes-act", action) }, text);
    const buttons = job.state === "waiting"
      ? [act("up", "Priority +1", { do: "priority", job: job.id, value: (job.priority ?? 0) + 1 }),
        act("down", "Priority −1", { do: "priority", job: job.id, value: (job.priority ?? 0) - 1 })] : [];
    buttons.push(act("cancel", "Cancel job…", { do: "cancel", job: job.id, seen: job.state,
      ask: `Cancel job ${job.id} ${job.name}, which is ${job.state}? This cannot be undone.` }, true));
    return h("p", { class: "buttons" }, ...buttons);
  }
}

/** A list of jobs, each with its lane, its age and its reason. @param {Line[]} jobs @param {number} now @returns {Element[]} */
export function listed(jobs, now) {
  if (!jobs.length) return [];
  return [h("ul", { class: "jobs" }, ...jobs.map((job) => h("li", { class: job.cancel || job.state === "failed" ? "warning" : "" },
    to("job", job.id, `${job.id} ${job.name}`), ` ${lasted(job, now)}`,
    h("small", {}, [job.session, job.lane, job.reason].filter(Boolean).join(" · ")))))];
}

/** The failures by error. @param {import("./types").Ended} found @param {number} now @returns {Element[]} */
function failures(found, now) {
  if (!found.groups.length) return [];
  return [h("h3", {}, `Failed: ${found.failed}, since ${seconds(now - (found.failed_since ?? now))} ago`), h("ul", { class: "jobs" }, ...found.groups.map((group) => h("li", {},
    h("strong", {}, `${group.count} × `), to("error", group.error, group.error), " in ", to("name", group.name, group.name), ` of ${group.label}`,
    h("small", {}, "last: ", to("job", group.last.id, String(group.last.id)), ` ${lasted(group.last, now)} · ${group.last.reason}`),
    ...(group.trace ? [h("details", { class: "plain", "data-key": `trace ${group.error} ${group.name}` }, h("summary", {}, "last traceback"), h("pre", { tabindex: "0" }, group.trace))] : []))))];
}

/** Where waits went, by cause: a bar and its words. @param {Record<string, number> | undefined} waits @param {number} [jobs] that have ended @returns {Element[]} */
function spent(waits, jobs) {
  const parts = Object.entries(waits ?? {}).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]), sum = parts.reduce((all, [, value]) => all + value, 0);
  if (!sum) return [];
  const pieces = parts.map(([cause, value]) => { const piece = h("i", { class: `by-${cause}` }); piece.style.width = `${100 * value / sum}%`; return piece; });
  return [h("h3", {}, jobs === undefined ? "Where its wait went" : `Where the waits of ${jobs} ended jobs went`), h("span", { class: "bar", "aria-hidden": "true" }, ...pieces),
    h("ul", { class: "causes" }, ...parts.map(([cause, value]) => h("li", {}, h("i", { class: `state by-${cause}` }), `${cause} ${seconds(value)}`)))];
}

/** The way from a job to the root of its wait. @param {import("./types").Root} root */
function way(root, kind = "job") {
  return h("p", { class: "help" }, h("strong", {}, String(root.job), ...root.chain.flatMap(([id, relation]) => [" ← ", to(kind, id, String(id)), ` ${relation}`]), ` ← ${root.text}`),
    ...(root.jobs.length ? [h("br"), "It is held by ", ...root.jobs.flatMap((id, i) => [i ? ", " : "", to(kind, id, String(id))])] : []),
    h("br"), root.advice === null ? "Only time helps." : `What would help: ${root.advice}`);
}

customElements.define("lanes-story", Story);
export { Story };
