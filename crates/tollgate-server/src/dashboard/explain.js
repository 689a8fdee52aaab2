// Which limits a request meets, and why the others do not apply.

import { byId, element } from "./dom.js";
import { duration } from "./format.js";
import { keyLink, setKeyLink } from "./keylink.js";
import { inWords, untilWhen } from "./override.js";
import { ask } from "./server.js";

const RULINGS = {
  exempt: "it is on the exempt list",
  blocked: "it is on the deny list",
  unknown_key: "its API key is unknown",
  bad_cost: "what it says it costs is not a cost",
  uncounted: "a limit could not be counted",
};

export class Explain {
  constructor() {
    byId("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.explain();
    });
  }

  async explain() {
    const place = byId("explained");
    try {
      const attributes = read(byId("explain-attributes").value);
      const told = await ask("/v1/explain", "POST", { attributes, door: byId("explain-door").value });
      place.replaceChildren(...shown(told));
    } catch (error) {
      place.replaceChildren(element("p", { class: "wrong" }, error.message));
    }
  }
}

/// Attributes of lines `name=value`.
function read(text) {
  const pairs = new Map();
  for (const line of text.split("\n").map((line) => line.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`"${line}" is not name=value; write for example path=/login`);
    const name = line.slice(0, at).trim();
    if (pairs.has(name)) throw new Error(`${name} is said twice`);
    pairs.set(name, line.slice(at + 1).trim());
  }
  return Object.fromEntries(pairs);
}

function shown(told) {
  const outcome = told.allowed ? "allowed" : "denied";
  const ban = told.limits.find((limit) => limit.override?.ban)?.override;
  const banned = ban ? `it is banned ${untilWhen(ban)}` : null;
  const why = banned ?? RULINGS[told.ruling] ?? (told.limits.some((limit) => limit.applies) ? null : "no limit applies");
  const caller = [told.tenant && `tenant ${told.tenant}`, told.tier && `tier ${told.tier}`].filter(Boolean).join(", ");
  return [
    element("p", { class: "verdict" }, element("b", { class: outcome }, outcome), why ? `: ${why}` : "", caller ? element("span", { class: "note" }, `taken for ${caller}`) : null),
    element("ul", { class: "met" }, ...told.limits.map((one) => limit(one, Boolean(ban)))),
  ];
}

function limit(told, isBanned) {
  if (!told.applies) {
    return element("li", { class: "idle" }, element("b", {}, told.name), element("p", {}, `does not apply: ${told.why}`));
  }
  const terms = [told.rate ?? "at a time", told.algorithm, told.shadow ? "shadow" : null].filter(Boolean).join(" · ");
  const lines = [element("p", { class: "terms" }, terms)];
  if (told.key) {
    const link = keyLink();
    setKeyLink(link, told.key);
    lines.push(element("p", {}, link));
  }
  if (told.override?.ban) {
    lines.push(element("p", {}, element("span", { class: "denied" }, `banned ${untilWhen(told.override)}`)));
  } else if (isBanned) {
    lines.push(element("p", { class: "note" }, "not asked, since another key of the request is banned"));
  } else if (told.limit !== undefined && told.limit !== null) {
    const delay = told.delay_ms ? ` after ${duration(told.delay_ms)}` : "";
    const wait = told.retry_after_ms ? ` for ${duration(told.retry_after_ms)}` : "";
    const outcome = told.allowed ? "allowed" : "denied";
    lines.push(element("p", {}, element("span", { class: outcome }, outcome + delay + wait), `, ${told.remaining} of ${told.limit} left`));
  }
  if (told.override && !told.override.ban) {
    lines.push(element("p", {}, `by an override, ${untilWhen(told.override)}: ${inWords(told.override)}`));
  }
  if (told.note) lines.push(element("p", { class: "note" }, told.note));
  return element("li", {}, element("b", {}, told.name), ...lines);
}
