// A worker of a user's with the workflows in report.ts: `run ADDRESS QUEUE`, or `replay FILE` of a history as protobuf has it.
const fs = require("node:fs");
const path = require("node:path");
const { temporal } = require("@temporalio/proto");
const { NativeConnection, Worker } = require("@temporalio/worker");

const { History } = temporal.api.history.v1;
const workflowsPath = path.join(__dirname, "report.ts");
const [command, ...rest] = process.argv.slice(2);

async function main() {
  if (command === "replay") {
    await Worker.runReplayHistory({ workflowsPath }, History.decode(fs.readFileSync(rest[0])));
    return;
  }
  const [address, taskQueue] = rest;
  const worker = await Worker.create({ connection: await NativeConnection.connect({ address }), taskQueue, workflowsPath });
  await worker.run();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
