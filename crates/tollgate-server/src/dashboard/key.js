// One key: what is left to it in every limit that counts the same values, what it was told of late, and
// what an operator can do about it.

import { confirm, field, howLong } from "./act.js";
import { byId, element, keep, setAttribute, setText } from "./dom.js";
import { clock, count, duration, readable } from "./format.js";
import { keyLink, setKeyLink } from "./keylink.js";
import { inWords, untilWhen } from "./override.js";
import { ask, pathOf } from "./server.js";

/// More limits than this are not asked about each second.
const RELATED_MAX = 12;
/// The field of an override that an algorithm knows besides its rate.
const SIZE = { token_bucket: "burst", leaky_bucket: "queue" };

export class KeyPage {
  constructor(changed) {
    this.changed = changed;
    const button = (text, act) => element("button", { type: "button", onclick: act }, text);
    this.name = element("bdi");
    this.readable = element("bdi", { class: "readable" });
    this.wrong = element("p", { class: "wrong", role: "status" });
    this.gauges = element("ul", { class: "gauges" });
    this.tiers = element("p", { class: "note" });
    this.recent = element("ol", { class: "recent" });
    this.noRecent = element("p", { class: "note" });
    this.override = element("p", {});
    this.removeButton = button("Remove override…", () => this.remove());
    this.buttons = element("p", { class: "buttons" }, button("Reset…", () => this.reset()), button("Ban…", () => this.ban()), button("Override…", () => this.change()), this.removeButton);
    this.title = element("h2", { class: "key-title", tabindex: "-1" }, this.name, this.readable);
    byId("key-page").append(
      element("p", {}, element("a", { href: "#/keys" }, "All keys")),
      this.title,
      this.wrong,
      this.buttons,
      this.override,
      element("div", { class: "columns" },
        element("section", { class: "panel" }, element("h3", {}, "What is left"), this.gauges, this.tiers),
        element("section", { class: "panel" }, element("h3", {}, "Of late"), this.recent, this.noRecent)),
    );
  }

  async open(key) {
    this.key = key;
    this.related = null;
    setText(this.name, key);
    setText(this.readable, readable(key) ?? "");
    setText(this.wrong, "");
    setText(this.noRecent, "");
    this.override.hidden = this.buttons.hidden = true;
    keep(this.gauges, [], String, null, null);
    keep(this.recent, [], String, null, null);
  }

  async ask(live) {
    const { key } = this;
    this.related ??= await related(key, live);
    const looks = await Promise.allSettled([key, ...this.related].map((one) => ask(pathOf("keys", one))));
    // Another key may have been opened meanwhile.
    if (key !== this.key) return;
    if (looks[0].status === "rejected") {
      // Nobody knows what a key that cannot be looked at has consumed.
      this.buttons.hidden = true;
      return setText(this.wrong, looks[0].reason.message);
    }
    this.show(looks.filter((look) => look.status === "fulfilled").map((look) => look.value));
  }

  show(looks) {
    const [own] = looks;
    this.look = own;
    setText(this.wrong, "");
    this.buttons.hidden = false;
    this.override.hidden = this.removeButton.hidden = own.override === null;
    setText(this.override, own.override === null ? "" : `Instead of what the policy says it is allowed ${inWords(own.override)}, ${untilWhen(own.override)}.`);
    const banOf = ({ override }) => (override?.ban ? override : null);
    const states = looks.flatMap((look) => look.limits.map((limit, number) => ({ ...limit, ban: banOf(look), id: `${look.key} ${number}` })));
    keep(this.gauges, states, (state) => state.id, gauge, (item, state) => setGauge(item, state, this.key));
    const isByTier = looks.some((look) => look.limits.length > 1);
    setText(this.tiers, isByTier ? "A key does not tell which of several rates of its limit applies: the request's tier does, or the request itself." : "");
    const recent = own.recent ?? [];
    keep(this.recent, recent, (told) => JSON.stringify(told), decision, () => {});
    setText(this.noRecent, recent.length ? "" : "Nothing is remembered of its last requests.");
  }

  /// Asks whether to act on the key that is shown now, and on no other, whatever is shown when that is answered.
  act(asked) {
    const { key } = this;
    confirm({
      ...asked,
      key,
      act: async (values) => {
        await asked.act(key, values);
        this.changed();
      },
    });
  }

  reset() {
    this.act({
      title: "Reset this key?",
      says: "What it has consumed is forgotten, and it begins anew.",
      does: "Reset",
      act: (key) => ask(pathOf("keys", key), "DELETE"),
    });
  }

  ban() {
    this.act({
      title: "Ban this key?",
      says: "Nothing of it is let through, whatever it has left.",
      does: "Ban",
      isHarsh: true,
      fields: [howLong()],
      act: (key, { ttl_ms }) => ask(pathOf("overrides", key), "PUT", { ban: true, ...(ttl_ms && { ttl_ms: Number(ttl_ms) }) }),
    });
  }

  change() {
    const { algorithm } = this.look.limits[0];
    const size = SIZE[algorithm];
    const fields = algorithm === "concurrency" ? [field("At a time", "concurrency", "10")] : [field("Rate", "rate", "900/minute")];
    if (size) fields.push(field(size === "burst" ? "Burst" : "Queue", size, "as the limit has it"));
    this.act({
      title: "Allow this key something else?",
      says: "It goes by this instead of what the policy says. What it has consumed stays consumed.",
      does: "Override",
      fields: [...fields, howLong()],
      act: (key, values) => {
        const said = Object.entries(values).filter(([, value]) => value !== "");
        const body = said.map(([name, value]) => [name, name === "rate" ? value : Number(value)]);
        return ask(pathOf("overrides", key), "PUT", Object.fromEntries(body));
      },
    });
  }

  remove() {
    this.act({
      title: "Remove the override of this key?",
      says: `It is allowed what the policy says again, and no longer ${inWords(this.look.override)}.`,
      does: "Remove",
      act: (key) => ask(pathOf("overrides", key), "DELETE"),
    });
  }
}

/// The keys of the same values in the other limits that count by the same attributes.
async function related(key, live) {
  const { limits } = await ask("/v1/policy");
  const [named] = key.split(":");
  const values = key.slice(named.length);
  const ruleOf = (name) => name.split("#")[0];
  let own;
  try {
    own = limits.find((limit) => limit.name === ruleOf(decodeURIComponent(named)));
  } catch {
    return [];
  }
  if (!own) return [];
  const isSame = (limit) => JSON.stringify(limit.per) === JSON.stringify(own.per);
  const rules = new Set(limits.filter(isSame).map((limit) => limit.name));
  const names = new Set([...rules, ...live.limits.map((limit) => limit.limit).filter((name) => rules.has(ruleOf(name)))]);
  return [...names].map((name) => escaped(name) + values).filter((one) => one !== key).slice(0, RELATED_MAX);
}

/// A limit's name as keys have it.
function escaped(name) {
  return encodeURIComponent(name).replace(/[!'()*]/g, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`);
}

function gauge() {
  const bar = element("meter-bar", { role: "meter", "aria-valuemin": "0" });
  return element("li", {}, keyLink(), element("span", { class: "terms" }), element("b"), bar, element("small"));
}

function setGauge(item, state, key) {
  const [link, terms, left, bar, waits] = item.children;
  setKeyLink(link, state.key);
  if (state.key === key) link.removeAttribute("href");
  setText(terms, [state.rate ?? "at a time", state.algorithm, state.shadow ? "shadow" : null].filter(Boolean).join(" · "));
  if (state.limit === null) return setText(left, "not known");
  const used = state.limit - state.remaining;
  setText(left, state.ban ? "banned" : `${count(state.remaining)} of ${count(state.limit)} left`);
  bar.style.setProperty("--share", state.limit ? used / state.limit : 1);
  bar.classList.toggle("full", state.remaining === 0);
  setAttribute(bar, "aria-valuemax", state.limit);
  setAttribute(bar, "aria-valuenow", used);
  setAttribute(bar, "aria-label", `in use of ${state.name} ${state.rate ?? ""}`);
  // What is left to it, and when more is, means nothing until the ban is over.
  if (state.ban) return setText(waits, untilWhen(state.ban));
  const next = state.remaining === 0 && state.next_after_ms ? `one more in ${duration(state.next_after_ms)}, ` : "";
  setText(waits, used ? `${next}whole again in ${duration(state.reset_after_ms)}` : "nothing used");
  return undefined;
}

function decision(told) {
  const outcome = told.allowed ? "allowed" : "denied";
  return element("li", {}, element("span", {}, clock(told.at_ms)), element("span", { class: outcome }, outcome), element("span", {}, `${count(told.remaining)} left`));
}
