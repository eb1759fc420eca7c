// Folds event logs for the tests: reads {session, batches} from its input, prints the state after all of them as JSON.
// A batch is a list of events, or one piece of an answer: {"delta": {…}}.
import { readFileSync } from "node:fs";
import { foldDelta } from "../../perdure/gateway/ui/deltas.js";
import { fold, start } from "../../perdure/gateway/ui/fold.js";

const { session, batches } = JSON.parse(readFileSync(0, "utf8"));
let state = start(session);
for (const batch of batches) state = Array.isArray(batch) ? fold(state, batch) : foldDelta(state, batch.delta);
process.stdout.write(JSON.stringify(state));
