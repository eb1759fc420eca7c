// What of a turn is under way, and what it has paid, by rules.js: the table that the terminal reads too
// (perdure/cli/activity.py does there what this file does here). Pure, like fold.js.
//
// A rule says what an event does. `model` is what the model does from then on; null is nothing. `opens` and `closes` are
// about one thing of a kind, by the field that has its id. What has closed stays closed: a start may be written late,
// even behind the end of its turn.

import RULES from "./rules.js";

const PAID = { input_tokens: 0, output_tokens: 0, cached_tokens: 0 };

/** Before the first event: `open` has the event that opened each thing, `since` is the first turn that may open any. */
export const NOTHING = { model: null, open: {}, closed: {}, since: 0, usage: { ...PAID, estimated: false }, cost: 0 };

/** The activity after an event. */
export function advance(was, line) {
  const rule = RULES[`${line.type} ${line.compaction_status}`] ?? RULES[line.type];
  if (rule === undefined) return was;
  const next = { ...was };
  if (rule.turn === "begins") Object.assign(next, NOTHING, { since: line.turn });
  if (rule.turn === "ends") Object.assign(next, { model: null, open: {}, since: line.turn + 1 });
  const isLate = line.turn < was.since;
  if ("model" in rule && !isLate) next.model = rule.model && { kind: rule.model, line };
  if (rule.pays) Object.assign(next, paid(was, line));
  if (rule.opens && !isLate) {
    const key = keyOf(rule.opens, line);
    if (!(key in was.open || key in was.closed)) next.open = { ...was.open, [key]: line };
  }
  if (rule.closes) {
    const key = keyOf(rule.closes, line);
    const { [key]: _, ...open } = was.open;
    Object.assign(next, { open, closed: { ...was.closed, [key]: true } });
  }
  return next;
}

function keyOf([kind, field], line) {
  return `${kind} ${line[field]}`;
}

function paid(was, line) {
  const usage = Object.fromEntries(Object.keys(PAID).map((name) => [name, was.usage[name] + (line.usage?.[name] ?? 0)]));
  usage.estimated = was.usage.estimated || Boolean(line.usage?.estimated);
  return { usage, cost: was.cost + Number(line.cost_usd ?? 0) };
}

/** Whether it is the event that opened the thing: neither one that repeats it nor one that comes behind its end. */
export function isOpenedBy(activity, line) {
  return Object.values(activity.open).includes(line);
}

/** The events that opened what is open of a kind. */
export function openOf(activity, kind) {
  return Object.entries(activity.open).filter(([key]) => key.startsWith(`${kind} `)).map(([, line]) => line);
}

const KINDS = ["tools", "delegates"]; // of what runs beside the model, the first that is open is told

/** What is told of it: people, what the model does, tools, delegates; null is nothing. */
export function kindOf(activity) {
  if (openOf(activity, "people").length) return "people";
  return activity.model?.kind ?? KINDS.find((kind) => openOf(activity, kind).length) ?? null;
}
