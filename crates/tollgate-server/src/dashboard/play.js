// Trying the algorithms: the server replays what was sent by the functions that decide real requests, and
// this draws what they say. Whoever changes the limit sees the same requests under the other one.

import { byId, drawing, element, setAttribute, setText } from "./dom.js";
import { duration } from "./format.js";
import { ask } from "./server.js";

const ASK_MS = 250;
/// Parts of a day, in seconds: their windows by the clock begin when playing does.
const WINDOWS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60];
const SENT_MAX = 500;
const HEIGHT = 230;
const VESSEL = { left: 2, top: 14, width: 104, height: 170 };
const TIMELINE_LEFT = 138;
const AXIS = 128;
const DOT = 7;

const ABOUT = {
  token_bucket: "The bucket holds its burst and refills all the time. A request takes one, or is denied if there is none.",
  leaky_bucket: "Requests wait in the bucket, which lets one out at even distances. What does not fit in is denied.",
  sliding_window: "Counts this window of the clock and what is left of the last one, which fades out.",
  fixed_window: "Counts each window of the clock alone; at its end everything comes back at once.",
  sliding_log: "Remembers when each request was allowed: never more than the rate in any stretch of one window.",
};
const SIZES = { token_bucket: ["Burst", "burst"], leaky_bucket: ["Queue", "queue"] };

export class Play {
  constructor() {
    for (const name of ["algorithm", "count", "window", "size"]) byId(`play-${name}`).addEventListener("input", () => this.change());
    byId("play-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(1);
    });
    byId("play-send-ten").addEventListener("click", () => this.send(10));
    byId("play-again").addEventListener("click", () => this.startOver());
    this.stage = new Stage(byId("play-stage"));
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.startOver();
  }

  startOver() {
    this.began = performance.now();
    this.lastSent = 0;
    /// What the server is asked about, and what no longer matters and is only drawn.
    this.sent = [];
    this.past = [];
    this.now = null;
    setText(byId("play-said"), "Nothing was sent yet.");
    this.change();
  }

  get millis() {
    return Math.round(performance.now() - this.began);
  }

  get windowMs() {
    return WINDOWS[byId("play-window").value] * 1000;
  }

  change() {
    const [algorithm, count, size] = ["algorithm", "count", "size"].map((name) => byId(`play-${name}`).value);
    const window = this.windowMs / 1000;
    this.algorithm = algorithm;
    this.limit = { rate: `${count}/${window}s`, algorithm };
    const [says, field] = SIZES[algorithm] ?? [];
    byId("play-size-field").hidden = !field;
    if (field) this.limit[field] = Number(size);
    setText(byId("play-size-name"), says ?? "");
    setText(byId("play-count-said"), count);
    setText(byId("play-window-said"), `${window} s`);
    setAttribute(byId("play-window"), "aria-valuetext", `${window} seconds`);
    setText(byId("play-size-said"), size);
    setText(byId("play-rule"), Object.entries(this.limit).map(([name, value]) => `${name}: ${value}`).join(", "));
    setText(byId("play-about"), ABOUT[algorithm]);
    // What no longer mattered may matter under another limit.
    this.sent = [...this.past, ...this.sent].slice(-SENT_MAX);
    this.past = [];
    this.capacity = field ? Number(size) : Number(count);
    this.ask();
  }

  send(times) {
    if (this.sent.length + times > SENT_MAX) {
      return setText(byId("play-said"), `${SENT_MAX} requests are the most that are replayed; wait until the limit is whole again, or start over.`);
    }
    const at_ms = this.millis;
    for (let number = 0; number < times; number += 1) this.sent.push({ at_ms, answer: null });
    this.lastSent = times;
    return this.ask();
  }

  /// Asks what became of everything; what changes meanwhile is asked about next, one question at a time.
  async ask() {
    this.isOutdated = true;
    // Who does not look at it asks for nothing.
    if (this.isAsking || !this.isShown) return;
    this.isAsking = true;
    while (this.isOutdated) {
      this.isOutdated = false;
      await this.askOnce();
    }
    this.isAsking = false;
  }

  async askOnce() {
    const { sent, limit } = this;
    const count = sent.length;
    const isOther = () => this.sent !== sent || this.limit !== limit;
    try {
      const told = await ask("/v1/play", "POST", { limit, sent: sent.map(({ at_ms }) => ({ at_ms, cost: 1 })), now_ms: this.millis });
      if (isOther()) return;
      told.answers.forEach((answer, which) => (sent[which].answer = answer));
      this.now = { ...told.now, at: this.millis };
      this.tell();
      const isVacant = told.now.remaining === told.now.limit && told.now.reset_after_ms === 0;
      if (isVacant && sent.length === count) {
        this.past = [...this.past, ...sent].slice(-SENT_MAX);
        this.sent = [];
      }
    } catch (error) {
      // A token is asked for elsewhere.
      if (!isOther() && error.status !== 401) setText(byId("play-said"), error.message);
    }
    this.draw();
  }

  tell() {
    const last = this.sent.slice(-this.lastSent).map(({ answer }) => answer);
    if (!this.lastSent || !last.length || last.includes(null)) return;
    const allowed = last.filter((answer) => answer.allowed);
    const denied = last.filter((answer) => !answer.allowed);
    const wait = denied.at(-1)?.retry_after_ms;
    const delay = Math.max(0, ...allowed.map((answer) => answer.delay_ms));
    const said = [`Sent ${last.length}:`];
    said.push(allowed.length ? `${allowed.length} allowed${delay ? `, the last after ${duration(delay)}` : ""}` : "none allowed");
    if (denied.length) said.push(`and ${denied.length} denied${wait ? `; a retry is allowed after ${duration(wait)}` : ""}`);
    setText(byId("play-said"), `${said.join(" ")}.`);
    this.lastSent = 0;
  }

  enter() {
    this.isShown = true;
    clearInterval(this.asking);
    // Nothing changes by itself where nothing is used.
    this.asking = setInterval(() => !document.hidden && !this.isAsking && this.sent.length && this.ask(), ASK_MS);
    this.ask();
    cancelAnimationFrame(this.frame);
    const animate = () => {
      if (!this.still.matches) this.draw();
      this.frame = requestAnimationFrame(animate);
    };
    animate();
    this.draw();
  }

  leave() {
    this.isShown = false;
    clearInterval(this.asking);
    cancelAnimationFrame(this.frame);
  }

  draw() {
    const now = this.millis;
    this.past = this.past.filter(({ at_ms }) => now - at_ms < 3 * this.windowMs);
    this.stage.draw({
      now,
      algorithm: this.algorithm,
      windowMs: this.windowMs,
      requests: [...this.past, ...this.sent],
      state: this.now,
      level: this.level(now),
      capacity: this.capacity,
    });
  }

  /// How full the vessel is, from 0 to 1: with what is left of a token bucket, with what is used of the others.
  level(now) {
    const holdsTokens = this.algorithm === "token_bucket";
    if (!this.now) return holdsTokens ? 1 : 0;
    const { limit, remaining, reset_after_ms, at } = this.now;
    // A bucket moves all the time; its time until it is whole again tells more than whole numbers do.
    const isBucket = this.algorithm in SIZES;
    const [rate] = this.limit.rate.split("/");
    const owed = isBucket ? (Math.max(0, reset_after_ms - (now - at)) * rate) / this.windowMs : limit - remaining;
    const used = Math.min(1, owed / limit);
    return holdsTokens ? 1 - used : used;
  }
}

/// The picture: a vessel, and the requests as they go by.
class Stage {
  constructor(parent) {
    this.fluid = drawing("rect", { class: "fluid", x: VESSEL.left, width: VESSEL.width });
    this.lines = drawing("g");
    this.vessel = drawing("path", { class: "vessel" });
    this.amount = drawing("text", { class: "amount", x: VESSEL.left + VESSEL.width / 2, y: VESSEL.top + VESSEL.height + 26, "text-anchor": "middle" });
    this.windows = drawing("g");
    this.axis = drawing("line", { class: "rule" });
    this.requests = drawing("g");
    this.marks = drawing("g");
    this.svg = drawing("svg", { class: "stage", height: HEIGHT, role: "img", "aria-label": "A vessel that fills and drains, and requests as time passes" },
      this.fluid, this.lines, this.vessel, this.amount, this.windows, this.axis, this.requests, this.marks);
    parent.append(this.svg, element("p", { class: "readout" },
      element("span", { class: "legend" }, element("i", { class: "dot allowed" }), "allowed"),
      element("span", { class: "legend" }, element("i", { class: "dot denied" }), "denied"),
      (this.waits = element("span", { class: "legend" }, element("i", { class: "dot waiting" }), "waits for its turn"))));
    this.parent = parent;
  }

  draw(scene) {
    const width = this.parent.clientWidth;
    if (!width) return;
    this.svg.setAttribute("width", width);
    this.drawVessel(scene);
    const span = Math.max(2 * scene.windowMs, 4000);
    const x = (millis) => width - 8 - ((scene.now - millis) / span) * (width - TIMELINE_LEFT - 8);
    this.drawWindows(scene, x, span, width);
    this.drawRequests(scene, x, span);
  }

  drawVessel({ algorithm, level, capacity, state }) {
    const { left, top, width, height } = VESSEL;
    const bottom = top + height;
    const isBucket = algorithm in SIZES;
    this.waits.hidden = algorithm !== "leaky_bucket";
    this.fluid.setAttribute("y", bottom - level * height);
    this.fluid.setAttribute("height", level * height);
    this.fluid.classList.toggle("used", algorithm !== "token_bucket");
    this.vessel.setAttribute("d", isBucket ? `M${left},${top}V${bottom}H${left + width}V${top}` : `M${left},${top}V${bottom}H${left + width}V${top}Z`);
    const units = capacity <= 25 ? capacity : 0;
    if (this.units !== units) {
      this.units = units;
      const lines = Array.from({ length: Math.max(0, units - 1) }, (_, number) => top + (height * (number + 1)) / units);
      this.lines.replaceChildren(...lines.map((y) => drawing("line", { class: "unit", x1: left, x2: left + width, y1: y, y2: y })));
    }
    const left_over = state ? state.remaining : capacity;
    setText(this.amount, `${left_over} of ${capacity} left`);
  }

  drawWindows({ now, algorithm, windowMs }, x, span, width) {
    this.axis.setAttribute("x1", TIMELINE_LEFT);
    this.axis.setAttribute("x2", width - 8);
    this.axis.setAttribute("y1", AXIS);
    this.axis.setAttribute("y2", AXIS);
    const shapes = [];
    const marks = [];
    const band = (from, to) => {
      const start = Math.max(TIMELINE_LEFT, x(from));
      return drawing("rect", { class: "band", x: start, y: VESSEL.top, width: Math.max(0, Math.min(x(to), width - 8) - start), height: VESSEL.height });
    };
    if (algorithm === "sliding_log") shapes.push(band(now - windowMs, now));
    if (algorithm === "fixed_window" || algorithm === "sliding_window") {
      const begun = Math.floor(now / windowMs) * windowMs;
      shapes.push(band(begun, now));
      for (let start = begun; start > now - span && start >= 0; start -= windowMs) shapes.push(drawing("line", { class: "boundary", x1: x(start), x2: x(start), y1: VESSEL.top, y2: VESSEL.top + VESSEL.height }));
    }
    marks.push(drawing("text", { class: "mark", x: width - 8, y: VESSEL.top + VESSEL.height + 26, "text-anchor": "end" }, "now"));
    marks.push(drawing("text", { class: "mark", x: TIMELINE_LEFT, y: VESSEL.top + VESSEL.height + 26 }, `${duration(span)} ago`));
    this.windows.replaceChildren(...shapes);
    this.marks.replaceChildren(...marks);
  }

  /// Requests of one moment are piled up: those allowed above the line, those denied below.
  drawRequests({ now, requests }, x, span) {
    const piles = new Map();
    const dots = [];
    for (const { at_ms, answer } of requests) {
      if (!answer || now - at_ms > span) continue;
      const outcome = answer.allowed ? "allowed" : "denied";
      const isWaiting = answer.allowed && at_ms + answer.delay_ms > now;
      const at = answer.allowed ? Math.min(now, at_ms + answer.delay_ms) : at_ms;
      const pile = `${Math.round((at * 60) / span)} ${outcome}`;
      const below = piles.get(pile) ?? 0;
      piles.set(pile, below + 1);
      const rise = DOT * (0.8 + Math.min(below, answer.allowed ? 14 : 6));
      dots.push(drawing("circle", { class: isWaiting ? "sent waiting" : `sent ${outcome}`, cx: x(at), cy: answer.allowed ? AXIS - rise : AXIS + rise, r: 2.8 }));
    }
    this.requests.replaceChildren(...dots);
  }
}
