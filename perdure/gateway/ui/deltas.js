// Pieces of an answer that is being written, {turn?, step, attempt, offset, text, kind}, folded into the page's state.
//
// No shown text mixes two attempts: a piece of a higher attempt clears what was shown. A piece that does not continue
// what was shown clears it too, and nothing is shown until a snapshot (a piece of offset 0) comes. The stored answer
// of a step replaces all its pieces. Offsets count characters as Python does: a surrogate pair is one.

import { turnOf } from "./fold.js";

/** The state after a piece. */
export function foldDelta(state, delta) {
  const turn = turnOf(state);
  const number = delta.turn ?? turn?.number ?? 0;
  if ((turn !== undefined && turn.end !== null && number <= turn.number) || hasAnswer(state, number, delta)) return state;
  const key = [number, delta.step, delta.attempt];
  const live = state.live;
  const order = live === null ? 1 : compare(key, live.key);
  if (order < 0) return state;
  const kind = delta.kind ?? "text";
  const parts = order > 0 ? {} : live.parts;
  if (kind === "tool_call") {
    return { ...state, live: { key, parts: { ...parts, tool_call: { tool: delta.tool ?? "", characters: delta.characters ?? 0 } } } };
  }
  const shown = parts[kind] ?? { text: "", length: 0 };
  const fits = delta.offset === 0 || (delta.offset === shown.length && !shown.lost);
  const base = delta.offset === 0 ? { text: "", length: 0 } : shown;
  const part = fits
    ? { text: base.text + delta.text, length: base.length + [...delta.text].length }
    : { text: "", length: 0, lost: true };
  return { ...state, live: { key, parts: { ...parts, [kind]: part } } };
}

function compare(left, right) {
  for (let at = 0; at < left.length; at += 1) if (left[at] !== right[at]) return left[at] - right[at];
  return 0;
}

/** Whether the step's stored answer is there, which replaces every piece. */
function hasAnswer(state, turn, delta) {
  const last = state.blocks.findLast((found) => found.kind === "answer");
  return last !== undefined && (last.turn > turn || (last.turn === turn && last.step >= delta.step));
}
