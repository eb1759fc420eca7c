// Vercel's AI SDK: its own loop over functions, approvals in its messages, streams. Prints JSON.
import { openai } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { FIVE, River, TWO_RIVERS, tell, toText, user } from "./cases.mjs";

const own = (name) => tool({ description: name, inputSchema: z.object({}), execute: async () => `${name} seen` });
const functions = { tools: { look: own("look"), seek: own("seek") }, stopWhen: stepCountIs(5) };

async function generate(options) {
  const { text, content, response } = await generateText(options);
  return { text, content, added: response.messages };
}

async function stream(options) {
  let failure;
  const result = streamText({ ...options, onError: ({ error }) => (failure = error) });
  let shown = "";
  for await (const part of result.textStream) shown += part;
  if (failure) throw failure;
  return { text: shown, content: await result.content, added: (await result.response).messages };
}

// Says one text after the other; the conversation grows in `messages`.
async function talk(model, texts, messages, more = {}, asking = generate) {
  let text;
  for (const said of texts) {
    messages.push(user(said));
    const answer = await asking({ model: openai(model), messages, ...more });
    messages.push(...answer.added);
    text = answer.text;
  }
  return text;
}

tell({
  chat: (model) => talk(model, FIVE, []),
  function: (model) => talk(model, ["look", "two", "three"], [], functions),
  two_functions: (model) => talk(model, ["look seek", "bye"], [], functions),
  async approval(model) {
    const serverUrl = "https://perdure.invalid/mcp";
    const tools = { mcp: openai.tools.mcp({ serverLabel: "perdure", serverUrl, requireApproval: "always" }) };
    const messages = [user("pay")];
    const asked = await generate({ model: openai(model), messages, tools });
    const replies = asked.content
      .filter((part) => part.type === "tool-approval-request")
      .map(({ approvalId }) => ({
        type: "tool-approval-response",
        approvalId,
        approved: true,
        providerExecuted: true, // the call is not one of these tools
      }));
    messages.push(...asked.added, { role: "tool", content: replies });
    messages.push(...(await generate({ model: openai(model), messages, tools })).added);
    return talk(model, ["bye"], messages, { tools });
  },
  stream: (model) => talk(model, ["effect look", "two", "three"], [], functions, stream),
  async edited(model) {
    const messages = [];
    await talk(model, FIVE.slice(0, 3), messages);
    return talk(model, ["edited"], messages.slice(0, messages.findIndex(({ content }) => content === "two")));
  },
  async rewritten(model) {
    const messages = [];
    await talk(model, FIVE.slice(0, 3), messages);
    return talk(model, ["end"], [user("rewritten"), ...messages.slice(1)]);
  },
  async structured(model) {
    const messages = [];
    let answer;
    for (const text of TWO_RIVERS) {
      messages.push(user(text));
      answer = await generateText({ model: openai(model), messages, output: Output.object({ schema: River }) });
      messages.push(...answer.response.messages);
    }
    return toText(answer.output);
  },
  // The connection is cut while perdure's tool runs, and the client tries again by itself.
  cut: (model) => talk(model, ["effect"], []),
  // The gateway stops while perdure's tool runs, and another one takes its place.
  restart: (model) => talk(model, ["effect"], []),
  unknown_model: (model) => talk(model, ["hello"], []),
});
