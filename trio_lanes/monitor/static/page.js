// The page of the monitor: what is around the live part, and the story of one job.
import { Durable } from "./durable.js";
import { Live } from "./live.js";
import "./hour.js";
import "./replay.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";
import { ask, detail, say } from "./tools.js";

/** @typedef {import("./types").Frame} Frame */

/** @template {Element} T @param {string} selector @param {new () => T} type @returns {T} */
function one(selector, type) {
  const found = document.querySelector(selector);
  if (!(found instanceof type)) throw new Error(`the page has no ${selector}`);
  return found;
}

const live = one("lanes-live", Live), timeline = one("lanes-timeline", Timeline), story = one("lanes-story", Story);
const search = one("#search", HTMLInputElement), link = one("#link", HTMLElement), freeze = one("#freeze", HTMLButtonElement);
const now = () => live.latest?.at ?? 0;
const FOLLOWED = ["job", "session", "lane", "ended", "error", "name", "stored"];
let asked = 0, kind = "", key = "";

live.addEventListener("lanes-link", (event) => say(link, detail(event)));
live.addEventListener("lanes-frame", (event) => {
  const frame = /** @type {Frame} */ (detail(event));
  say(one("#who", HTMLElement), `pid ${frame.pid} · frame ${frame.n}`);
  if (frame.at - asked >= 1 && FOLLOWED.includes(kind)) void follow();
});

// ---- what was chosen has an address, the fragment of the page's: #job=12, #session=ann, #lane=main,
// #find=text, #ended=, #error=ValueError, #name=answer, #stored=12 of a store

/** @param {boolean} [moves] whether the reader goes there */
async function choose(moves = true) {
  const [first, ...rest] = location.hash.slice(1).split("=");
  try { key = decodeURIComponent(rest.join("=")); } catch { key = ""; }
  kind = first;
  timeline.picked = kind === "job" ? Number(key) : null;
  story.last = "";
  if (!kind) story.clear();
  await follow();
  if (moves && kind) story.enter();
}

async function follow() {
  asked = now();
  const [what, which] = [kind, key];
  const text = encodeURIComponent(which), ended = ["ended", "error", "name"].includes(what);
  const path = what === "find" ? `find?text=${text}` : what === "ended" ? what : ended ? `ended?${what}=${text}` : what === "stored" ? `durable/${text}` : `${what}/${text}`;
  if (what !== "find" && !FOLLOWED.includes(what)) return;
  if (what === "find") story.clear(`Found: ${which}`, "looking …");
  const { ok, status, said } = await ask(path), found = ok ? said : null;
  if (kind !== what || key !== which || status === 0) return;
  if (what === "job") show(found, Number(which));
  else if (found === null) story.clear(which, "The monitor knows nothing of it.");
  else if (ended) story.ended(what === "ended" ? "What has ended" : `${what === "error" ? "Error" : "Jobs"} ${which}`, found);
  else if (what === "stored") found.error && !found.roots ? story.clear(`Job ${which} of the store`, found.error) : story.stored = found;
  else if (what !== "find") story.list(/** @type {"lane"} */ (what), found);
  else {
    const { lanes, sessions, jobs, ended } = found, all = [...lanes, ...sessions, ...jobs, ...ended];
    if (all.length === 1 && found.looked === found.there) location.replace(lanes.length ? `#lane=${encodeURIComponent(lanes[0])}`
      : sessions.length ? `#session=${encodeURIComponent(sessions[0])}` : `#job=${all[0].id}`);
    else story.found(which, found, now());
  }
}

/** @param {import("./types").JobFacts | null} job @param {number} id */
function show(job, id) {
  const ended = timeline.jobs.get(id)?.job;
  if (job) story.job = job;
  else if (ended && ended.finished !== null) story.job = { ...ended, at: now(), owner: null, parent: null, place: null, roots: [], children: null };
  else story.clear(`Job ${id}`, "It neither waits nor runs, and is not among the last that ended.");
}

addEventListener("hashchange", () => void choose());
void choose(false);
document.addEventListener("lanes-pick", (event) => { location.hash = `job=${detail(event).id}`; });
live.addEventListener("lanes-acted", () => { story.last = ""; void follow(); });

// ---- the store of durable lanes

if (one("meta[name=lanes-durable]", HTMLMetaElement).content) {
  const store = one("lanes-durable", Durable);
  store.hidden = false;
  const look = async () => {
    if (document.hidden) return;
    const { ok, status, said } = await ask("durable");
    if (ok) store.view = said;
    else if (status) store.failed = `The store cannot be shown, by an error with status ${status}: the log of the application says why.`;
  };
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

search.addEventListener("keydown", (event) => { if (event.key === "Enter" && search.value.trim()) location.hash = `find=${encodeURIComponent(search.value.trim())}`; });
document.addEventListener("keydown", (event) => {
  const on = event.target instanceof Element ? event.target.closest("input, button, summary, select, dialog") : null;
  if (on || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); search.focus(); }
  if (event.key === "+") timeline.zoom(0.5);
  if (event.key === "-") timeline.zoom(2);
  if (event.key === " ") { event.preventDefault(); freeze.click(); }
});
