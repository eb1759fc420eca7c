// A job from TypeScript: started, joined, approved, and another one cancelled. Prints what came of them, as JSON.
import createClient from "openapi-fetch";
import type { paths } from "./perdure.js";

const baseUrl = process.env.PERDURE_URL!;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${process.env.PERDURE_TOKEN}` } });

async function start(session: string, prompt: string) {
  const { data, error } = await client.POST("/v1/sessions", {
    params: { header: { "Idempotency-Key": `key-of-${session}` } },
    body: { agent: "asks", prompt, session },
  });
  if (error) throw new Error(error.code);
  return data;
}

async function join(session: string, turn: number, state: "ended" | "waiting_for_input") {
  for (;;) {
    const { data, error } = await client.GET("/v1/sessions/{session}/turns/{turn}", {
      params: { path: { session, turn }, header: { prefer: "wait=1" } },
    });
    if (error) throw new Error(error.code);
    if (data.state === state) return data;
  }
}

const ticket = await start("from-typescript", "go");
await join(ticket.session, ticket.turn!, "waiting_for_input");
const standing = await client.GET("/v1/sessions/{session}", { params: { path: { session: ticket.session } } });
const request = standing.data!.requests![0]!;
const receipt = await client.POST("/v1/sessions/{session}/answers/{request}", {
  params: { path: { session: ticket.session, request: request.request_id } },
  body: { action: "approve", digest: request.digest },
});
const turn = await join(ticket.session, 1, "ended");

const stream = await fetch(`${baseUrl}/v1/sessions/from-typescript/events?after=0`, {
  headers: { Authorization: `Bearer ${process.env.PERDURE_TOKEN}` },
});
const numbers = [...(await stream.text()).matchAll(/^id: ?(\d+)$/gm)].map((found) => Number(found[1]));

await start("from-typescript-2", "go");
await join("from-typescript-2", 1, "waiting_for_input");
const cancelled = await client.POST("/v1/sessions/{session}/cancel", {
  params: { path: { session: "from-typescript-2" } },
  body: { reason: "no longer needed" },
});
const second = await join("from-typescript-2", 1, "ended");
const missing = await client.GET("/v1/sessions/{session}", { params: { path: { session: "none" } } });
console.log(
  JSON.stringify({
    output: turn.result?.output,
    by: receipt.data?.by,
    gapless: numbers.length > 0 && numbers.every((number, index) => number === index + 1),
    stops: cancelled.data?.stops,
    stopped: second.result?.stop_reason,
    code: missing.error?.code,
  }),
);
