// Asking the server. The token is held in sessionStorage and nowhere else.

const STORED = "tollgate-token";
const PATIENCE_MS = 5000;

/// The server answered, and not with what was asked for.
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

let onUnauthorized = () => {};

/// Says who is told when a token is missing or wrong.
export function whenUnauthorized(told) {
  onUnauthorized = told;
}

export function useToken(token) {
  sessionStorage.setItem(STORED, token);
}

/// Asks for JSON; throws `Refused` with the server's sentence, or what fetch throws when nobody answers.
export async function ask(path, method = "GET", body = undefined) {
  const token = sessionStorage.getItem(STORED);
  const headers = {};
  if (token !== null) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(PATIENCE_MS),
    cache: "no-store",
    redirect: "error",
  });
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) {
    // Whoever typed another one meanwhile is not told that it is wrong.
    const isCurrent = sessionStorage.getItem(STORED) === token;
    if (isCurrent) sessionStorage.removeItem(STORED);
    onUnauthorized(token !== null && isCurrent);
  }
  throw new Refused(answer.status, problem.detail ?? `${answer.status} ${answer.statusText}`);
}

export const pathOf = (folder, key) => `/v1/${folder}/${encodeURIComponent(key)}`;
