import React, { useState } from "react";
import { createRoot } from "react-dom/client";
import { CopilotKitProvider, CopilotChatConfigurationProvider, CopilotChat, useFrontendTool, useHumanInTheLoop, useInterrupt, useAgent, useAgentContext, useCopilotKit } from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";
import { z } from "zod";

const thread = new URLSearchParams(location.search).get("thread") || "t1";
const agentId = new URLSearchParams(location.search).get("agent") || "tester";

function Decisions() {
  const element = useInterrupt({
    renderInChat: false,
    render: ({ interrupts, resolve, cancel }) => (
      <div id="interrupts">
        {interrupts.map((one) => (
          <p key={one.id}>
            <span>{one.message}</span>
            {one.reason === "tool_call" ? (
              <>
                <button className="approve" onClick={() => resolve({ approved: true }, one.id)}>approve</button>
                <button className="deny" onClick={() => resolve({ approved: false, reason: "too much" }, one.id)}>deny</button>
              </>
            ) : (
              <button className="answer" onClick={() => resolve({ answer: "blue" }, one.id)}>answer blue</button>
            )}
            <button className="cancel" onClick={() => cancel(one.id)}>cancel</button>
          </p>
        ))}
      </div>
    ),
  });
  return element;
}

function Tools() {
  useAgentContext({ description: "The page", value: "in euros" });
  useFrontendTool({
    name: "look",
    description: "Look.",
    parameters: z.object({ id: z.number() }),
    handler: async ({ id }) => `seen ${id}`,
  });
  useHumanInTheLoop({
    name: "choose",
    description: "Choose.",
    parameters: z.object({ question: z.string() }),
    render: ({ args, status, respond }) => (
      <div className="choose">
        {status} {args.question}
        {respond && <button className="chosen" onClick={() => respond("the red one")}>red</button>}
      </div>
    ),
  });
  return null;
}

function Told() {
  const { agent } = useAgent({ agentId });
  const { copilotkit } = useCopilotKit();
  window.agent = agent; window.copilotkit = copilotkit;
  return <pre id="told">{JSON.stringify({ running: agent.isRunning, messages: agent.messages.map((m) => [m.role, m.content ?? "", (m.toolCalls ?? []).map((c) => c.function.name)]) }, null, 1)}</pre>;
}

window.errors = [];
createRoot(document.getElementById("root")).render(
  <CopilotKitProvider runtimeUrl="/agui" onError={(e) => { window.errors.push(String(e?.error?.message ?? e)); }}>
    <CopilotChatConfigurationProvider agentId={agentId} threadId={thread}>
      <Tools />
      <Decisions />
      <CopilotChat />
      <Told />
    </CopilotChatConfigurationProvider>
  </CopilotKitProvider>,
);
