// The first view: how much is allowed and denied, how fast, and what deserves a look.

import { Charts } from "./chart.js";
import { byId, element, keep, setText } from "./dom.js";
import { compact, count, micros, share } from "./format.js";
import { keyLink, setKeyLink } from "./keylink.js";
import { ask } from "./server.js";

const TOP = 6;
/// Figures of one second jump about; those of a few can be read.
const RECENT = 5;

export class Overview {
  constructor(history) {
    this.history = history;
    this.charts = new Charts(byId("charts"), history);
  }

  show(live) {
    this.figures();
    this.charts.draw();
    this.advice(live.advice);
  }

  figures() {
    const recent = this.history.seconds.slice(-RECENT);
    if (!recent.length) return;
    const mean = (which) => recent.reduce((sum, second) => sum + second[which], 0) / recent.length;
    const last = (which) => this.history.seconds.findLast((second) => second[which] !== null)?.[which] ?? null;
    const [allowed, denied, other] = [mean("allowed"), mean("denied"), mean("other")];
    setText(byId("now-allowed"), compact(allowed));
    setText(byId("now-denied"), compact(denied));
    setText(byId("now-share"), share(denied, allowed + denied + other));
    setText(byId("now-p50"), micros(last("p50_us")));
    setText(byId("now-p99"), micros(last("p99_us")));
  }

  advice(list) {
    keep(byId("advice"), list, (advice) => advice.sentence, (advice) => element("li", { class: advice.kind }, advice.sentence), () => {});
    setText(byId("advice-note"), list.length ? "" : "Nothing to say: no limit is idle, crowded or being ridden.");
  }

  async regularly() {
    const { keys } = await ask("/v1/keys?denied=1&over=minute");
    const make = () => element("li", {}, keyLink(), element("b"), element("meter-bar"));
    const most = Math.max(1, ...keys.map((told) => told.denied));
    keep(byId("top-keys"), keys.slice(0, TOP), (told) => told.key, make, (item, told) => {
      const [link, figure, bar] = item.children;
      setKeyLink(link, told.key);
      setText(figure, count(told.denied));
      bar.style.setProperty("--share", told.denied / most);
    });
    setText(byId("top-note"), keys.length ? "" : "Nobody was denied.");
  }
}
