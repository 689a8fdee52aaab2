// What a key is allowed instead of what the policy says.

/// An override as people say it.
export function inWords({ rate, burst, queue, concurrency, ban }) {
  if (ban) return "nothing: it is banned";
  const said = { rate, burst, queue, concurrency };
  return Object.entries(said).filter(([, value]) => value !== undefined && value !== null).map(([name, value]) => `${name} ${value}`).join(", ");
}
