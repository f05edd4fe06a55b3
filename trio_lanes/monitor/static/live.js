// The live part of a page, of the monitor's or of another page of the same site: it follows the
// frames, gives them to the elements inside of it, and sends their actions.
import "./elements.js";
import { Timeline } from "./timeline.js";
import { ask, detail, h, say, served, tell } from "./tools.js";

/** @typedef {import("./types").Frame} Frame */
const PARTS = "lanes-health, lanes-totals, lanes-table, lanes-timeline, lanes-noticed, lanes-sessions, lanes-replay, lanes-story, lanes-hour, lanes-durable";

/** @typedef {Element & {frame?: Frame, operates?: boolean}} Part */

class Live extends HTMLElement {
  /** @type {Frame | null} */
  latest = null;
  frozen = false;
  operates = false;
  #token = "";
  question = h("p", { id: "ask-text" });
  toasts = h("div", { id: "toasts", role: "status", "aria-live": "polite" });
  dialog = h("dialog", { id: "ask", "aria-labelledby": "ask-text" }, h("form", { method: "dialog" }, this.question,
    h("button", { value: "no" }, "Leave as it is"), " ", h("button", { value: "yes", class: "danger", id: "ask-yes" }, "Do it")));
  #record = -1;
  #came = 0;

  connectedCallback() {
    if (this.toasts.isConnected) return;
    this.append(this.toasts, this.dialog);
    this.addEventListener("lanes-act", (event) => void this.act(detail(event)));
    setInterval(() => {
      const silent = performance.now() - this.#came;
      if (this.#came && silent > 3000) tell(this, "lanes-link", `no news for ${Math.round(silent / 1000)} s`);
    }, 1000);
    void this.#begin();
  }

  /** @returns {Part[]} */
  get parts() {
    return [...this.querySelectorAll(PARTS)];
  }

  /** Ask for the role, which may have changed, and follow the frames. */
  async #begin() {
    const { ok, said } = await ask("access");
    if (!ok) { this.#again(); return; }
    this.#token = said.token;
    this.operates = said.role === "operate";
    for (const part of this.parts) if ("operates" in part) part.operates = this.operates;
    const source = new EventSource(served("frames"));
    source.onmessage = (event) => this.#show(JSON.parse(event.data));
    source.onerror = () => { source.close(); this.#again(); };
  }

  #again() {
    tell(this, "lanes-link", "reconnecting");
    setTimeout(() => void this.#begin(), 2000);
  }

  /** @param {Frame} frame */
  #show(frame) {
    this.#came = performance.now();
    this.latest = frame;
    const missed = this.#record >= 0 && frame.record - frame.ended.length > this.#record;
    if (this.#record < 0 || missed) void this.#catchUp(Math.max(this.#record, 0));
    this.#record = frame.record;
    for (const part of this.parts) if ("frame" in part && (part instanceof Timeline || !this.frozen)) part.frame = frame;
    tell(this, "lanes-link", this.frozen ? "frozen" : "live");
    tell(this, "lanes-frame", frame);
  }

  /** The records that this page has missed. @param {number} after */
  async #catchUp(after) {
    const { ok, said } = await ask(`history?after=${after}`);
    if (!ok) return;
    for (const part of this.parts) if (part instanceof Timeline) part.ended = said.ended;
  }

  /** @param {boolean} frozen */
  freeze(frozen) {
    this.frozen = frozen;
    for (const part of this.parts) if (part instanceof Timeline) part.frozen = frozen;
    tell(this, "lanes-link", frozen ? "frozen" : "live");
  }

  /** @param {Record<string, unknown>} action */
  async act(action) {
    const { ask: question, ...wanted } = action;
    if (typeof question === "string" && !await this.#confirmed(question)) return;
    const { said } = await ask("act", { method: "POST", body: JSON.stringify(wanted),
      headers: { "Content-Type": "application/json", "X-Lanes-Token": this.#token } });
    this.#toast(said.error ?? said.text, said.error !== undefined, said.undo, said.seconds);
    tell(this, "lanes-acted", wanted);
  }

  /** @param {string} question @returns {Promise<boolean>} */
  #confirmed(question) {
    const { dialog } = this;
    say(this.question, question);
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
  }

  /** @param {string} text @param {boolean} bad @param {string} [undo] @param {number} [left] */
  #toast(text, bad, undo, left = 6) {
    const shown = h("div", { class: bad ? "toast bad" : "toast" }, h("span", {}, text));
    this.toasts.append(shown);
    const ends = performance.now() + left * 1000;
    if (undo) {
      const button = h("button", { type: "button", click: () => { close(); void this.act({ do: "undo", key: undo }); } }, "Undo");
      shown.append(button);
      const timer = setInterval(() => say(button, `Undo (${Math.max(0, Math.ceil((ends - performance.now()) / 1000))} s)`), 500);
      setTimeout(() => clearInterval(timer), left * 1000);
    }
    const close = () => shown.remove();
    setTimeout(close, left * 1000);
  }
}

customElements.define("lanes-live", Live);
export { Live };
