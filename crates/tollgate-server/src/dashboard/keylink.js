// A key as a link to its page: its text, and what it says where the text is escaped. Of a very long one only
// the beginning is known, by which nobody finds it.

import { element, setAttribute, setText } from "./dom.js";
import { readable } from "./format.js";

export const hashOf = (key) => `#/keys/${encodeURIComponent(key)}`;

export function keyLink() {
  return element("a", { class: "key" }, element("bdi"), element("bdi", { class: "readable" }));
}

export function setKeyLink(link, key) {
  // Keys are plain letters, so that no key ends like this by itself.
  const isCut = key.endsWith("…");
  if (isCut) link.removeAttribute("href");
  else setAttribute(link, "href", hashOf(key));
  setText(link.firstElementChild, key);
  setText(link.lastElementChild, isCut ? "too long to be shown whole" : (readable(key) ?? ""));
}
