// What happened of late, second by second: allowed and denied above, how long a check took below.
// The pointer or the arrow keys choose a second; its values stand above the curves and are told to
// screen readers as the value of a slider.

import { drawing, element, setAttribute, setText } from "./dom.js";
import { clock, compact, micros } from "./format.js";

/// A young server's chart is this wide, and grows to all that is kept.
const SPAN_MIN = 120;
const LEFT = 46;
const RIGHT = 6;
const BELOW = 18;
const STEPS = [10, 15, 30, 60, 120, 180, 300];

export class Charts {
  constructor(parent, history) {
    this.history = history;
    this.chosen = null;
    this.byKeys = false;
    this.traffic = new Plot("traffic", 190, [["allowed", "allowed"], ["denied", "denied"]], true);
    this.latency = new Plot("latency", 84, [["p99", "99th percentile"], ["p50", "median"]], false);
    this.time = element("span", { class: "time" });
    this.other = element("span", { class: "other" });
    this.traffic.readout.prepend(this.time);
    this.traffic.readout.append(this.other);
    this.surface = element("div", {
      class: "surface", role: "slider", tabindex: "0", "aria-label": "Second that is shown", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0",
      onpointermove: (event) => this.point(event),
      onpointerdown: (event) => this.point(event),
      onpointerleave: () => this.choose(null),
      onkeydown: (event) => this.press(event),
      onblur: () => this.choose(null),
    }, this.traffic.svg, this.latency.title("Check latency"), this.latency.svg);
    parent.append(this.traffic.title("Requests a second"), this.surface);
    new ResizeObserver(() => this.draw()).observe(this.surface);
  }

  point(event) {
    const { left } = this.surface.getBoundingClientRect();
    const ratio = (event.clientX - left - LEFT) / Math.max(1, this.width - LEFT - RIGHT);
    this.byKeys = false;
    this.choose(this.first + Math.round(ratio * (this.span - 1)));
  }

  press(event) {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -60, PageUp: 60, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (event.key === "Escape") this.choose(null);
    if (move === undefined) return;
    event.preventDefault();
    this.byKeys = true;
    this.choose((this.chosen ?? this.history.last) + move);
  }

  choose(second) {
    this.chosen = second;
    this.draw();
  }

  draw() {
    const { history } = this;
    this.width = this.surface.clientWidth;
    if (!this.width || !history.seconds.length) return;
    this.span = Math.min(history.kept, Math.max(SPAN_MIN, history.seconds.length));
    this.first = history.last - this.span + 1;
    const oldest = history.last - history.seconds.length + 1;
    if (this.chosen !== null) this.chosen = Math.min(history.last, Math.max(oldest, this.chosen));
    const frame = { width: this.width, first: this.first, span: this.span, ticks: this.ticks() };
    this.traffic.draw(frame, history.seconds, oldest, this.chosen);
    this.latency.draw(frame, history.seconds, oldest, this.chosen);
    this.tell(oldest);
  }

  ticks() {
    const fitting = (this.width - LEFT) / 64;
    const step = STEPS.find((step) => this.span / step <= fitting) ?? 300;
    const ticks = [];
    for (let second = this.first; second <= this.history.last; second += 1) {
      const at = Math.floor(this.history.timeOf(second) / 1000);
      if (at % step === 0) ticks.push([second, clock(at * 1000, step < 60)]);
    }
    return ticks;
  }

  tell(oldest) {
    const second = this.chosen ?? this.history.last;
    const told = this.history.seconds[second - oldest];
    const time = clock(this.history.timeOf(second));
    setText(this.time, time);
    setText(this.other, told.other ? `other ${compact(told.other)}` : "");
    this.traffic.tell([compact(told.allowed), compact(told.denied)]);
    this.latency.tell([micros(told.p99_us), micros(told.p50_us)]);
    // Whoever listens is told what was asked for, and not every second that passes.
    if (this.surface === document.activeElement && !this.byKeys) return;
    this.byKeys = false;
    setAttribute(this.surface, "aria-valuemin", oldest);
    setAttribute(this.surface, "aria-valuemax", this.history.last);
    setAttribute(this.surface, "aria-valuenow", second);
    const took = told.p50_us === null ? "" : `, checks took ${micros(told.p50_us)} in the median`;
    setAttribute(this.surface, "aria-valuetext", `${time}: ${told.allowed} allowed, ${told.denied} denied${took}`);
  }
}

/// One pair of curves over the time.
class Plot {
  constructor(name, height, curves, isFilled) {
    this.height = height;
    this.curves = curves.map(([curve]) => curve);
    this.isFilled = isFilled;
    this.lines = this.curves.map((curve) => drawing("path", { class: `line ${curve}` }));
    this.areas = this.curves.map((curve) => drawing("path", { class: `area ${curve}` }));
    this.dots = this.curves.map((curve) => drawing("circle", { class: `point ${curve}`, r: 3.5 }));
    this.cross = drawing("line", { class: "cross" });
    this.grid = drawing("g");
    this.svg = drawing("svg", { class: `plot ${name}`, height, "aria-hidden": "true" }, this.grid, ...(isFilled ? this.areas : []), ...this.lines, this.cross, ...this.dots);
    this.values = this.curves.map(() => element("b"));
    const legend = curves.map(([curve, says], number) => element("span", { class: `legend ${curve}` }, element("i"), `${says} `, this.values[number]));
    this.readout = element("p", { class: "readout" }, ...legend);
  }

  title(text) {
    return element("div", { class: "chart-head" }, element("h3", {}, text), this.readout);
  }

  tell(texts) {
    texts.forEach((text, number) => setText(this.values[number], text));
  }

  draw({ width, first, span, ticks }, seconds, oldest, chosen) {
    const bottom = this.height - BELOW;
    const x = (second) => LEFT + ((second - first) / (span - 1)) * (width - LEFT - RIGHT);
    const { y, marks } = this.isFilled ? linear(highest(seconds), bottom) : decades(seconds, bottom);
    this.svg.setAttribute("width", width);
    this.drawGrid(marks, ticks, x, bottom, width);
    const value = { allowed: (s) => s.allowed, denied: (s) => s.denied, p50: (s) => s.p50_us, p99: (s) => s.p99_us };
    this.curves.forEach((curve, number) => {
      const line = path(seconds, oldest, x, (second) => y(value[curve](second)));
      this.lines[number].setAttribute("d", line);
      const end = oldest + seconds.length - 1;
      this.areas[number].setAttribute("d", `${line}L${x(end).toFixed(1)},${bottom}L${x(oldest).toFixed(1)},${bottom}Z`);
      const told = chosen === null ? undefined : value[curve](seconds[chosen - oldest]);
      const isThere = told !== undefined && told !== null;
      this.dots[number].classList.toggle("away", !isThere);
      if (isThere) setPoint(this.dots[number], x(chosen), y(told));
    });
    this.cross.classList.toggle("away", chosen === null);
    if (chosen !== null) setLine(this.cross, x(chosen), 4, x(chosen), bottom);
  }

  drawGrid(marks, ticks, x, bottom, width) {
    const lines = marks.map(([at, text]) => [
      drawing("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }),
      drawing("text", { class: "mark", x: LEFT - 8, y: at + 4, "text-anchor": "end" }, text),
    ]);
    const times = ticks.map(([second, text]) => drawing("text", { class: "mark", x: Math.min(x(second), width - 20), y: bottom + 14, "text-anchor": "middle" }, text));
    this.grid.replaceChildren(...lines.flat(), ...times);
  }
}

function setPoint(circle, x, y) {
  circle.setAttribute("cx", x);
  circle.setAttribute("cy", y);
}

function setLine(line, x1, y1, x2, y2) {
  Object.entries({ x1, y1, x2, y2 }).forEach(([name, value]) => line.setAttribute(name, value));
}

/// A line through all seconds; where there is no value there is a gap.
function path(seconds, oldest, x, y) {
  let text = "";
  let isDown = false;
  seconds.forEach((second, number) => {
    const at = y(second);
    if (at === null) {
      isDown = false;
      return;
    }
    const point = `${x(oldest + number).toFixed(1)},${at.toFixed(1)}`;
    // A second alone between gaps is seen as a dot.
    text += isDown ? `L${point}` : `M${point}h0`;
    isDown = true;
  });
  return text || "M0,0";
}

function highest(seconds) {
  return seconds.reduce((most, second) => Math.max(most, second.allowed, second.denied), 0);
}

function linear(most, bottom) {
  const top = niceAbove(Math.max(most, 4));
  const y = (value) => bottom - (value / top) * (bottom - 8);
  const marks = [0, top / 2, top].map((value) => [y(value), compact(value)]);
  return { y, marks };
}

/// The next round number that has a round half.
function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value) * power;
}

/// Latencies differ by powers of ten.
function decades(seconds, bottom) {
  const told = seconds.flatMap((second) => [second.p50_us, second.p99_us]).filter((value) => value !== null && value > 0);
  const [least, most] = told.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, 0]);
  const low = told.length ? Math.floor(Math.log10(least)) : 0;
  const high = Math.max(low + 1, told.length ? Math.ceil(Math.log10(most)) : 1);
  const place = (value) => bottom - ((Math.log10(value) - low) / (high - low)) * (bottom - 8);
  const y = (value) => (value === null ? null : Math.min(bottom, place(Math.max(value, 10 ** low))));
  const marks = [];
  // There is no room for more than a few.
  const step = high - low > 4 ? 2 : 1;
  for (let power = low; power <= high; power += step) marks.push([place(10 ** power), power < 0 ? `${10 ** power} µs` : micros(10 ** power).replace(".0", "")]);
  return { y, marks };
}

/// A small picture of the last quarter of an hour: allowed and denied in each step.
export function sparkline() {
  const [allowed, denied] = ["allowed", "denied"].map((curve) => drawing("path", { class: `area ${curve}` }));
  return drawing("svg", { class: "spark", viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, allowed, denied);
}

export function drawSparkline(svg, steps) {
  const most = Math.max(1, ...steps.flat());
  const area = (which) => {
    const tops = steps.map((step, number) => `L${(number * 120) / steps.length},${(24 - (step[which] / most) * 23).toFixed(1)}h${(120 / steps.length).toFixed(2)}`);
    return steps.length ? `M0,24${tops.join("")}L120,24Z` : "M0,0";
  };
  [...svg.children].forEach((path, which) => setAttribute(path, "d", area(which)));
}
