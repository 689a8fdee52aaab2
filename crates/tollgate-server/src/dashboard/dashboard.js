// The page: which view is seen, what is asked when, and what is said when nobody answers.

import { dismiss } from "./act.js";
import { byId, element, setText } from "./dom.js";
import { Explain } from "./explain.js";
import { count, duration } from "./format.js";
import { Health } from "./health.js";
import { History } from "./history.js";
import { keyLink, setKeyLink } from "./keylink.js";
import { Keys } from "./keys.js";
import { Limits } from "./limits.js";
import { Overview } from "./overview.js";
import { Play } from "./play.js";
import { Refused, ask, useToken, whenUnauthorized } from "./server.js";

const TICK_MS = 1000;
const PAUSE_MAX_MS = 5000;
/// So many keys of a storm are named; there may be hundreds, and the view of keys has them all.
const STORM_KEYS = 8;

const history = new History();
const views = {
  overview: new Overview(history),
  limits: new Limits(),
  keys: new Keys(() => askView(true).catch(failed)),
  server: new Health(),
  explain: new Explain(),
  play: new Play(),
};
const tabs = [...document.querySelectorAll("[role=tab]")];
let shown = "overview";
let live = null;
let failures = 0;
let timer = null;
/// Whether a token must be typed before anything else is asked: each question without one is an attempt that
/// the server writes down.
let isLocked = false;

// What is asked.

async function tick() {
  clearTimeout(timer);
  if (document.hidden || isLocked) return;
  const began = performance.now();
  try {
    let told = await ask(history.path);
    if (!history.take(told)) {
      told = await ask(history.path);
      history.take(told);
    }
    live = told;
    failures = 0;
    show();
    await askView().then(() => say("good", "live", null), failed);
  } catch (error) {
    failures += 1;
    failed(error);
  }
  if (isLocked) return;
  const pause = Math.min(PAUSE_MAX_MS, TICK_MS * 2 ** Math.max(0, failures - 1));
  clearTimeout(timer);
  timer = setTimeout(tick, Math.max(100, pause - (performance.now() - began)));
}

/// Asks what only the view that is seen needs, as often as it wants, or now.
async function askView(isNow = false) {
  const view = views[shown];
  const now = performance.now();
  const isSoon = now - (view.askedAt ?? -Infinity) < (view.pauseMs ?? TICK_MS) - TICK_MS / 2;
  if (isLocked || !live || !view.regularly || (isSoon && !isNow)) return;
  view.askedAt = now;
  await view.regularly(live);
}

function failed(error) {
  if (error instanceof Refused && error.status === 401) return say("waiting", "a token is needed", null);
  if (error instanceof Refused) return say("bad", "refused", `The server refuses to tell: ${error.message}`);
  const since = history.last === null ? "" : "; what is shown is what it told last";
  return say("bad", "not reachable", `The server does not answer${since}. Trying again.`);
}

function say(state, text, banner) {
  byId("link").dataset.state = state;
  setText(byId("link-text"), text);
  byId("banner-link").hidden = banner === null;
  setText(byId("banner-link"), banner ?? "");
}

// What is shown.

function show() {
  setText(byId("about"), `${live.version} · up ${duration(live.now_ms - live.started_ms)}`);
  storm(live.storm);
  const { error } = live.policy;
  byId("banner-policy").hidden = error === null;
  setText(byId("banner-mistake"), error ?? "");
  views[shown].show?.(live);
}

function storm({ is_storm, denied, early, keys }) {
  const banner = byId("banner-storm");
  banner.hidden = !is_storm;
  const said = is_storm ? JSON.stringify([denied, early, keys]) : "";
  if (!is_storm || banner.said === said) return;
  banner.said = said;
  const links = keys.slice(0, STORM_KEYS).map((key) => {
    const link = keyLink();
    setKeyLink(link, key);
    return element("li", {}, link);
  });
  const sentence = `Retry storm: of ${count(denied)} requests denied in the last minute, ${count(early)} came back before the wait they were told.`;
  banner.replaceChildren(element("p", {}, sentence), element("ul", {}, ...links));
}

// Which view is seen: the part of the address behind the #. With a slash it is no id of an element, to which
// browsers would take the focus.

function route() {
  const [, name, ...rest] = location.hash.split("/");
  shown = Object.hasOwn(views, name) ? name : "overview";
  dismiss();
  for (const tab of tabs) {
    const isShown = tab.getAttribute("aria-controls") === shown;
    tab.setAttribute("aria-selected", isShown);
    tab.tabIndex = isShown ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !isShown;
  }
  for (const [name, view] of Object.entries(views)) if (name !== shown) view.leave?.();
  views[shown].enter?.(rest.join("/"));
  if (live) views[shown].show?.(live);
  askView().catch(failed);
}

byId("tabs").addEventListener("click", ({ target }) => {
  const tab = target.closest("[role=tab]");
  if (tab) location.hash = `/${tab.getAttribute("aria-controls")}`;
});

byId("tabs").addEventListener("keydown", (event) => {
  const at = tabs.indexOf(document.activeElement);
  const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 };
  if (at < 0 || !(event.key in moves)) return;
  event.preventDefault();
  const tab = tabs.at(moves[event.key] % tabs.length);
  tab.focus();
  location.hash = `/${tab.getAttribute("aria-controls")}`;
});

// The token.

const tokenDialog = byId("dialog-token");

whenUnauthorized((wasWrong) => {
  isLocked = true;
  if (wasWrong) setText(byId("token-wrong"), "That is not the token of this server.");
  if (!tokenDialog.open) tokenDialog.showModal();
});

// Nothing can be done without one.
tokenDialog.addEventListener("close", () => isLocked && tokenDialog.showModal());

byId("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setText(byId("token-wrong"), "");
  const token = byId("token").value.trim();
  // A field of HTTP cannot hold anything else, and so no token does.
  if (!/^[\x21-\x7e]+$/.test(token)) return setText(byId("token-wrong"), "That is not the token of this server.");
  useToken(token);
  isLocked = false;
  await tick();
  if (live && byId("link").dataset.state === "good") {
    byId("token").value = "";
    tokenDialog.close();
  }
  return undefined;
});

// Light and dark.

const THEMES = ["system", "light", "dark"];

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId("theme"), `Theme: ${theme}`);
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("tollgate-theme", next);
  dress(next);
});

const stored = localStorage.getItem("tollgate-theme");
dress(THEMES.includes(stored) ? stored : "system");
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", tick);
route();
tick();
