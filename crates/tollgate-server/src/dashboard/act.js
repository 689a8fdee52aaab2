// What changes something is asked twice, by a dialog that names the key.

import { byId, element, setText } from "./dom.js";

const dialog = byId("dialog-act");
let act = null;

/// Asks whether to act on a key. `fields` are elements with a `name`; `act` is given their values, and
/// what it throws is shown.
export function confirm(asked) {
  setText(byId("act-title"), asked.title);
  setText(byId("act-key"), asked.key);
  setText(byId("act-says"), asked.says);
  setText(byId("act-wrong"), "");
  setText(byId("act-do"), asked.does);
  byId("act-do").className = asked.isHarsh ? "main danger" : "main";
  byId("act-fields").replaceChildren(...(asked.fields ?? []));
  act = asked.act;
  dialog.showModal();
}

/// Takes back what was asked, if it was not answered yet: whoever goes elsewhere does not mean it any more.
export function dismiss() {
  dialog.close();
}

export function field(label, name, placeholder) {
  return element("label", { class: "field over" }, label, element("input", { name, placeholder, autocomplete: "off", spellcheck: "false" }));
}

/// For how long, in milliseconds; nothing where it lasts until somebody ends it.
export function howLong() {
  const choices = [["600000", "10 minutes"], ["3600000", "1 hour"], ["86400000", "1 day"], ["604800000", "1 week"], ["", "until it is removed"]];
  const options = choices.map(([value, text]) => element("option", { value, selected: value === "3600000" }, text));
  return element("label", { class: "field over" }, "For", element("select", { name: "ttl_ms" }, ...options));
}

byId("act-not").addEventListener("click", () => dialog.close());

byId("act-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const named = [...byId("act-fields").querySelectorAll("[name]")];
  const values = Object.fromEntries(named.map(({ name, value }) => [name, value.trim()]));
  byId("act-do").disabled = true;
  try {
    await act(values);
    dialog.close();
  } catch (error) {
    setText(byId("act-wrong"), error.message);
  } finally {
    byId("act-do").disabled = false;
  }
});
