// LangChain for JavaScript: a chat model with the Responses API, and an agent with functions of its own. Prints JSON.
import { AIMessageChunk, HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent } from "langchain";
import { z } from "zod";
import { FIVE, River, TWO_RIVERS, tell, toText } from "./cases.mjs";

const tools = ["look", "seek"].map((name) =>
  tool(async () => `${name} seen`, { name, description: name, schema: z.object({}) }),
);
const llm = (model) => new ChatOpenAI({ model, useResponsesApi: true });

// Says one text after the other; the conversation grows in `messages`.
async function talk(model, texts, messages) {
  for (const text of texts) {
    messages.push(new HumanMessage(text));
    messages.push(await llm(model).invoke(messages));
  }
  return messages.at(-1).text;
}

async function talkOfAnAgent(model, texts) {
  const agent = createAgent({ model: llm(model), tools });
  let messages = [];
  for (const text of texts) ({ messages } = await agent.invoke({ messages: [...messages, new HumanMessage(text)] }));
  return messages.at(-1).text;
}

tell({
  chat: (model) => talk(model, FIVE, []),
  function: (model) => talkOfAnAgent(model, ["look", "two", "three"]),
  two_functions: (model) => talkOfAnAgent(model, ["look seek", "bye"]),
  async approval(model) {
    const messages = [];
    await talk(model, ["pay"], messages);
    const items = messages.at(-1).additional_kwargs.tool_outputs;
    const { id } = items.find((item) => item.type === "mcp_approval_request");
    const reply = { type: "mcp_approval_response", approval_request_id: id, approve: true };
    messages.push(new HumanMessage({ content: [reply] }));
    messages.push(await llm(model).invoke(messages));
    return talk(model, ["bye"], messages);
  },
  async stream(model) {
    const agent = createAgent({ model: llm(model), tools });
    let messages = [];
    let shown;
    for (const text of ["effect look", "two", "three"]) {
      shown = "";
      const given = { messages: [...messages, new HumanMessage(text)] };
      for await (const [mode, part] of await agent.stream(given, { streamMode: ["messages", "values"] })) {
        if (mode === "values") messages = part.messages;
        else if (AIMessageChunk.isInstance(part[0])) shown += part[0].text;
      }
    }
    return shown;
  },
  async edited(model) {
    const messages = [];
    await talk(model, FIVE.slice(0, 3), messages);
    return talk(model, ["edited"], messages.slice(0, 2));
  },
  async rewritten(model) {
    const messages = [];
    await talk(model, FIVE.slice(0, 3), messages);
    return talk(model, ["end"], [new HumanMessage("rewritten"), ...messages.slice(1)]);
  },
  // The message beside the answer is asked for, to go on from it.
  async structured(model) {
    const asking = llm(model).withStructuredOutput(River, { includeRaw: true });
    const messages = [];
    let answer;
    for (const text of TWO_RIVERS) {
      messages.push(new HumanMessage(text));
      answer = await asking.invoke(messages);
      messages.push(answer.raw);
    }
    return toText(answer.parsed);
  },
  async structured_agent(model) {
    const agent = createAgent({ model: llm(model), tools: [], responseFormat: River });
    let messages = [];
    let structuredResponse;
    for (const text of TWO_RIVERS) {
      const given = { messages: [...messages, new HumanMessage(text)] };
      ({ messages, structuredResponse } = await agent.invoke(given));
    }
    return toText(structuredResponse);
  },
  // The connection is cut while perdure's tool runs, and the client tries again by itself.
  cut: (model) => talk(model, ["effect"], []),
  // The gateway stops while perdure's tool runs, and another one takes its place.
  restart: (model) => talk(model, ["effect"], []),
  unknown_model: (model) => talk(model, ["hello"], []),
});
