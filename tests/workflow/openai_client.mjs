// OpenAI's own client: responses that come whole, are cut and gone on with, polled, cancelled, and replied to. Prints JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.PERDURE_URL}/openai/v1`, apiKey: process.env.PERDURE_TOKEN, maxRetries: 0 });
const parameters = { type: "object", properties: { id: { type: "integer" } }, required: ["id"] };
const tools = [{ type: "function", name: "look", description: "Look up.", parameters, strict: false }];
const ask = (input, more = {}) => client.responses.create({ model: "tester", input, ...more });

async function cutAndResumed() {
  let id, seen;
  let text = "";
  for await (const event of await ask("write", { stream: true })) {
    seen = event.sequence_number;
    if (event.type === "response.created") id = event.response.id;
    if (event.type === "response.output_text.delta") {
      text += event.delta;
      break; // which aborts the request
    }
  }
  let last;
  let inOrder = true;
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: seen })) {
    inOrder &&= event.sequence_number > seen;
    seen = event.sequence_number;
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  return [text, inOrder, last.type, last.response.output[0].content[0].text === text];
}

async function cancelled() {
  let made = await ask("hang", { background: true });
  while (made.status !== "in_progress") made = await client.responses.retrieve(made.id);
  return (await client.responses.cancel(made.id)).status;
}

async function calledHere() {
  const first = await ask("look", { tools });
  const { name, call_id, arguments: given } = first.output.find((item) => item.type === "function_call");
  const output = [{ type: "function_call_output", call_id, output: `customer ${JSON.parse(given).id}` }];
  const second = await client.responses.create({ input: output, previous_response_id: first.id });
  return [name, second.output_text];
}

async function approved() {
  const first = await ask("pay");
  const { id } = first.output.find((item) => item.type === "mcp_approval_request");
  const reply = [{ type: "mcp_approval_response", approval_request_id: id, approve: true }];
  const second = await client.responses.create({ input: reply, previous_response_id: first.id });
  return second.output.map((item) => item.output ?? item.content[0].text);
}

const whole = await ask("write", { metadata: { team: "x" } });
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const refused = await client.responses.retrieve("resp_none").catch((error) => error);
console.log(
  JSON.stringify({
    whole: [whole.status, whole.output_text, (await client.responses.retrieve(whole.id)).metadata.stop_reason],
    models,
    cut: await cutAndResumed(),
    cancelled: await cancelled(),
    tool: await calledHere(),
    approved: await approved(),
    refused: [refused instanceof OpenAI.NotFoundError, refused.code],
  }),
);
