// What a key is allowed instead of what the policy says.

import { when } from "./format.js";

/// An override as people say it.
export function inWords({ rate, burst, queue, concurrency, ban }) {
  if (ban) return "nothing: it is banned";
  const said = { rate, burst, queue, concurrency };
  return Object.entries(said).filter(([, value]) => value !== undefined && value !== null).map(([name, value]) => `${name} ${value}`).join(", ");
}

/// How long it lasts.
export const untilWhen = ({ until_ms }) => `until ${until_ms ? when(until_ms, Date.now()) : "it is removed"}`;
