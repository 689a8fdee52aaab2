// How figures are written: so that they line up, and say no more digits than they mean.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/// A whole number: in full below a million.
export const count = (number) => (number < 1e6 ? grouped : short).format(number);

/// A number that needs little room.
export const compact = (number) => (number < 1e4 ? grouped : short).format(number);

/// So many a second.
export function rate(number) {
  if (number === 0) return "0";
  if (number < 0.1) return "< 0.1";
  return (number < 100 ? tenths : grouped).format(number);
}

export function share(part, whole) {
  if (!whole) return "–";
  return percent(part / whole);
}

export function percent(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  if (ratio > 0 && ratio < 0.001) return "< 0.1 %";
  return `${tenths.format(ratio * 100)} %`;
}

/// A latency.
export function micros(number) {
  if (number === null || number === undefined) return "–";
  if (number < 1000) return `${number < 100 ? tenths.format(number) : grouped.format(number)} µs`;
  if (number < 1e6) return `${tenths.format(number / 1000)} ms`;
  return `${tenths.format(number / 1e6)} s`;
}

/// A wait, or how long something has lasted.
export function duration(millis) {
  if (millis < 1000) return `${grouped.format(millis)} ms`;
  if (millis < 60_000) return `${tenths.format(millis / 1000)} s`;
  const parts = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];
  const first = parts.findIndex(([length]) => millis >= length);
  const [[large, name], [small, rest]] = [parts[first], parts[Math.min(first + 1, 3)]];
  const more = Math.floor((millis % large) / small);
  return `${Math.floor(millis / large)} ${name}${more ? ` ${more} ${rest}` : ""}`;
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; number >= 1024 && unit < units.length - 1; unit += 1) number /= 1024;
  return `${unit && number < 100 ? tenths.format(number) : grouped.format(number)} ${units[unit]}`;
}

const two = (number) => String(number).padStart(2, "0");

/// A time of day.
export function clock(millis, hasSeconds = true) {
  const date = new Date(millis);
  const minutes = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return hasSeconds ? `${minutes}:${two(date.getSeconds())}` : minutes;
}

/// A time, with its day unless that is today.
export function when(millis, now) {
  const date = new Date(millis);
  const isToday = date.toDateString() === new Date(now).toDateString();
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return isToday ? clock(millis) : `${day} ${clock(millis)}`;
}

/// The values in a key's text as they were sent, if that is not what the text says: control characters
/// and those that turn the direction of writing are shown, not obeyed.
export function readable(key) {
  if (!key.includes("%")) return null;
  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  const decoded = key.split(":").slice(1).map(decode).join(" · ");
  const seen = decoded.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
  return key.endsWith(seen) ? null : seen;
}
