// What all modules use: questions to the server, elements made of text only, and numbers in words.

/** The address of something that the monitor serves, wherever it is mounted. @param {string} path */
export const served = (path) => new URL(`../${path}`, import.meta.url);

/**
 * What the server says, or what is wrong with it; the status is 0 if no whole answer has come.
 * @param {string} path @param {RequestInit} [options] @returns {Promise<{ok: boolean, status: number, said: any}>}
 */
export async function ask(path, options) {
  let status = 0, error = "the server cannot be reached: look again when the page is live";
  try {
    const answer = await fetch(served(path), options), text = await answer.text();
    status = answer.status;
    error = `the server has failed with status ${status}: look into its log`;
    return { ok: answer.ok, status, said: JSON.parse(text) };
  } catch { return { ok: false, status, said: { error } }; }
}

/**
 * Make an element. Strings become text, never markup.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | boolean | ((event: any) => void)>} attributes
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {(Node | string)[]} children
 */
export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** Set the text of an element if it is another. @param {Element} element @param {string} text */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {number | null | undefined} value */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 100) return `${(value / 60).toFixed(1)} min`;
  return value >= 10 ? `${value.toFixed(0)} s` : `${value.toFixed(1)} s`;
}

/** @param {number | null} value */
export function limit(value) {
  return value === null ? "∞" : String(value);
}

/** @param {number} wall */
export function clock(wall) {
  return new Date(wall * 1000).toLocaleTimeString("en-GB");
}

/** What an event carries. @param {Event} event */
export const detail = (event) => /** @type {CustomEvent} */ (event).detail;

/** @param {EventTarget} from @param {string} name @param {unknown} detail */
export function tell(from, name, detail) {
  from.dispatchEvent(new CustomEvent(name, { bubbles: true, composed: true, detail }));
}

/** Buttons of which one is pressed, at first the first.
 * @param {string} label @param {string[]} names @param {(name: string) => void} choose */
export function choice(label, names, choose) {
  const buttons = names.map((name) => h("button", { type: "button", value: name, "aria-pressed": String(name === names[0]), click: () => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === name));
    choose(name);
  } }, name));
  return h("fieldset", { class: "choice" }, h("legend", { class: "hidden" }, label), ...buttons);
}

/**
 * A link to the address of one thing on the monitor's page, which can be sent to a colleague.
 * @param {string} kind @param {string | number} key @param {string} text
 */
export function to(kind, key, text) {
  return h("a", { class: "link", href: `${served("")}#${kind}=${encodeURIComponent(key)}`, "data-key": `${kind}=${key}` }, text);
}

/** A part of the page that is filled anew when what it shows has changed. */
export class Panel extends HTMLElement {
  /** What is shown, as JSON; empty: it is to be filled anew. */
  last = "";

  /** @param {unknown} data @param {() => (Node | string)[]} parts that show it @param {Element} box */
  fill(data, parts, box = this) {
    const now = JSON.stringify(data);
    if (now === this.last) return;
    this.last = now;
    const active = document.activeElement, key = active instanceof HTMLElement && box.contains(active) ? active.dataset.key : undefined;
    box.replaceChildren(...parts());
    if (key) /** @type {HTMLElement | null} */ (box.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus();
  }
}

/** A table, in which the first of each row is its head. @param {string} caption that is not seen @param {string[]} head @param {(Node | string)[][]} rows */
export function table(caption, head, rows) {
  return h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), ...cells.map((cell) => h("td", {}, cell))))));
}

/** What a job is called. @param {{id: number, name: string, session: string | null}} job */
export function called(job) {
  return `${job.id} ${job.session ?? job.name}`;
}

/** What a job does, and for how long. @param {import("./types").Job} job @param {number} now */
export function lasted(job, now) {
  if (job.state === "waiting") return `waits ${seconds(now - (job.since ?? job.submitted))}`;
  if (job.state === "running") return `runs ${seconds(now - (job.started ?? now))}${job.cancel ? ", cancelled: its body still runs" : ""}`;
  const end = job.finished ?? now;
  return `${job.state} after ${seconds(end - (job.started ?? job.submitted))}, ${seconds(now - end)} ago`;
}
