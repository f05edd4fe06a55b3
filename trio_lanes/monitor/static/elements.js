// The custom elements of numbers: totals, lanes, what is noticed, sessions. Each takes `frame`.
import { Panel, choice, clock, h, limit, say, seconds, svg, tell, to } from "./tools.js";

/** @typedef {import("./types").Frame} Frame */
/** @typedef {import("./types").Row} Row */
/** @typedef {import("./types").Rate} Rate */

const POINTS = 240; // of a line: a minute

class Totals extends HTMLElement {
  /** @type {{at: number, finished: number}[]} */
  counts = [];

  connectedCallback() {
    if (this.firstChild) return;
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", "Totals");
    /** @type {Map<string, {value: Element, under: Element, line: Element, past: number[]}>} */
    this.cards = new Map();
    for (const name of ["Running", "Waiting", "Oldest wait", "Wait p50 · p95", "Finished", "Failed"]) {
      const value = h("strong"), under = h("small");
      const line = svg("polyline", { points: "" });
      const drawn = svg("svg", { viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
      this.append(h("div", { class: "card" }, name === "Failed" || name === "Finished" ? to("ended", "", name) : h("span", {}, name), drawn, value, under));
      this.cards.set(name, { value, under, line, past: [] });
    }
  }

  /** @param {Frame} frame */
  set frame(frame) {
    const t = frame.totals, q = t.quantiles;
    const { counts } = this;
    counts.push({ at: frame.at, finished: t.finished });
    while (counts.length > 2 && counts[0].at < frame.at - 5) counts.shift();
    const past = counts[0], passed = frame.at - past.at;
    const rate = passed > 0 ? (t.finished - past.finished) / passed : 0;
    const wait = t.oldest;
    this.#show("Running", t.active, String(t.active), `${t.slots} of ${limit(t.limit)} slots · ${t.lent} lent`);
    this.#show("Waiting", t.waiting, String(t.waiting), `in ${t.sessions} sessions` + (t.parked === null ? "" : ` · ${t.parked} parked`));
    this.#show("Oldest wait", wait, seconds(wait), t.oldest_lane || "–");
    this.#show("Wait p50 · p95", q ? q[1] : 0, q ? `${seconds(q[0])} · ${seconds(q[1])}` : "–", "over 5 min");
    this.#show("Finished", rate, `${rate.toFixed(rate < 10 ? 1 : 0)} /s`,
      q ? `run p50 ${seconds(q[2])} · p95 ${seconds(q[3])}` : `${t.finished} in all`);
    this.#show("Failed", t.failed, String(t.failed), `${t.cancelled} cancelled · ${t.abandoned} given up`);
  }

  /** @param {string} name @param {number} number @param {string} text @param {string} under */
  #show(name, number, text, under) {
    const card = this.cards?.get(name);
    if (!card) return;
    say(card.value, text);
    say(card.under, under);
    const { past } = card;
    past.push(number);
    if (past.length > POINTS) past.shift();
    const most = Math.max(...past), least = Math.min(...past, 0), range = most - least || 1;
    const step = 60 / (POINTS - 1), from = 60 - (past.length - 1) * step;
    card.line.setAttribute("points", past.map((value, i) =>
      `${(from + i * step).toFixed(1)},${(19 - 18 * (value - least) / range).toFixed(1)}`).join(" "));
  }
}

const MOST_SLOTS = 24, HEADS = ["lane", "slots", "line: in sessions ▨ · in lane ▮ · held by rate ▬", "oldest · p95", "rate left"];

class Table extends HTMLElement {
  /** @type {Map<string, ReturnType<Table["make"]>>} */
  rows = new Map();
  operates = false;
  more = h("p", { hidden: true });
  parked = h("th", { scope: "col", hidden: true }, "parked"); // of a store

  connectedCallback() {
    if (this.firstChild) return;
    this.body = h("tbody");
    this.append(h("table", { class: "card" }, h("caption", { class: "hidden" }, "Lanes"), h("thead", {}, h("tr", {},
      ...HEADS.map(
        (text) => h("th", { scope: "col" }, text)),
      this.parked, h("td", {}))), this.body), this.more);
  }

  /** @param {Frame} frame */
  set frame(frame) {
    this.parked.hidden = frame.totals.parked === null;
    const names = new Set(frame.lanes.map((row) => row.name));
    for (const [name, row] of this.rows) if (!names.has(name)) { row.all.remove(); this.rows.delete(name); }
    this.more.hidden = !frame.more_lanes;
    if (frame.more_lanes) say(this.more, `and ${frame.more_lanes} more lanes: those with a problem, or with the longest waits, are above`);
    const most = Math.max(10, ...frame.lanes.map((row) => row.waiting));
    for (const row of frame.lanes) {
      let shown = this.rows.get(row.name);
      if (!shown) {
        shown = this.make(row.name, row.only_stored === true);
        this.rows.set(row.name, shown);
        this.body?.append(shown.all);
      }
      shown.now = row;
      this.#update(shown, row, frame, most);
    }
  }

  /** @param {string} name @param {boolean} stored whether the lane is of the store alone */
  make(name, stored) {
    const under = h("small"), slots = h("span", { class: "slots", role: "img" }), lent = h("small");
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    const line = h("small"), why = h("small"), wait = h("span"), rate = h("span"), last = h("td"), parked = h("td", { "data-head": "parked" });
    const cell = (/** @type {number} */ i, /** @type {Node[]} */ ...parts) => h("td", { "data-head": HEADS[i].split(":")[0] }, ...parts);
    const all = h("tr", { "data-lane": name }, h("th", { scope: "row" }, h("span", { class: "name" }, stored ? name : to("lane", name, name)), under),
      cell(1, slots, lent), cell(2, bar, line, why), cell(3, wait), cell(4, rate), parked, last);
    const made = { all, under, slots, lent, bar, line, why, wait, rate, parked, pause: h("button"), drawn: "",
      now: /** @type {Row | null} */ (null) };
    if (this.operates && !stored) last.append(this.#menu(name, made));
    return made;
  }

  /** @param {string} name @param {{now: Row | null, pause: HTMLElement}} made */
  #menu(name, made) {
    const value = h("input", { type: "number", min: "0", max: "1000000", "aria-label": `limit of ${name}` });
    const act = (/** @type {object} */ action) => () => { menu.open = false; tell(this, "lanes-act", action); };
    made.pause = h("button", { type: "button", click: () =>
      act({ do: made.now?.paused ? "resume" : "pause", lane: name })() }, "Pause");
    const menu = h("details", { class: "menu" }, h("summary", { "aria-label": `actions on ${name}` }, "⋯"),
      h("div", { class: "card" }, made.pause,
        h("span", {}, value, h("button", { type: "button", click: () => {
          if (value.value !== "") act({ do: "limit", lane: name, value: Number(value.value) })();
        } }, "Set limit")),
        h("button", { type: "button", class: "danger", click: () => act({ do: "clear", lane: name, seen: made.now?.waiting ?? 0,
          ask: `Clear ${name} of ${made.now?.waiting ?? 0} waiting jobs? This cannot be undone.` })() }, "Clear…"),
        h("button", { type: "button", class: "danger", click: () => act({ do: "reset", lane: name, seen: made.now?.active ?? 0,
          ask: `Reset ${name} and give up ${made.now?.active ?? 0} running jobs? This cannot be undone.` })() }, "Reset…")));
    menu.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { menu.open = false; menu.querySelector("summary")?.focus(); }
    });
    return menu;
  }

  /** @param {ReturnType<Table["make"]>} shown @param {Row} row @param {Frame} frame @param {number} most */
  #update(shown, row, frame, most) {
    const notes = [], group = frame.groups.find((other) => other.members.includes(row.name));
    if (group) notes.push(`group ${group.name}, ${group.slots} of ${limit(group.limit)}`);
    if (row.template) notes.push(`${row.alive} alive`);
    if (row.paused) notes.push(row.paused_until === null ? "paused until it is resumed" : `paused ${seconds(row.paused_until - frame.at)} more`);
    if (row.stored_paused) notes.push("paused in the store");
    if (row.overdue) notes.push(`${row.overdue} overdue`);
    if (row.abandoned) notes.push(`${row.abandoned} given up`);
    say(shown.under, notes.join(" · "));
    shown.under.className = row.overdue ? "error" : "";
    const free = row.limit === null ? 0 : Math.max(0, row.limit - row.slots);
    const stopping = Math.min(Math.max(row.cancelling, row.overdue), row.slots);
    const states = [...Array(stopping).fill("stopping"), ...Array(row.slots - stopping).fill("held"),
      ...Array(free).fill("free")];
    const drawn = states.slice(0, MOST_SLOTS).join(" ");
    if (drawn !== shown.drawn) {
      shown.drawn = drawn;
      shown.slots.replaceChildren(...states.slice(0, MOST_SLOTS).map((state) => h("i", { class: state })));
    }
    const more = states.length - MOST_SLOTS;
    shown.slots.setAttribute("aria-label", `${row.slots} of ${limit(row.limit)} slots held, ${Math.min(row.cancelling, row.slots)} cancelling` + (row.overdue ? `, ${row.overdue} overdue` : ""));
    say(shown.lent, [row.lent ? `+${row.lent} lent` : "", more > 0 ? `+${more} slots` : ""].filter(Boolean).join(" "));
    const held = row.rate_until === null ? 0 : row.in_lane;
    const parts = [["sessions", row.in_sessions], ["lane", row.in_lane - held], ["rate", held]];
    if (shown.bar.children.length === 0) shown.bar.append(...parts.map(([name]) => h("i", { class: String(name) })));
    parts.forEach(([, count], i) => {
      /** @type {HTMLElement} */ (shown.bar.children[i]).style.width = `${100 * Number(count) / most}%`;
    });
    say(shown.line, `${row.waiting} waiting` + (row.waiting ? ` · ${row.in_sessions} in sessions, ${row.in_lane} in lane` : "") + (held ? ", held by a rate" : ""));
    const { longest } = row, link = shown.why.firstElementChild;
    if (!longest) shown.why.replaceChildren();
    else if (link instanceof HTMLElement && link.dataset.key === `job=${longest.job}`) say(link, longest.reason); // it may have the focus
    else shown.why.replaceChildren(to("job", longest.job, longest.reason));
    say(shown.wait, `${row.waiting ? seconds(row.oldest) : "–"} · ${row.quantiles ? seconds(row.quantiles[1]) : "–"}`);
    const rates = [...[...row.rates, ...group?.rates ?? []].map((rate) => left(rate, frame.at)),
      ...(row.rate_until === null ? [] : [`waits ${seconds(row.rate_until - frame.at)}`])];
    say(shown.rate, rates.join(", ") || "–");
    shown.parked.hidden = frame.totals.parked === null;
    say(shown.parked, row.parked === null ? "–" : String(row.parked));
    say(shown.pause, row.paused ? "Resume" : "Pause");
  }
}

/** @param {Rate} rate @param {number} now */
function left(rate, now) {
  const percent = Math.round(100 * rate.left / rate.most);
  return `${rate.unit} ${percent}%` + (rate.full_at === null ? "" : ` · full in ${seconds(rate.full_at - now)}`);
}

/** The lines of notes, the newest first, each with a link to what it is about. @param {import("./types").Note[]} notes */
export function noted(notes) {
  const about = (/** @type {import("./types").Note} */ { job, lane, text }) => job !== null ? to("job", job, text) : lane === "" ? text
    : lane.startsWith("session:") ? to("session", lane.slice(8), text) : to("lane", lane, text);
  if (!notes.length) return [h("li", {}, "nothing yet")];
  return notes.toReversed().map((note) => h("li", { class: note.level }, h("time", {}, clock(note.wall)), " ", about(note), note.count > 1 ? ` (${note.count} times)` : ""));
}

/** What is wrong, each with what to do; or that nothing is; what was not looked at; and what else is told. @param {import("./types").Verdict} looked */
export function verdict({ health: problems, more_problems: more = 0, left_out: left, told = [] }) {
  const where = (/** @type {import("./types").Told} */ one) => one.job !== null ? to(one.stored ? "stored" : "job", one.job, one.text) : !one.stored && one.lane ? to("lane", one.lane, one.text) : one.text;
  const out = left.length ? `not looked at: ${left.join(", ")}` : "", all = problems.length + more, rest = all - 5;
  const line = (/** @type {string} */ kind, /** @type {string} */ helps, /** @type {import("./types").Told} */ one) => h("li", { class: kind }, where(one), ...(one.advice === null ? [] : [h("small", {}, `${helps}: ${one.advice}`)]));
  return [...(all ? [h("h2", {}, `${all} problem${all > 1 ? "s" : ""}`), ...(out ? [h("p", { class: "soft" }, out)] : [])]
    : [h("p", { class: "good" }, `Healthy: nothing that was looked at is wrong${out && `; ${out}`}.`)]),
  h("ul", { class: "jobs" }, ...problems.slice(0, 5).map((one) => line("error", "What to do", one)), ...(rest > 0 ? [h("li", {}, `and ${rest} more`)] : []),
    ...told.map((one) => line("", "What would help", one)))];
}

class Health extends Panel {
  /** @param {Frame} frame */
  set frame({ health, more_problems, left_out, told, at }) {
    this.fill([health.map(({ kind, lane, job }) => [kind, lane, job]), told.map(({ job, advice }) => [job, advice]), left_out, Math.round(at / 5)], () =>
      [h("section", { class: health.length ? "card bad" : "card", "aria-label": "Health" }, ...verdict({ health, more_problems, left_out, told }))]);
  }
}

class Noticed extends Panel {
  /** @param {Frame} frame */
  set frame({ notes }) {
    this.fill(notes.map((note) => note.seq), () => [h("section", { class: "card", "aria-label": "Noticed" }, h("h2", {}, "Noticed"),
      h("ol", { class: "notes" }, ...noted(notes.slice(-14))))]);
  }
}

class Sessions extends HTMLElement {
  order = "waiting";
  /** @type {Frame | null} */
  shown = null;

  connectedCallback() {
    if (this.firstChild) return;
    this.list = h("tbody");
    this.which = h("small");
    this.append(h("section", { class: "card", "aria-label": "Sessions" }, h("h2", {}, "Sessions"),
      choice("Order of the sessions", ["waiting", "oldest"], (name) => {
        this.order = name;
        if (this.shown) this.frame = this.shown;
      }), this.which,
      h("table", {}, h("caption", { class: "hidden" }, "Sessions"), h("thead", {}, h("tr", {}, ...["session", "waiting", "running", "oldest"].map((text) => h("th", { scope: "col" }, text)))), this.list)));
  }

  /** @param {Frame} frame */
  set frame(frame) {
    this.shown = frame;
    const old = this.order === "oldest", rows = old ? frame.longest.sessions : frame.sessions;
    if (this.which) say(this.which, `${rows.length} of ${frame.totals.sessions} sessions: ` + (!old ? "those with the most waiting jobs"
      : frame.longest.whole ? "the oldest waits of all" : "the oldest waits; behind them so many jobs wait that no more were read"));
    while (this.list && this.list.children.length > rows.length) this.list.lastChild?.remove();
    rows.forEach((one, i) => {
      let row = this.list?.children[i];
      if (!row) {
        row = h("tr", {}, h("th", { scope: "row" }), h("td"), h("td"), h("td"));
        this.list?.append(row);
      }
      if (row.children[0].textContent !== one.key) row.children[0].replaceChildren(to("session", one.key, one.key));
      [String(one.waiting), String(one.active) + (one.paused ? " paused" : ""), one.oldest === null ? "–" : seconds(frame.at - one.oldest)].forEach(
        (text, k) => say(/** @type {HTMLElement} */ (row).children[k + 1], text));
    });
  }
}

customElements.define("lanes-totals", Totals);
customElements.define("lanes-table", Table);
customElements.define("lanes-health", Health);
customElements.define("lanes-noticed", Noticed);
customElements.define("lanes-sessions", Sessions);
