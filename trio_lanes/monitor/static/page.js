// The page: it follows the frames, hands them to the elements, and sends the actions.
import { Noticed, Sessions, Table, Totals } from "./elements.js";
import { Durable } from "./durable.js";
import { Replay } from "./replay.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";
import { called, h, say } from "./tools.js";

/** @typedef {import("./types").Frame} Frame */
/** @typedef {import("./types").Job} Job */

/** @template {Element} T @param {string} selector @param {new () => T} type @returns {T} */
function one(selector, type) {
  const found = document.querySelector(selector);
  if (!(found instanceof type)) throw new Error(`the page has no ${selector}`);
  return found;
}

const meta = (/** @type {string} */ name) => one(`meta[name=${name}]`, HTMLMetaElement).content;
const operates = meta("lanes-role") === "operate", token = meta("lanes-token");
const table = one("lanes-table", Table), timeline = one("lanes-timeline", Timeline), told = one("lanes-story", Story);
const sessions = one("lanes-sessions", Sessions), search = one("#search", HTMLInputElement);
const showing = [one("lanes-totals", Totals), table, one("lanes-noticed", Noticed), sessions, one("lanes-replay", Replay)];
const link = one("#link", HTMLElement), freeze = one("#freeze", HTMLButtonElement), dialog = one("#ask", HTMLDialogElement);
table.operates = told.operates = operates;

let came = 0, frozen = false, record = -1, asked = 0;
/** @type {Frame | null} */
let latest = null;

// ---- frames

function follow() {
  const source = new EventSource("frames");
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.onerror = () => {
    say(link, "reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 3000); // it was refused
  };
}

/** @param {Frame} frame */
function show(frame) {
  came = performance.now();
  latest = frame;
  const missed = record >= 0 && frame.record - frame.ended.length > record;
  if (record < 0 || missed) void catchUp(Math.max(record, 0));
  record = frame.record;
  say(link, frozen ? "frozen" : "live");
  say(one("#who", HTMLElement), `pid ${frame.pid} · frame ${frame.n}`);
  timeline.frame = frame;
  if (!frozen) for (const element of showing) element.frame = frame;
  if (told.picked !== null && frame.at - asked >= 1) void ask(told.picked, frame.at);
}

/** The records of the time before, and of frames that this page has missed. @param {number} after */
async function catchUp(after) {
  const answer = await fetch(`history?after=${after}`).catch(() => null);
  if (answer?.ok) timeline.ended = (await answer.json()).ended;
}

setInterval(() => {
  if (came && performance.now() - came > 3000) say(link, `no news for ${Math.round((performance.now() - came) / 1000)} s`);
}, 1000);

// ---- one job

/** @param {number} id @param {number} at */
async function ask(id, at) {
  asked = at;
  const answer = await fetch(`job/${id}`).catch(() => null);
  if (told.picked !== id || answer === null) return;
  const story = answer.ok ? await answer.json() : null;
  if (story) { told.told = story; return; }
  const ended = timeline.jobs.get(id)?.job;
  if (!ended || ended.finished === null) { told.clear(`Job ${id} has ended, and has gone.`); return; }
  told.told = { ...ended, at: at, owner: null, parent: null, place: null, why: [], too_long: false, help: [] };
}

document.addEventListener("lanes-pick", (event) => {
  const { id } = /** @type {CustomEvent} */ (event).detail;
  told.picked = timeline.picked = id;
  told.last = "";
  void ask(id, latest?.at ?? 0);
});

document.addEventListener("lanes-session", (event) => void find(/** @type {CustomEvent} */ (event).detail));

/** Show the jobs of a session, or the job of that number. @param {string} text */
async function find(text) {
  sessions.search = "";
  if (/^\d+$/.test(text) && timeline.jobs.has(Number(text))) {
    document.dispatchEvent(new CustomEvent("lanes-pick", { detail: { id: Number(text) } }));
    return;
  }
  const answer = await fetch(`session/${encodeURIComponent(text)}`).catch(() => null);
  const found = answer?.ok ? await answer.json() : { jobs: [], waiting: 0 };
  /** @type {Job[]} */
  const jobs = found.jobs;
  sessions.found?.replaceChildren(h("p", {}, jobs.length ? `Jobs of ${text}:` : `No job of ${text} waits or runs` + (found.waiting ? ", or too many do." : ".")),
    h("ul", {}, ...jobs.map((job) => {
      const pick = h("button", { type: "button", class: "link", click: () => pick.dispatchEvent(new CustomEvent("lanes-pick", { bubbles: true, detail: { id: job.id } })) }, `${called(job)} ${job.state}`);
      return h("li", {}, pick);
    })));
}

// ---- the store of durable lanes

if (meta("lanes-durable")) {
  const store = one("lanes-durable", Durable);
  store.hidden = false;
  store.operates = operates;
  const look = async () => {
    if (document.hidden) return;
    const answer = await fetch("durable").catch(() => null);
    if (answer?.ok) store.view = await answer.json();
  };
  store.addEventListener("lanes-durable", async (event) => {
    const answer = await fetch(`durable/${/** @type {CustomEvent} */ (event).detail}`).catch(() => null);
    if (answer?.ok) store.told = await answer.json();
  });
  setInterval(() => void look(), 2000);
  void look();
}

// ---- actions

document.addEventListener("lanes-act", (event) => void act(/** @type {CustomEvent} */ (event).detail));

/** @param {Record<string, unknown>} action */
async function act(action) {
  const { ask: question, ...wanted } = action;
  if (typeof question === "string" && !await confirmed(question)) return;
  const answer = await fetch("act", { method: "POST", body: JSON.stringify(wanted),
    headers: { "Content-Type": "application/json", "X-Lanes-Token": token } }).catch(() => null);
  const said = answer === null ? { error: "the server cannot be reached" } : await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  toast(said.error ?? said.text, said.error !== undefined, said.undo, said.seconds);
  if (told.picked !== null) { told.last = ""; void ask(told.picked, latest?.at ?? 0); }
}

/** @param {string} question @returns {Promise<boolean>} */
function confirmed(question) {
  say(one("#ask-text", HTMLElement), question);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** @param {string} text @param {boolean} bad @param {string} [undo] @param {number} [left] */
function toast(text, bad, undo, left = 6) {
  const shown = h("div", { class: bad ? "toast bad" : "toast" }, h("span", {}, text));
  one("#toasts", HTMLElement).append(shown);
  const ends = performance.now() + left * 1000;
  if (undo) {
    const button = h("button", { type: "button", click: () => { close(); void act({ do: "undo", key: undo }); } }, "Undo");
    shown.append(button);
    const timer = setInterval(() => say(button, `Undo (${Math.max(0, Math.ceil((ends - performance.now()) / 1000))} s)`), 500);
    setTimeout(() => clearInterval(timer), left * 1000);
  }
  const close = () => shown.remove();
  setTimeout(close, left * 1000);
}

// ---- the head of the page

freeze.addEventListener("click", () => {
  frozen = timeline.frozen = !frozen;
  freeze.setAttribute("aria-pressed", String(frozen));
  say(link, frozen ? "frozen" : "live");
});

for (const button of document.querySelectorAll("#span button")) {
  button.addEventListener("click", () => {
    timeline.span = Number(/** @type {HTMLButtonElement} */ (button).value);
    timeline.zoom(1);
  });
}

timeline.addEventListener("lanes-zoom", () => {
  for (const button of document.querySelectorAll("#span button")) button.setAttribute("aria-pressed", String(Number(/** @type {HTMLButtonElement} */ (button).value) === timeline.span));
});

search.addEventListener("input", () => { sessions.search = search.value; if (latest) sessions.frame = latest; });
search.addEventListener("keydown", (event) => { if (event.key === "Enter" && search.value.trim()) void find(search.value.trim()); });
document.addEventListener("keydown", (event) => {
  const on = event.target instanceof Element ? event.target.closest("input, button, summary, dialog") : null;
  if (on || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); search.focus(); }
  if (event.key === "+") timeline.zoom(0.5);
  if (event.key === "-") timeline.zoom(2);
  if (event.key === " ") { event.preventDefault(); freeze.click(); }
});

follow();
