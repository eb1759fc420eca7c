// Vercel's AI SDK with its chat model: its own loop over functions, streams. Prints JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { FIVE, River, TWO_RIVERS, tell, toText, user } from "./cases.mjs";

const openai = createOpenAI();
const look = tool({ description: "look", inputSchema: z.object({}), execute: async () => "look seen" });
const functions = { tools: { look }, stopWhen: stepCountIs(5) };
const named = (model) => ({ headers: { "X-Chat": model } });

async function generate(options) {
  const answer = await generateText(options);
  return { text: answer.text, output: options.output && answer.output, added: answer.response.messages };
}

async function stream(options) {
  let failure;
  const result = streamText({ ...options, onError: ({ error }) => (failure = error) });
  let text = "";
  for await (const part of result.textStream) text += part;
  if (failure) throw failure;
  if (!(await result.totalUsage).totalTokens) throw new Error("no usage");
  return { text, added: (await result.response).messages };
}

// Says one text after the other; the conversation grows in `messages`.
async function talk(model, texts, messages, more = {}, asking = generate) {
  let answer;
  for (const said of texts) {
    messages.push(user(said));
    answer = await asking({ model: openai.chat(model), messages, ...more });
    messages.push(...answer.added);
  }
  return answer.output ? toText(answer.output) : answer.text;
}

tell({
  chat: (model) => talk(model, FIVE.slice(0, 3), []),
  conversation: (model) => talk(model, FIVE.slice(0, 3), [], named(model)),
  function: (model) => talk(model, ["look", "two"], [], functions),
  stream: (model) => talk(model, ["effect look", "two"], [], functions, stream),
  structured: (model) => talk(model, TWO_RIVERS, [], { output: Output.object({ schema: River }), ...named(model) }),
  // The connection is cut while perdure's tool runs, and the client tries again by itself.
  cut: (model) => talk(model, ["effect"], []),
  // The gateway stops while perdure's tool runs, and another one takes its place.
  restart: (model) => talk(model, ["effect"], []),
  unknown_model: (model) => talk(model, ["hello"], []),
  refused: (model) => talk(model, ["hello"], [], { providerOptions: { openai: { logprobs: 2 } } }),
});
