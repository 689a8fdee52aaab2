// How the server is: its store, its doors, and the policy that it goes by.

import { byId, element, keep, setText } from "./dom.js";
import { bytes, count, duration, percent, when } from "./format.js";
import { ask } from "./server.js";
import { Table } from "./table.js";

/// Pairs of a name and a value, each in a line.
class Facts {
  constructor(parent) {
    this.list = element("dl", { class: "facts" });
    parent.append(this.list);
  }

  show(pairs) {
    const make = ([name]) => element("div", {}, element("dt", {}, name), element("dd"));
    keep(this.list, pairs, ([name]) => name, make, (line, [, value, isBad]) => {
      setText(line.lastElementChild, value);
      line.classList.toggle("bad", Boolean(isBad));
    });
  }
}

const SERVER_COLUMNS = [
  { name: "address", title: "Redis", isText: true, value: (one) => one.address, text: (one) => one.address },
  { name: "state", title: "State", isText: true, cell: () => element("span"), update: setState },
  ...["calls", "timeouts", "failures", "not_sent"].map((name) => ({ name, title: name.replace("_", " "), value: (one) => one[name], text: (one) => count(one[name]) })),
];

function setState(cell, { is_well }) {
  setText(cell, is_well ? "well" : "left alone");
  cell.className = is_well ? "" : "tag bad";
}

const LIMIT_COLUMNS = [
  { name: "name", title: "Limit", isText: true, value: (limit) => limit.name, text: (limit) => limit.name },
  { name: "algorithm", title: "Algorithm", isText: true, value: (limit) => limit.algorithm, text: (limit) => limit.algorithm },
  { name: "rates", title: "Rates", isText: true, text: (limit) => limit.rates.join(", ") },
  { name: "per", title: "Per", isText: true, text: (limit) => limit.per.map((names) => names.join(" or ")).join(", ") || "everyone together" },
  { name: "mode", title: "Mode", isText: true, text: (limit) => (limit.shadow ? "shadow" : "enforce") },
];

const times = (number) => ["never", "once"][number] ?? `${count(number)} times`;

export class Health {
  pauseMs = 5000;

  constructor() {
    this.store = new Facts(byId("store"));
    this.redis = element("div", { class: "within" });
    byId("store").append(this.redis);
    this.servers = new Table(this.redis, "Redis servers", SERVER_COLUMNS);
    this.doors = new Facts(byId("doors"));
    this.policy = new Facts(byId("policy"));
    this.error = element("pre", { class: "mistake", tabindex: "0" });
    this.warnings = element("ul", { class: "advice" });
    byId("policy").append(this.error, this.warnings);
    this.limits = new Table(byId("policy-limits"), "Limits in force", LIMIT_COLUMNS);
  }

  show({ memory, redis, doors, held, policy, now_ms }) {
    const place = redis ? "Redis; memory while it is away" : "memory";
    this.store.show([
      ["States are in", place],
      ["Keys in memory", count(memory.keys)],
      ["Memory used", `${bytes(memory.bytes)} of ${bytes(memory.max_bytes)}, ${percent(memory.bytes / memory.max_bytes)}`],
      ["Forgotten before their time", count(memory.evictions), memory.evictions > 0],
      ...(redis ? [["Settled without Redis", count(redis.settled_without), redis.settled_without > 0]] : []),
    ]);
    this.redis.hidden = !redis;
    if (redis) this.servers.show(redis.servers, (server) => server.address);
    this.doors.show([
      ...doors.map(({ door, open }) => [`${door}: connections open`, count(open)]),
      ["Requests held back now", count(held.now)],
      ["Turned away, since too many were held", count(held.shed), held.shed > 0],
    ]);
    const { loaded_ms, reloads, error, warnings } = policy;
    this.policy.show([
      ["In force since", `${when(loaded_ms, now_ms)}, for ${duration(Math.max(0, now_ms - loaded_ms))}`],
      ["Loaded anew", times(reloads.succeeded)],
      ["Refused, since there was a mistake", times(reloads.failed), error !== null],
    ]);
    this.error.hidden = error === null;
    setText(this.error, error ?? "");
    keep(this.warnings, warnings, String, (warning) => element("li", {}, warning), () => {});
  }

  async regularly() {
    this.told = await ask("/v1/policy");
    this.limits.show(this.told.limits, (limit) => limit.name);
  }
}
