// What all modules use: the shapes of frames, elements made of text only, and numbers in words.

/** @typedef {[number, string]} Step */
/** @typedef {{id: number, name: string, session: string | null, lane: string, label: string,
 *   state: string, slot?: string | null, cancel?: boolean, priority?: number, submitted: number,
 *   since?: number | null, started: number | null, finished: number | null, steps: Step[]}} Job */
/** @typedef {{unit: string, left: number, most: number, full_at: number | null}} Rate */
/** @typedef {{name: string, template: boolean, alive: number, limit: number | null, slots: number,
 *   active: number, lent: number, cancelling: number, abandoned: number, waiting: number,
 *   in_sessions: number, in_lane: number, oldest: number, paused: boolean,
 *   paused_until: number | null, rate_until: number | null, rates: Rate[], finished: number,
 *   failed: number, quantiles: number[] | null}} Row */
/** @typedef {{name: string, members: string[], slots: number, limit: number | null,
 *   rates: Rate[]}} Group */
/** @typedef {{seq: number, at: number, wall: number, level: string, kind: string, lane: string,
 *   text: string, count: number}} Note */
/** @typedef {{key: string, waiting: number, active: number, paused: boolean,
 *   oldest: number | null, next: Job[]}} Session */
/** @typedef {{active: number, waiting: number, sessions: number, abandoned: number,
 *   oldest: number, oldest_lane: string, slots: number, lent: number, limit: number | null,
 *   finished: number, failed: number, cancelled: number, quantiles: number[] | null}} Totals */
/** @typedef {{n: number, at: number, wall: number, pid: number, totals: Totals, lanes: Row[],
 *   groups: Group[], jobs: Job[], ended: Job[], record: number, sessions: Session[],
 *   notes: Note[]}} Frame */

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

/** @param {EventTarget} from @param {string} name @param {unknown} detail */
export function tell(from, name, detail) {
  from.dispatchEvent(new CustomEvent(name, { bubbles: true, composed: true, detail }));
}

/** What a job is called. @param {{id: number, name: string, session: string | null}} job */
export function called(job) {
  return `${job.id} ${job.session ?? job.name}`;
}
