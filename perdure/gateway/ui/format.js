// Numbers and times for people. Pure: the time of now is an argument.

const WHOLE = new Intl.NumberFormat("en-US");

/** 12,345 */
export function count(number) {
  return WHOLE.format(number ?? 0);
}

/** 1.2k, 3.4M: for places with little room. */
export function short(number) {
  if (number < 10_000) return count(number);
  return number < 1e6 ? `${Math.round(number / 1000)}k` : `${(number / 1e6).toFixed(1)}M`;
}

/** `3 steps`, `1 step` */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** The word before tokens of which a provider did not count all. */
export function about(usage) {
  return usage.estimated ? "about " : "";
}

/** US dollars with two to four decimals; what is less is said to be less. */
export function money(amount) {
  const value = Number(amount ?? 0);
  if (value > 0 && value < 0.0001) return "<$0.0001";
  const text = value.toFixed(4).replace(/0{1,2}$/, "");
  return `$${text}`;
}

/** 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h */
export function duration(seconds) {
  if (seconds < 0.95) return `${Math.max(Math.round(seconds * 1000), 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  for (const [unit, size, part, below] of [["d", 86_400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / below);
      return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
    }
  }
  return `${whole} s`;
}

/** Seconds between two times; `to` may be milliseconds. */
export function between(from, to) {
  return Math.max(0, ((typeof to === "number" ? to : Date.parse(to)) - Date.parse(from)) / 1000);
}

/** A time in one unit, for sentences that are read again each second: `40 s`, `3 min`, `2 h`. */
export function since(from, now) {
  const seconds = Math.round(between(from, now));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

/** How long ago: `40 s ago`. */
export function ago(at, now) {
  return at ? `${since(at, now)} ago` : "";
}

/** The time of day, in the reader's zone. */
export function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour12: false });
}

/** Date and time, in the reader's zone. */
export function moment(at) {
  return new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hour12: false });
}

/** The first line of a text, cut. */
export function line(text, characters = 120) {
  const flat = String(text ?? "").replace(/\s+/g, " ").trim();
  return flat.length > characters ? `${flat.slice(0, characters - 1)}…` : flat;
}

/**
 * JSON with line breaks, or the text as it is. Only white space changes: numbers, their zeros, and keys that come twice
 * stay as they were written, because people approve what they read here.
 */
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  let said = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    if (closes && !/[{[]$/.test(said)) said += `\n${"  ".repeat(depth)}`;
    if (!closes && /[{[,]$/.test(said)) said += `\n${"  ".repeat(depth)}`;
    said += token === ":" ? ": " : readable(token);
    if (token === "{" || token === "[") depth += 1;
  }
  return said;
}

/** JSON text with letters in place of their escapes; characters that nobody sees stay escaped. */
export function readable(json) {
  return json.replace(/\\(\\|u[0-9a-fA-F]{4})/g, (escaped) => {
    if (escaped === "\\\\") return escaped;
    const letter = String.fromCharCode(Number.parseInt(escaped.slice(2), 16));
    return letter > "\u007f" && /[\p{L}\p{N}\p{P}\p{S}]/u.test(letter) ? letter : escaped;
  });
}
