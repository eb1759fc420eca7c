// OpenAI's own client at Chat Completions: it keeps the messages, and runs its functions. Prints JSON.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { FIVE, River, TWO_RIVERS, tell, toText, user } from "./cases.mjs";

const client = new OpenAI();
const parameters = { type: "object", properties: {} };
const tools = [{ type: "function", function: { name: "look", description: "Look.", parameters } }];
const named = (model) => ({ headers: { "X-Chat": model } });

const ask = async (body, options) => (await client.chat.completions.create(body, options)).choices[0].message;

async function askForAStream(body, options) {
  const asked = { ...body, stream_options: { include_usage: true } };
  const completion = await client.chat.completions.stream(asked, options).finalChatCompletion();
  if (!completion.usage?.total_tokens) throw new Error("no usage");
  return completion.choices[0].message;
}

// Says one text after the other, and runs the functions that are called; the conversation grows in `messages`.
async function talk(model, texts, messages, more = {}, { asking = ask, options = {} } = {}) {
  let message;
  for (const text of texts) {
    messages.push(user(text));
    for (let calls; calls === undefined || calls.length; ) {
      message = await asking({ model, messages, ...more }, options);
      messages.push(message);
      calls = message.tool_calls ?? [];
      for (const { id, function: { name } } of calls) {
        messages.push({ role: "tool", tool_call_id: id, content: `${name} seen` });
      }
    }
  }
  return message.content;
}

tell({
  chat: (model) => talk(model, FIVE.slice(0, 3), []),
  conversation: (model) => talk(model, FIVE.slice(0, 3), [], {}, { options: named(model) }),
  function: (model) => talk(model, ["look", "two"], [], { tools }),
  stream: (model) => talk(model, ["effect look", "two"], [], { tools }, { asking: askForAStream }),
  async structured(model) {
    const messages = [];
    let message;
    for (const text of TWO_RIVERS) {
      messages.push(user(text));
      const asked = { model, messages, response_format: zodResponseFormat(River, "river") };
      ({ message } = (await client.chat.completions.parse(asked, named(model))).choices[0]);
      messages.push(message);
    }
    return toText(message.parsed);
  },
  // The connection is cut while perdure's tool runs, and the client tries again by itself.
  cut: (model) => talk(model, ["effect"], []),
  // The gateway stops while perdure's tool runs, and another one takes its place.
  restart: (model) => talk(model, ["effect"], []),
  unknown_model: (model) => talk(model, ["hello"], []),
  refused: (model) => talk(model, ["hello"], [], { n: 2 }),
});
