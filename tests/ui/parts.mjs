// Calls functions of the page for the tests: reads [[module, function, arguments]…], prints their results as JSON.
// Besides those of the page there is "parse": the frames of a text that comes in these chunks.
import { readFileSync } from "node:fs";
import { parser } from "../../perdure/gateway/ui/stream.js";

function parse(chunks) {
  const frames = [];
  const take = parser((frame) => frames.push(frame));
  for (const chunk of chunks) take(chunk);
  return frames;
}

const results = [];
for (const [module, name, given] of JSON.parse(readFileSync(0, "utf8"))) {
  const found = name === "parse" ? parse : (await import(`../../perdure/gateway/ui/${module}.js`))[name];
  results.push(found(...given) ?? null);
}
process.stdout.write(JSON.stringify(results));
