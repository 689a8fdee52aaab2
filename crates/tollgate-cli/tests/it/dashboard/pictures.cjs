// Pictures of the dashboard, after TOLLGATE_SECONDS of traffic that is like that of an API with a few hundred
// customers, all but one of whom wait as long as they are told.

const { enter, launch, says } = require("./browser.cjs");

const { TOLLGATE_HTTP: http, TOLLGATE_PICTURES: folder, TOLLGATE_SECONDS: seconds } = process.env;
const STEP_MS = 100;

const TIERS = ["enterprise", "pro", "free"];
const CUSTOMERS = ["acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "tyrell", "cyberdyne", "soylent"];

/// Until when whoever was denied waits.
const waits = new Map();

/// Few customers send most; those who were denied come later.
function customer() {
  const rank = Math.floor(300 ** Math.random());
  const tenant = CUSTOMERS[rank - 1] ?? `customer-${rank}`;
  const isWaiting = performance.now() < (waits.get(tenant) ?? 0);
  return isWaiting ? customer() : { tenant, tier: TIERS[Math.min(2, Math.floor(rank / 4))] };
}

function checksOf(second) {
  const busy = 30 + 18 * Math.sin(second / 40) + 6 * Math.sin(second / 7);
  const checks = Array.from({ length: Math.round(busy) }, () => ({ attributes: { ...customer(), path: Math.random() < 0.2 ? "/search" : "/items" } }));
  const isScraping = second % 120 > 75 && second % 120 < 95;
  if (isScraping) for (let number = 0; number < 40; number += 1) checks.push({ attributes: { tenant: "scraper.example", tier: "free", path: "/items" } });
  if (Math.random() < 0.5) checks.push({ attributes: { client_ip: `203.0.113.${Math.floor(4 * Math.random())}`, path: "/login" } });
  return checks;
}

async function load(traffic) {
  for (let step = 0; traffic.isOn; step += 1) {
    const began = performance.now();
    const checks = checksOf((step * STEP_MS) / 1000);
    const answer = await fetch(`${http}/v1/check/batch`, { method: "POST", body: JSON.stringify(checks) });
    (await answer.json()).forEach(({ retry_after_ms }, number) => waits.set(checks[number].attributes.tenant, began + (retry_after_ms ?? 0)));
    await new Promise((go) => setTimeout(go, Math.max(0, STEP_MS - (performance.now() - began))));
  }
}

const key = `keys/${encodeURIComponent("api:acme")}`;
const wide = (height) => ({ viewport: { width: 1040, height } });
const phone = { viewport: { width: 360, height: 740 }, deviceScaleFactor: 1.5 };

const PICTURES = [
  ["dashboard-light", "overview", { ...wide(770), colorScheme: "light" }],
  ["dashboard-dark", "overview", { ...wide(770), colorScheme: "dark" }],
  ["dashboard-phone-light", "overview", { ...phone, colorScheme: "light" }],
  ["dashboard-phone-dark", "keys", { ...phone, colorScheme: "dark" }],
  ["dashboard-limits", "limits", { ...wide(560), colorScheme: "light" }],
  ["dashboard-key", key, { ...wide(620), colorScheme: "dark" }],
  ["dashboard-play", "play", { ...wide(560), colorScheme: "light" }],
];

async function take(browser, [name, view, options]) {
  const { context, page } = await enter(browser, view, options);
  if (view === "play") {
    await page.selectOption("#play-algorithm", "leaky_bucket");
    for (const times of [1, 2, 3]) {
      for (let number = 0; number < 2 * times; number += 1) await page.click("#play-send");
      await page.waitForTimeout(900);
    }
    await page.click("#play-send-ten");
    await says(page, "#play-said", "Sent 10");
  }
  if (view === key) await says(page, ".gauges li", "left");
  await page.waitForTimeout(1500);
  await page.screenshot({ path: `${folder}/${name}.png` });
  await context.close();
}

async function run() {
  const browser = await launch();
  const traffic = { isOn: true };
  const loading = load(traffic);
  await new Promise((go) => setTimeout(go, seconds * 1000));
  for (const picture of PICTURES) await take(browser, picture);
  traffic.isOn = false;
  await loading;
  await browser.close();
}

run();
