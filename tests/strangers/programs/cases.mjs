// The cases of a program in JavaScript: each is a function of an agent's name, which is its own, that gives a text.
import { z } from "zod";

export const FIVE = ["effect one", "two", "three", "four", "five"];
export const TWO_RIVERS = ["effect river", "again river"];
export const River = z.object({ name: z.string(), length: z.number().int() });
export const toText = ({ name, length }) => `${name} ${length}`;
export const user = (content) => ({ role: "user", content });

// Prints the outcome of each case, as one object of JSON: its text, or the class and the status of its error.
export async function tell(cases) {
  const told = {};
  for (const [name, run] of Object.entries(cases)) {
    told[name] = await run(name).catch((error) => {
      console.error(name, error);
      const kind = error.name === "Error" ? error.constructor.name : error.name;
      return `${kind} ${error.status ?? error.statusCode ?? ""}`.trim();
    });
  }
  console.log(JSON.stringify(told));
}
