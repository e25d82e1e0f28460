// A process of an agent that has several. It tells its parent what it handles, and answers each
// message. The processes share a store in Postgres.
import { setTimeout as pause } from "node:timers/promises";
import { Agent, postgresStore } from "@blindpipe/client/agent";
import pg from "pg";

export interface FromChild {
  readonly type: "begins" | "ends";
  readonly conversation: string;
  readonly text: string;
}

if (process.send) {
  const tell = (message: FromChild): void => void process.send!(message);
  const db = new pg.Pool({ connectionString: process.env["STORE_URL"]!, max: 2 });
  const agent = Agent.fromEnv({ pins: postgresStore(db, "replies") });
  agent.on("message", async (context) => {
    const { conversation, text } = context;
    tell({ type: "begins", conversation, text });
    await pause(50);
    await context.reply(`${text}, by ${process.pid}`);
    tell({ type: "ends", conversation, text });
  });
  await agent.run({ shared: true });
  await db.end();
  process.disconnect();
}
