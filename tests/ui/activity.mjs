// What the page has of an activity after each event, for the tests: reads [[event…]…], prints [[{kind, open, tokens}…]…].
import { readFileSync } from "node:fs";
import { NOTHING, advance, kindOf } from "../../perdure/gateway/ui/activity.js";

const logs = JSON.parse(readFileSync(0, "utf8"));
const told = logs.map((log) => {
  let activity = NOTHING;
  return log.map((line) => {
    activity = advance(activity, line);
    const { input_tokens: read, output_tokens: written } = activity.usage;
    return { kind: kindOf(activity), open: Object.keys(activity.open).sort(), tokens: read + written };
  });
});
process.stdout.write(JSON.stringify(told));
