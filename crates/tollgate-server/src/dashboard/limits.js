// Every limit: what it let through, what it refused, how close to it its callers are.

import { drawSparkline, sparkline } from "./chart.js";
import { byId, element, setText } from "./dom.js";
import { count, percent, share } from "./format.js";
import { Table } from "./table.js";

const refused = (limit) => limit.denied + limit.shadow_denied;
const asked = (limit) => limit.allowed + refused(limit) + limit.store_failed;

const COLUMNS = [
  { name: "limit", title: "Limit", isText: true, value: (limit) => limit.limit, cell: named, update: name },
  { name: "spark-cell", title: "Last 15 minutes", isText: true, cell: sparkline, update: (svg, limit) => drawSparkline(svg, limit.spark) },
  { name: "allowed", title: "Allowed", value: (limit) => limit.allowed, text: (limit) => count(limit.allowed) },
  { name: "denied", title: "Denied", value: refused, cell: () => element("span", {}, element("span"), element("small")), update: setDenied },
  { name: "share", title: "Share denied", value: (limit) => (asked(limit) ? refused(limit) / asked(limit) : 0), text: (limit) => share(refused(limit), asked(limit)) },
  { name: "used", title: "In use", value: (limit) => limit.used ?? -1, cell: () => element("span", {}, element("span"), element("meter-bar")), update: setUsed },
];

function named() {
  return element("span", {}, element("b"), element("span", { class: "tag" }), element("span", { class: "tag" }), element("span", { class: "tag bad" }));
}

function name(cell, limit) {
  const [named, tier, mode, failed] = cell.children;
  setText(named, limit.limit);
  setText(tier, limit.tier);
  setText(mode, limit.mode === "enforce" ? "" : limit.mode);
  setText(failed, limit.store_failed ? `${count(limit.store_failed)} not counted` : "");
}

function setDenied(cell, limit) {
  setText(cell.firstElementChild, count(refused(limit)));
  setText(cell.lastElementChild, limit.shadow_denied ? "in shadow" : "");
}

function setUsed(cell, limit) {
  setText(cell.firstElementChild, percent(limit.used));
  cell.lastElementChild.style.setProperty("--share", limit.used ?? 0);
}

export class Limits {
  constructor() {
    this.table = new Table(byId("limits-table"), "Limits", COLUMNS);
    byId("limits-filter").addEventListener("input", () => this.live && this.show(this.live));
  }

  show(live) {
    this.live = live;
    const wanted = byId("limits-filter").value.trim().toLowerCase();
    const fits = (limit) => `${limit.limit} ${limit.tier} ${limit.mode}`.toLowerCase().includes(wanted);
    // What stands for limits that no policy names is told only where there is any.
    const told = live.limits.filter((limit) => !limit.limit.startsWith("#") || asked(limit) > 0);
    const fitting = told.filter(fits);
    const more = this.table.show(fitting, (limit) => `${limit.limit} ${limit.tier}`);
    const counted = `${fitting.length} of ${told.length} limits and tiers, counted since ${this.since(live)}`;
    setText(byId("limits-note"), more ? `${counted}; ${more} are not shown, filter for them` : counted);
  }

  since(live) {
    return new Date(live.started_ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
  }
}
