// The time line: a row for each session, or for each slot, and a bar for each job.
//
// Running and waiting jobs come with each frame, ended jobs once, as records. A bar has a piece for
// each state, each with a pattern of its own. It is one canvas, drawn once a frame.
import { called, choice, h, lasted, say, tell } from "./tools.js";

/** @typedef {import("./types").Frame} Frame */
/** @typedef {import("./types").Job} Job */
/** @typedef {import("./types").Note} Note */
/** @typedef {{job: Job, forwarded: number | null, seen: number}} Known */
/** @typedef {{from: number, to: number, state: string}} Piece */

const ROW = 20, BAR = 12, LEFT = 100, TOP = 22, MOST_ROWS = 30, MAX_JOBS = 4000;

/** @type {Record<string, [string, string]>} */
const STATES = {
  session: ["waits in session", "▨"], lane: ["waits in lane", "▭"], runs: ["runs", "■"],
  lent: ["slot lent", "▧"], wants: ["wants its slot back", "▤"], stops: ["cancelling", "▩"],
  failed: ["failed", "✕"],
};

/** The states through which a job went, until `now`. @param {Known} known @param {number} now */
export function pieces(known, now) {
  const { job, forwarded } = known;
  /** @type {Piece[]} */
  const found = [];
  const add = (/** @type {number} */ from, /** @type {number} */ to, /** @type {string} */ state) => {
    if (to > from) found.push({ from, to, state });
  };
  const end = job.finished ?? now, waited = job.started ?? end;
  const inLane = job.session === null ? job.submitted : Math.min(forwarded ?? (job.state === "waiting" ? waited : job.submitted), waited);
  add(job.submitted, inLane, "session");
  add(inLane, waited, "lane");
  if (job.started === null) return found;
  let from = job.started, slot = "runs", stops = false;
  const state = () => stops ? "stops" : slot === "runs" && job.state === "failed" ? "failed" : slot;
  for (const [at, step] of job.steps) {
    add(from, at, state());
    from = Math.max(from, at);
    if (step === "cancelling") stops = true;
    else slot = step === "lent" ? "lent" : step === "wanted" ? "wants" : "runs";
  }
  if (job.cancel && job.state === "running") stops = true; // by its deadline
  add(from, end, state());
  return found;
}

class Timeline extends HTMLElement {
  span = 60;
  by = "sessions";
  frozen = false;
  /** @type {number | null} */
  picked = null;
  /** @type {Map<number, Known>} */
  jobs = new Map();
  /** @type {Note[]} */
  notes = [];
  now = 0;
  /** @type {{x: number, y: number, width: number, job: Job}[]} */
  bars = [];
  /** @type {number | null} */
  cursor = null; // the job that the arrow keys have come to
  said = h("p", { role: "status", class: "soft" });

  connectedCallback() {
    if (this.firstChild) return;
    this.canvas = h("canvas", { role: "application", tabindex: "0", "aria-label": "Time line of jobs", "aria-describedby": "lanes-keys",
      keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event), click: (/** @type {MouseEvent} */ event) => this.#click(event),
      wheel: (/** @type {WheelEvent} */ event) => { if (event.ctrlKey) { event.preventDefault(); this.zoom(event.deltaY > 0 ? 1.25 : 0.8); } } });
    const legend = Object.entries(STATES).map(([state, [text]]) => h("li", {}, h("i", { class: `state ${state}` }), text));
    this.append(h("section", { class: "card", "aria-label": "Time line" }, h("div", { class: "legend" },
      h("h2", {}, "Time line"), choice("Rows", ["sessions", "slots"], (name) => { this.by = name; this.draw(); }),
      h("ul", {}, ...legend)), this.canvas, this.said, h("span", { id: "lanes-keys", class: "hidden" }, "Arrow keys go from job to job, Enter opens one.")));
    new ResizeObserver(() => this.draw()).observe(this);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = null; this.draw(); });
    /** @type {Record<string, string | CanvasPattern> | null} */
    this.colours = null;
  }

  /** @param {Job[]} records */
  set ended(records) {
    for (const job of records) this.#know(job, false, job.finished ?? 0);
  }

  /** @param {Frame} frame */
  set frame(frame) {
    const inLane = new Set();
    for (const job of frame.jobs) { inLane.add(job.id); this.#know(job, true, frame.at); }
    for (const session of frame.sessions) for (const job of session.next) if (!inLane.has(job.id)) this.#know(job, false, frame.at);
    this.ended = frame.ended;
    for (const [id, known] of this.jobs) {
      const gone = known.job.finished === null && known.seen < frame.at - 3; // out of the window
      if (gone || (known.job.finished !== null && known.job.finished < frame.at - 3600)) this.jobs.delete(id);
    }
    while (this.jobs.size > MAX_JOBS) this.jobs.delete(/** @type {number} */ (this.jobs.keys().next().value));
    if (this.frozen) return;
    this.notes = frame.notes;
    this.now = frame.at;
    this.draw();
  }

  /** @param {Job} job @param {boolean} inLane @param {number} now */
  #know(job, inLane, now) {
    const known = this.jobs.get(job.id);
    const forwarded = known?.forwarded ?? (inLane && job.state === "waiting" ? now : null);
    if (known) { known.job = job; known.forwarded = forwarded; known.seen = now; }
    else this.jobs.set(job.id, { job, forwarded, seen: now });
  }

  /** The rows, each with its bars. @returns {Map<string, Known[]>} */
  rows() {
    const from = this.now - this.span;
    const shown = [...this.jobs.values()].filter(({ job }) => (job.finished ?? this.now) >= from && job.submitted <= this.now);
    shown.sort((a, b) => (a.job.started ?? Infinity) - (b.job.started ?? Infinity) || a.job.id - b.job.id);
    /** @type {Map<string, Known[]>} */
    const rows = new Map();
    const put = (/** @type {string} */ name, /** @type {Known} */ known) => {
      const row = rows.get(name);
      if (row) row.push(known); else rows.set(name, [known]);
    };
    if (this.by === "sessions") {
      for (const known of shown) put(known.job.session ?? known.job.label, known);
    } else {
      /** @type {Map<string, number[]>} */
      const ends = new Map();
      for (const known of shown) {
        const { job } = known;
        if (job.started === null) continue;
        const slots = ends.get(job.label) ?? [];
        ends.set(job.label, slots);
        let slot = slots.findIndex((end) => end <= /** @type {number} */ (job.started));
        if (slot < 0) slot = slots.length;
        slots[slot] = job.finished ?? Infinity;
        put(`${job.label} ${slot + 1}`, known);
      }
    }
    return new Map([...rows].sort(([a], [b]) => a < b ? -1 : 1).slice(0, MOST_ROWS));
  }

  /** Show another length of time, up to now. @param {number} factor */
  zoom(factor) {
    this.span = Math.min(3600, Math.max(5, this.span * factor));
    this.draw();
    tell(this, "lanes-zoom", this.span);
  }

  draw() {
    const canvas = this.canvas, pen = canvas?.getContext("2d");
    if (!canvas || !pen) return;
    const rows = this.rows(), width = Math.max(260, this.clientWidth - 26), height = TOP + Math.max(3, rows.size) * ROW + 20;
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const colour = this.colours ??= colours(this, pen);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    const left = width < 500 ? 60 : LEFT, now = this.now, span = this.span;
    const x = (/** @type {number} */ at) => left + (width - left - 4) * Math.max(0, Math.min(1, (at - now + span) / span));
    this.#bands(pen, x, height, colour);
    pen.fillStyle = colour.soft;
    pen.textAlign = "center";
    for (let i = 0; i <= 6; i += 1) {
      const at = now - span + i * span / 6;
      pen.fillText(i === 6 ? "now" : `−${span - i * span / 6 >= 120 ? `${Math.round((span - i * span / 6) / 60)} min` : `${+(span - i * span / 6).toFixed(1)} s`}`, Math.min(x(at), width - 14), 12);
      pen.fillRect(x(at), TOP - 4, 0.5, height - TOP - 14);
    }
    this.bars = [];
    let y = TOP;
    pen.textAlign = "left";
    for (const [name, row] of rows) {
      pen.fillStyle = colour.text;
      pen.fillText(name, 0, y + 10, left - 6);
      // The jobs of a row overlap: the waits are drawn first, so that the job that runs is seen.
      const shown = row.flatMap((known) => pieces(known, now)).filter((piece) => piece.to >= now - span);
      const waits = (/** @type {{state: string}} */ piece) => piece.state === "session" || piece.state === "lane";
      for (const piece of [...shown.filter(waits), ...shown.filter((piece) => !waits(piece))]) {
        const from = x(piece.from), wide = Math.max(1.5, x(piece.to) - from);
        pen.fillStyle = colour[piece.state];
        pen.fillRect(from, y, wide, BAR);
        if (piece.state !== "runs") { pen.strokeStyle = colour[`${piece.state} edge`]; pen.strokeRect(from + 0.5, y + 0.5, Math.max(0.5, wide - 1), BAR - 1); }
      }
      for (const known of [...row].sort((a, b) => Number(a.job.started !== null) - Number(b.job.started !== null))) {
        const from = x(known.job.submitted), to = x(known.job.finished ?? now);
        this.bars.push({ x: from, y, width: Math.max(4, to - from), job: known.job });
        if (known.job.id === this.picked) { pen.strokeStyle = colour.text; pen.lineWidth = 2; pen.strokeRect(from - 1, y - 2, Math.max(4, to - from) + 2, BAR + 4); pen.lineWidth = 1; }
        if (known.job.id === this.cursor) { pen.strokeStyle = colour.text; pen.setLineDash([3, 2]); pen.strokeRect(from - 2, y - 3, Math.max(4, to - from) + 4, BAR + 6); pen.setLineDash([]); }
      }
      y += ROW;
    }
    canvas.setAttribute("aria-label", `Time line: ${this.bars.length} jobs in ${rows.size} rows over ${Math.round(span)} seconds`);
  }

  /** @param {CanvasRenderingContext2D} pen @param {(at: number) => number} x @param {number} height
   * @param {Record<string, string | CanvasPattern>} colour */
  #bands(pen, x, height, colour) {
    /** @type {Map<string, Note>} */
    const paused = new Map();
    let free = 0; // where a text may begin
    const write = (/** @type {string} */ text, /** @type {number} */ from) => {
      const at = Math.min(Math.max(from, free), x(this.now) - 150);
      if (at < free) return; // the list of what is noticed has it
      pen.fillText(text, at, height - 4, 150);
      free = at + Math.min(150, pen.measureText(text).width) + 8;
    };
    const band = (/** @type {Note} */ note, /** @type {number} */ to) => {
      pen.fillStyle = colour.band;
      pen.fillRect(x(note.at), TOP - 4, x(to) - x(note.at), height - TOP - 14);
      pen.fillStyle = colour.warning;
      if (to > this.now - this.span) write(note.text, x(note.at));
    };
    pen.textAlign = "left";
    for (const note of this.notes) {
      if (note.kind === "paused" && !paused.has(note.lane)) paused.set(note.lane, note);
      const begun = paused.get(note.lane);
      if (note.kind === "resumed" && begun) { paused.delete(note.lane); band(begun, note.at); }
      if (note.kind === "limit" && note.at > this.now - this.span) {
        pen.fillStyle = colour.mark;
        for (let y = TOP; y < height - 18; y += 6) pen.fillRect(x(note.at), y, 1, 3);
        write(note.text, x(note.at) + 3);
      }
    }
    for (const begun of paused.values()) band(begun, this.now);
  }

  /** Go to another job: beside this one in its row, or the nearest in another row. @param {KeyboardEvent} event */
  #key(event) {
    const bars = this.bars, now = bars.find((bar) => bar.job.id === this.cursor);
    if (event.key === "Enter" && now) { tell(this, "lanes-pick", { id: now.job.id }); return; }
    const aside = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0, down = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    if (!(aside || down) || !bars.length) return;
    event.preventDefault();
    const middle = (/** @type {typeof bars[0]} */ bar) => bar.x + bar.width / 2;
    let next = now ?? bars[bars.length - 1];
    if (now && aside) {
      const row = bars.filter((bar) => bar.y === now.y).sort((a, b) => a.x - b.x || a.job.id - b.job.id);
      next = row[row.indexOf(now) + aside] ?? now;
    } else if (now) {
      const others = bars.filter((bar) => bar.y === now.y + down * ROW);
      next = others.sort((a, b) => Math.abs(middle(a) - middle(now)) - Math.abs(middle(b) - middle(now)))[0] ?? now;
    }
    this.cursor = next.job.id;
    this.draw();
    say(this.said, `${called(next.job)} in ${next.job.lane}: ${lasted(next.job, this.now)}. Enter opens it.`);
  }

  /** @param {MouseEvent} event */
  #click(event) {
    const bar = this.bars.findLast(({ x, y, width }) => event.offsetX >= x - 2 && event.offsetX <= x + width + 2
      && event.offsetY >= y - 3 && event.offsetY <= y + BAR + 3);
    if (bar) tell(this, "lanes-pick", { id: bar.job.id, text: called(bar.job) });
  }
}

/** The colours and patterns of the page, as its style says.
 * @param {Element} from @param {CanvasRenderingContext2D} pen
 * @returns {Record<string, string | CanvasPattern>} */
function colours(from, pen) {
  const style = getComputedStyle(from);
  const of = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim() || "gray";
  const hatch = (/** @type {string} */ ink, /** @type {string} */ paper, /** @type {number} */ angle) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    if (!brush) return ink;
    brush.fillStyle = paper;
    brush.fillRect(0, 0, 6, 6);
    brush.strokeStyle = ink;
    brush.lineWidth = 1.5;
    brush.beginPath();
    if (angle > 0) { brush.moveTo(-1, 7); brush.lineTo(7, -1); }
    else if (angle < 0) { brush.moveTo(-1, -1); brush.lineTo(7, 7); }
    else { brush.moveTo(0, 3); brush.lineTo(6, 3); }
    brush.stroke();
    return pen.createPattern(tile, "repeat") ?? ink;
  };
  const paper = of("paper"), soft = of("grey"), lent = of("violet"), bad = of("red"), run = of("blue");
  return {
    text: of("ink"), soft: of("soft"), band: of("band"), warning: of("amber"), lent: hatch(lent, paper, -1), mark: lent,
    session: hatch(soft, paper, 1), lane: of("field"), runs: run, wants: hatch(lent, paper, 0), stops: hatch(bad, paper, 1),
    failed: bad, "session edge": soft, "lane edge": soft, "lent edge": lent, "wants edge": lent, "stops edge": bad, "failed edge": bad,
  };
}

customElements.define("lanes-timeline", Timeline);
export { Timeline };
