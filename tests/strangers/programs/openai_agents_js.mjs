// openai-agents for JavaScript: its runner loops over functions of its own, and asks for approvals. Prints JSON.
import { Agent, hostedMcpTool, run, tool } from "@openai/agents";
import { z } from "zod";
import { FIVE, River, TWO_RIVERS, tell, toText, user } from "./cases.mjs";

const tools = ["look", "seek"].map((name) =>
  tool({ name, description: name, parameters: z.object({}), execute: async () => `${name} seen` }),
);
const perdure = (more) =>
  hostedMcpTool({ serverLabel: "perdure", serverUrl: "https://perdure.invalid/mcp", requireApproval: "always", ...more });
const assistant = (model, more = {}) => new Agent({ name: "Assistant", model, ...more });

// Says one text after the other, and gives the last result.
async function talk(agent, texts, history = []) {
  let result;
  for (const text of texts) {
    result = await run(agent, [...history, user(text)]);
    history = result.history;
  }
  return result;
}

tell({
  chat: async (model) => (await talk(assistant(model), FIVE)).finalOutput,
  function: async (model) => (await talk(assistant(model, { tools }), ["look", "two", "three"])).finalOutput,
  two_functions: async (model) => (await talk(assistant(model, { tools }), ["look seek", "bye"])).finalOutput,
  async approval(model) {
    const agent = assistant(model, { tools: [perdure({ onApproval: async () => ({ approve: true }) })] });
    return (await talk(agent, ["pay", "bye"])).finalOutput;
  },
  async interruption(model) {
    const agent = assistant(model, { tools: [perdure()] });
    let result = await run(agent, "pay");
    for (const asked of result.interruptions) result.state.approve(asked);
    result = await run(agent, result.state);
    return (await talk(agent, ["bye"], result.history)).finalOutput;
  },
  async stream(model) {
    let history = [];
    let shown;
    for (const text of ["effect look", "two", "three"]) {
      const result = await run(assistant(model, { tools }), [...history, user(text)], { stream: true });
      shown = "";
      for await (const part of result.toTextStream()) shown += part;
      await result.completed;
      history = result.history;
    }
    return shown;
  },
  async edited(model) {
    const { history } = await talk(assistant(model), FIVE.slice(0, 3));
    const place = history.findIndex((item) => item.content === "two");
    return (await talk(assistant(model), ["edited"], history.slice(0, place))).finalOutput;
  },
  async rewritten(model) {
    const { history } = await talk(assistant(model), FIVE.slice(0, 3));
    return (await talk(assistant(model), ["end"], [user("rewritten"), ...history.slice(1)])).finalOutput;
  },
  // The one who takes over has a function that the turn does not have.
  async handoff(model) {
    const helper = new Agent({ name: "helper", model, tools: [tools[0]] });
    return (await run(Agent.create({ name: "Assistant", model, handoffs: [helper] }), "transfer")).finalOutput;
  },
  structured: async (model) => toText((await talk(assistant(model, { outputType: River }), TWO_RIVERS)).finalOutput),
  // The connection is cut while perdure's tool runs, and the client tries again by itself.
  cut: async (model) => (await talk(assistant(model), ["effect"])).finalOutput,
  // The gateway stops while perdure's tool runs, and another one takes its place.
  restart: async (model) => (await talk(assistant(model), ["effect"])).finalOutput,
  unknown_model: async (model) => (await talk(assistant(model), ["hello"])).finalOutput,
});
