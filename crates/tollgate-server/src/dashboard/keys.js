// Who is denied most and who asks most; and the keys that are allowed something else.

import { byId, element, setText } from "./dom.js";
import { count, duration, rate, when } from "./format.js";
import { KeyPage } from "./key.js";
import { hashOf, keyLink, setKeyLink } from "./keylink.js";
import { inWords } from "./override.js";
import { ask } from "./server.js";
import { Table } from "./table.js";

const KEY = { name: "key", title: "Key", isText: true, value: (told) => told.key, cell: keyLink, update: (link, told) => setKeyLink(link, told.key) };

const counted = (which, title) => ({
  name: which,
  title,
  value: (told) => told[which],
  text: (told) => count(told[which]),
});

const columns = () => [
  KEY,
  counted("denied", "Denied"),
  { name: "denied-rate", title: "Denied / s", value: (told) => told.denied_rate, text: (told) => rate(told.denied_rate) },
  counted("requests", "Requests"),
  { name: "rate", title: "Requests / s", value: (told) => told.rate, text: (told) => rate(told.rate) },
  { name: "first", title: "First seen", value: (told) => told.first_seen_ms, text: (told) => when(told.first_seen_ms, Date.now()) },
  { name: "in", title: "Limits", isText: true, text: (told) => told.limits.join(", ") },
  { name: "obeys", title: "Obeys Retry-After", isText: true, cell: () => element("span"), update: setObeys },
];

function setObeys(cell, { obeys, early }) {
  setText(cell, obeys === null ? "–" : obeys ? "yes" : `no, ${count(early)} early`);
  cell.className = obeys === false ? "tag bad" : "";
}

const OVERRIDE_COLUMNS = [
  KEY,
  { name: "allowed-instead", title: "Allowed instead", isText: true, text: (one) => inWords(one) },
  { name: "until", title: "Until", value: (one) => one.until_ms ?? Infinity, text: (one) => (one.until_ms ? when(one.until_ms, Date.now()) : "removed") },
];

const chosen = (name) => document.querySelector(`#keys input[name=${name}]:checked`).value;

export class Keys {
  constructor(changed) {
    const parent = byId("keys-table");
    this.page = new KeyPage(changed);
    this.isOfOne = false;
    this.frequent = new Table(parent, "Keys", columns(), "denied");
    this.overrides = new Table(parent, "Overrides", OVERRIDE_COLUMNS);
    this.search = byId("keys-search");
    this.search.addEventListener("input", () => this.show());
    for (const choice of ["keys-by", "keys-over"]) {
      byId(choice).addEventListener("change", () => {
        this.told = null;
        const by = chosen("by");
        [this.frequent.sortedBy, this.frequent.isDown] = [by === "busy" ? "requests" : "denied", true];
        changed();
      });
    }
    byId("keys-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.search.value.trim();
      if (key) location.hash = hashOf(key);
    });
  }

  /// Shows one key, or the list of many.
  enter(escapedKey) {
    this.isOfOne = escapedKey !== "";
    byId("keys-list").hidden = this.isOfOne;
    byId("key-page").hidden = !this.isOfOne;
    this.askedAt = undefined;
    if (this.isOfOne) this.page.open(decoded(escapedKey));
  }

  /// Longer spans move slower, and are more work to add up.
  get pauseMs() {
    if (this.isOfOne) return 1000;
    return chosen("by") !== "overrides" && chosen("over") === "minute" ? 1000 : 5000;
  }

  async regularly(live) {
    if (this.isOfOne) return this.page.ask(live);
    const [by, over] = [chosen("by"), chosen("over")];
    const told = await ask(by === "overrides" ? "/v1/overrides" : `/v1/keys?${by}=1&over=${over}`);
    // Another choice may have been made meanwhile.
    if (by !== chosen("by") || over !== chosen("over")) return undefined;
    this.told = told;
    return this.show();
  }

  show() {
    if (!this.told) return;
    const isOfOverrides = chosen("by") === "overrides";
    byId("keys-over").disabled = isOfOverrides;
    const [shown, hidden] = isOfOverrides ? [this.overrides, this.frequent] : [this.frequent, this.overrides];
    shown.body.parentElement.hidden = false;
    hidden.body.parentElement.hidden = true;
    const wanted = this.search.value.trim().toLowerCase();
    const all = isOfOverrides ? this.told.overrides : this.told.keys;
    const text = (told) => [told.key, ...(told.limits ?? [])].join(" ");
    const fits = (told) => text(told).toLowerCase().includes(wanted) || decoded(told.key).toLowerCase().includes(wanted);
    const fitting = all.filter(fits);
    shown.show(fitting, (told) => told.key);
    setText(byId("keys-note"), isOfOverrides ? `${all.length} keys are allowed something else than the policy says` : this.note(fitting.length, all));
  }

  note(fitting, all) {
    const { period_ms, denied, requests } = this.told;
    const error = Math.max(0, ...all.map((told) => told.error));
    const exact = error ? `; a count may be up to ${count(error)} too large` : "";
    return `${count(denied)} of ${count(requests)} requests denied in ${duration(period_ms)}; ${fitting} keys shown${exact}`;
  }
}

function decoded(key) {
  try {
    return decodeURIComponent(key);
  } catch {
    return key;
  }
}
