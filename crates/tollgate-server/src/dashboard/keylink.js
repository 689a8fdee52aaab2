// A key as a link to its page: its text, and what it says where the text is escaped.

import { element, setAttribute, setText } from "./dom.js";
import { readable } from "./format.js";

export const hashOf = (key) => `#/keys/${encodeURIComponent(key)}`;

export function keyLink() {
  return element("a", { class: "key" }, element("bdi"), element("bdi", { class: "readable" }));
}

export function setKeyLink(link, key) {
  setAttribute(link, "href", hashOf(key));
  setText(link.firstElementChild, key);
  setText(link.lastElementChild, readable(key) ?? "");
}
