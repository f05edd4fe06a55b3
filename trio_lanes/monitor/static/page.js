// The page of the monitor: what is around the live part, and the story of one job.
import { Sessions } from "./elements.js";
import { Durable } from "./durable.js";
import { Live } from "./live.js";
import "./replay.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";
import { called, detail, h, say, served, tell } from "./tools.js";

/** @typedef {import("./types").Frame} Frame */
/** @typedef {import("./types").Job} Job */

/** @template {Element} T @param {string} selector @param {new () => T} type @returns {T} */
function one(selector, type) {
  const found = document.querySelector(selector);
  if (!(found instanceof type)) throw new Error(`the page has no ${selector}`);
  return found;
}

const live = one("lanes-live", Live), timeline = one("lanes-timeline", Timeline), told = one("lanes-story", Story);
const sessions = one("lanes-sessions", Sessions), search = one("#search", HTMLInputElement);
const link = one("#link", HTMLElement), freeze = one("#freeze", HTMLButtonElement);
let asked = 0;

live.addEventListener("lanes-link", (event) => say(link, detail(event)));
live.addEventListener("lanes-frame", (event) => {
  const frame = /** @type {Frame} */ (detail(event));
  say(one("#who", HTMLElement), `pid ${frame.pid} · frame ${frame.n}`);
  if (told.picked !== null && frame.at - asked >= 1) void ask(told.picked, frame.at);
});

// ---- one job

/** @param {number} id @param {number} at */
async function ask(id, at) {
  asked = at;
  const answer = await fetch(served(`job/${id}`)).catch(() => null);
  if (told.picked !== id || answer === null) return;
  const story = answer.ok ? await answer.json() : null;
  if (story) { told.told = story; return; }
  const ended = timeline.jobs.get(id)?.job;
  if (!ended || ended.finished === null) { told.clear(`Job ${id} has ended, and has gone.`); return; }
  told.told = { ...ended, at: at, owner: null, parent: null, place: null, why: [], too_long: false, help: [] };
}

document.addEventListener("lanes-pick", (event) => {
  const { id } = detail(event);
  told.picked = timeline.picked = id;
  told.last = "";
  void ask(id, live.latest?.at ?? 0);
});

live.addEventListener("lanes-acted", () => {
  if (told.picked !== null) { told.last = ""; void ask(told.picked, live.latest?.at ?? 0); }
});

document.addEventListener("lanes-session", (event) => void find(detail(event)));

/** Show the jobs of a session, or the job of that number. @param {string} text */
async function find(text) {
  sessions.search = "";
  if (/^\d+$/.test(text) && timeline.jobs.has(Number(text))) {
    tell(document, "lanes-pick", { id: Number(text) });
    return;
  }
  const answer = await fetch(served(`session/${encodeURIComponent(text)}`)).catch(() => null);
  const found = answer?.ok ? await answer.json() : { jobs: [], waiting: 0 };
  /** @type {Job[]} */
  const jobs = found.jobs;
  sessions.found?.replaceChildren(h("p", {}, jobs.length ? `Jobs of ${text}:` : `No job of ${text} waits or runs` + (found.waiting ? ", or too many do." : ".")),
    h("ul", {}, ...jobs.map((job) => {
      const pick = h("button", { type: "button", class: "link", click: () => tell(pick, "lanes-pick", { id: job.id }) }, `${called(job)} ${job.state}`);
      return h("li", {}, pick);
    })));
}

// ---- the store of durable lanes

if (one("meta[name=lanes-durable]", HTMLMetaElement).content) {
  const store = one("lanes-durable", Durable);
  store.hidden = false;
  const look = async () => {
    if (document.hidden) return;
    const answer = await fetch(served("durable")).catch(() => null);
    if (answer?.ok) store.view = await answer.json();
  };
  store.addEventListener("lanes-durable", async (event) => {
    const answer = await fetch(served(`durable/${detail(event)}`)).catch(() => null);
    if (answer?.ok) store.told = await answer.json();
  });
  setInterval(() => void look(), 2000);
  void look();
}

// ---- the head of the page

freeze.addEventListener("click", () => {
  live.freeze(!live.frozen);
  freeze.setAttribute("aria-pressed", String(live.frozen));
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

search.addEventListener("input", () => { sessions.search = search.value; if (live.latest) sessions.frame = live.latest; });
search.addEventListener("keydown", (event) => { if (event.key === "Enter" && search.value.trim()) void find(search.value.trim()); });
document.addEventListener("keydown", (event) => {
  const on = event.target instanceof Element ? event.target.closest("input, button, summary, dialog") : null;
  if (on || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); search.focus(); }
  if (event.key === "+") timeline.zoom(0.5);
  if (event.key === "-") timeline.zoom(2);
  if (event.key === " ") { event.preventDefault(); freeze.click(); }
});
