// OpenAI's own client: it keeps the conversation as a list, runs its functions and approves calls. Prints JSON.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { FIVE, River, TWO_RIVERS, tell, toText, user } from "./cases.mjs";

const client = new OpenAI();
const parameters = { type: "object", properties: {} };
const tools = ["look", "seek"].map((name) => ({ type: "function", name, description: name, parameters }));

const ask = (body) => client.responses.create(body);

async function askForAStream(body) {
  const stream = client.responses.stream(body);
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  const response = await stream.finalResponse();
  if (response.output_text !== text) throw new Error(`streamed ${text}, and then said ${response.output_text}`);
  return response;
}

// Says one text after the other, and runs the functions that are called; the conversation grows in `input`.
async function talk(model, texts, input, more = {}, asking = ask) {
  let response;
  for (const text of texts) {
    input.push(user(text));
    for (let calls; calls === undefined || calls.length; ) {
      response = await asking({ model, input, ...more });
      calls = response.output.filter((item) => item.type === "function_call");
      input.push(...response.output);
      for (const { name, call_id } of calls) {
        input.push({ type: "function_call_output", call_id, output: `${name} seen` });
      }
    }
  }
  return response.output_text;
}

tell({
  chat: (model) => talk(model, FIVE, []),
  function: (model) => talk(model, ["look", "two", "three"], [], { tools }),
  two_functions: (model) => talk(model, ["look seek", "bye"], [], { tools }),
  async approval(model) {
    const input = [];
    await talk(model, ["pay"], input);
    const { id } = input.find((item) => item.type === "mcp_approval_request");
    input.push({ type: "mcp_approval_response", approval_request_id: id, approve: true });
    input.push(...(await ask({ model, input })).output);
    return talk(model, ["bye"], input);
  },
  stream: (model) => talk(model, ["effect look", "two", "three"], [], { tools }, askForAStream),
  async edited(model) {
    const input = [];
    await talk(model, FIVE.slice(0, 3), input);
    return talk(model, ["edited"], input.slice(0, input.findIndex((item) => item.content === "two")));
  },
  async rewritten(model) {
    const input = [];
    await talk(model, FIVE.slice(0, 3), input);
    return talk(model, ["end"], [user("rewritten"), ...input.slice(1)]);
  },
  async structured(model) {
    const input = [];
    let response;
    for (const text of TWO_RIVERS) {
      input.push(user(text));
      response = await client.responses.parse({ model, input, text: { format: zodTextFormat(River, "river") } });
      input.push(...response.output);
    }
    return toText(response.output_parsed);
  },
  // The connection is cut while perdure's tool runs, and the client tries again by itself.
  cut: (model) => talk(model, ["effect"], []),
  // The connection is cut in the middle of a stream, which goes on behind the last event that came.
  async resumed(model) {
    const seen = [];
    const take = async (stream) => {
      for await (const event of stream) seen.push(event);
    };
    try {
      await take(await client.responses.create({ model, input: "effect", stream: true }));
    } catch {
      const place = { stream: true, starting_after: seen.at(-1).sequence_number };
      await take(await client.responses.retrieve(seen[0].response.id, place));
    }
    const numbers = seen.map((event) => event.sequence_number);
    if (numbers.some((number, at) => at && number <= numbers[at - 1])) throw new Error(`out of order: ${numbers}`);
    return seen.map((event) => (event.type === "response.output_text.delta" ? event.delta : "")).join("");
  },
  // The gateway stops while perdure's tool runs, and another one takes its place.
  restart: (model) => talk(model, ["effect"], []),
  unknown_model: (model) => talk(model, ["hello"], []),
});
