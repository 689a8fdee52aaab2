// A browser on the dashboard of a real server, for the scripts beside this one.
//
// Whoever starts them says where things are: TOLLGATE_ADMIN and TOLLGATE_HTTP are the doors,
// TOLLGATE_POLICY and TOLLGATE_TOKEN the policy's file and the token, TOLLGATE_CHROMIUM the browser.

const { chromium } = require("playwright-core");

const { TOLLGATE_ADMIN: admin, TOLLGATE_HTTP: http, TOLLGATE_TOKEN: token } = process.env;

/// How long anything is waited for: only what never comes fails.
const PATIENCE_MS = 30_000;

exports.VIEWS = ["overview", "limits", "keys", "server", "explain", "play"];
exports.PATIENCE_MS = PATIENCE_MS;

exports.launch = () =>
  chromium.launch({
    executablePath: process.env.TOLLGATE_CHROMIUM,
    // Whoever is root has no sandbox. Nothing but the server is to be found, whatever is asked for.
    args: ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
  });

/// A page with nothing stored, and what it asked for and complained of.
exports.open = async (browser, options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const asked = [];
  const complaints = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", (dialog) => complaints.push(`a dialog says ${dialog.message()}`) && dialog.dismiss());
  return { context, page, asked, complaints };
};

/// The same on a view, with the token already known.
exports.enter = async (browser, view, options) => {
  const opened = await exports.open(browser, options);
  await opened.context.addInitScript((known) => sessionStorage.setItem("tollgate-token", known), token);
  await opened.page.goto(`${admin}/#/${view}`);
  await exports.isLive(opened.page);
  return opened;
};

exports.isLive = (page) => page.waitForSelector("#link[data-state=good]");

exports.go = async (page, view) => {
  await page.evaluate((hash) => (location.hash = `/${hash}`), view);
  await page.waitForSelector(`#${view.split("/")[0]}:not([hidden])`);
};

/// Waits until an element says this.
exports.says = (page, selector, text) =>
  page.waitForFunction(([selector, text]) => [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text)), [selector, text], { timeout: PATIENCE_MS });

/// Asks for decisions, so many for each user; tells how many were allowed.
exports.send = async (user, times) => {
  const checks = Array.from({ length: times }, () => ({ attributes: { user } }));
  const answer = await fetch(`${http}/v1/check/batch`, { method: "POST", body: JSON.stringify(checks) });
  return (await answer.json()).filter((one) => one.allowed).length;
};
