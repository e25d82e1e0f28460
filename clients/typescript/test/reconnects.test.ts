// The clients' answers to each end of a connection, and to each refusal for want of budget.
import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { mock, test } from "node:test";
import { WebSocket, WebSocketServer } from "ws";
import { Closed, ConnectionLost, RateLimited } from "@blindpipe/client/agent";
import { Http } from "#dist/transport/http.js";
import { HookCaller, CONSOLE, type Hooks } from "#dist/hooks.js";
import { Socket } from "#dist/transport/socket.js";

type Ending = readonly [code: number, ...frames: object[]];

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface Given {
  readonly endings: readonly Ending[];
  /** An error where the service cannot say. */
  readonly renewals?: (boolean | Error)[];
  readonly hooks?: Partial<Hooks>;
}

/**
 * The waits before each further connection of a client whose connections end so. The frames of an
 * ending come before it. All jitter is full.
 */
async function waitsAfter({ endings, renewals = [], hooks = {} }: Given): Promise<number[]> {
  const left = [...endings];
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  server.on("connection", (socket) =>
    socket.once("message", () => {
      const [code, ...frames] = left.shift()!;
      for (const frame of frames) socket.send(JSON.stringify(frame));
      socket.close(code);
    }),
  );
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  const stop = new AbortController();
  const waits: number[] = [];
  const random = mock.method(Math, "random", () => 1);
  const { setTimeout: real } = globalThis;
  // The wait before a connection is the only timer that runs while there is none.
  let isConnected = false;
  const timer = mock.method(globalThis, "setTimeout", (run: () => void, ms: number) => {
    if (isConnected) return real(run, ms);
    waits.push(ms);
    if (left.length === 0) stop.abort();
    return real(run, 0);
  });
  const socket = new Socket({
    url: `http://127.0.0.1:${port}`,
    webSocket: async (url) => {
      isConnected = true;
      return new WebSocket(url) as never;
    },
    hooks: new HookCaller(
      { ...hooks, disconnected: (told) => (hooks.disconnected?.(told), (isConnected = false)) },
      CONSOLE,
    ),
    auth: async () => ({ type: "auth" }),
    renew: async () => {
      const renewal = renewals.shift()!;
      if (renewal instanceof Error) throw renewal;
      return renewal;
    },
    holders: async () => ["another"],
    onFrame: () => {},
    onReady: () => {},
    signal: stop.signal,
  });
  try {
    await socket.run();
  } finally {
    timer.mock.restore();
    random.mock.restore();
    server.close();
  }
  return waits;
}

test("lost connections wait longer and longer, until one has caught up", async () => {
  const lost = Array.from({ length: 8 }, (): Ending => [1001]);
  const endings: Ending[] = [...lost, [1001, { type: "ready" }, { type: "caught_up" }]];
  const waits = await waitsAfter({ endings });
  assert.deepEqual(waits, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 500]);
});

test("a node that leaves is followed by another at once, but not twice", async () => {
  for (const code of [1011, 1012, 1013, 4410]) {
    assert.deepEqual(await waitsAfter({ endings: [[code], [code]] }), [0, 1_000]);
  }
});

test("places, floods, and the server's own word", async () => {
  const told: unknown[] = [];
  const hooks = { disconnected: (details: object) => void told.push(details) };
  const hint = { type: "reconnect", after_ms: 1_234 };
  const endings: Ending[] = [[4409], [4429], [1001, hint]];
  assert.deepEqual(await waitsAfter({ endings, hooks }), [10_000, 5_000, 1_234]);
  assert.deepEqual(told[1], { code: 4409, holders: ["another"] });
});

test("a refused credential is renewed, or ends it", async () => {
  const renewed = await waitsAfter({ endings: [[4401], [4401]], renewals: [true, true] });
  assert.deepEqual(renewed, [0, 0]);
  for (const code of [4400, 4401, 4403]) {
    const closed = waitsAfter({ endings: [[code]], renewals: [false] });
    await assert.rejects(closed, (error) => error instanceof Closed && error.closeCode === code);
  }
});

test("a renewal that the service cannot answer is tried again, later and later", async () => {
  const away = new ConnectionLost();
  const outage = Array.from({ length: 7 }, () => away);
  const endings = Array.from({ length: 9 }, (): Ending => [4401]);
  const waits = await waitsAfter({ endings, renewals: [...outage, true, away] });
  assert.deepEqual(waits, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 0, 1_000]);
  const ended = waitsAfter({ endings: [[4401], [4401]], renewals: [away, false] });
  await assert.rejects(ended, (error) => error instanceof Closed && error.closeCode === 4401);
});

test("a token that is about to end is renewed once the service answers", async () => {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  const renewed = new Promise<object>((resolve) => {
    server.on("connection", (socket) => {
      socket.once("message", () => {
        socket.send('{"type":"ready"}');
        socket.send('{"type":"auth.expiring"}');
        socket.once("message", (data) => resolve(JSON.parse(String(data))));
      });
    });
  });
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  const stop = new AbortController();
  const random = mock.method(Math, "random", () => 0);
  const faults: ("renew" | "auth")[] = ["renew", "auth", "renew"];
  const fail = (what: "renew" | "auth"): void => {
    if (faults[0] === what) throw new ConnectionLost(faults.shift());
  };
  let isFirst = true;
  const socket = new Socket({
    url: `http://127.0.0.1:${port}`,
    webSocket: async (url) => new WebSocket(url) as never,
    hooks: new HookCaller({}, CONSOLE),
    auth: async () => {
      if (isFirst) isFirst = false;
      else fail("auth");
      return { type: "auth", access_token: "fresh" };
    },
    renew: async () => (fail("renew"), true),
    holders: async () => [],
    onFrame: () => {},
    onReady: () => {},
    signal: stop.signal,
  });
  const run = socket.run();
  try {
    assert.deepEqual(await renewed, { type: "auth.renew", access_token: "fresh" });
    assert.deepEqual(faults, []);
  } finally {
    random.mock.restore();
    stop.abort();
    await run;
    server.close();
  }
});

test("a frame that is none ends the connection, and not the program", async () => {
  const texts = ["no json", "null", "7", '{"type":"event"}'];
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  const left = [...texts];
  server.on("connection", (socket) => socket.once("message", () => socket.send(left.shift()!)));
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  const stop = new AbortController();
  const random = mock.method(Math, "random", () => 0);
  let connections = 0;
  const socket = new Socket({
    url: `http://127.0.0.1:${port}`,
    webSocket: async (url) => {
      if (connections++ === texts.length) stop.abort();
      return new WebSocket(url) as never;
    },
    hooks: new HookCaller({}, CONSOLE),
    auth: async () => ({ type: "auth" }),
    renew: async () => false,
    holders: async () => [],
    onFrame: () => {
      throw new TypeError("an event without data");
    },
    onReady: () => {},
    signal: stop.signal,
  });
  try {
    await socket.run();
  } finally {
    random.mock.restore();
    server.close();
  }
  assert.equal(connections, texts.length + 1);
});

/** A service with these answers, one after the other, and a client of it. */
async function asking(
  answers: readonly ((response: ServerResponse) => void)[],
  hooks: Partial<Hooks>,
  during: (http: Http) => Promise<void>,
): Promise<void> {
  const left = [...answers];
  const server = createServer((_: IncomingMessage, response) => {
    response.setHeader("content-type", "application/json");
    left.shift()!(response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const url = `http://127.0.0.1:${port}`;
  try {
    await during(new Http({ url, fetch, hooks: new HookCaller(hooks, CONSOLE), token: () => null }));
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const THERE = { method: "GET", path: "/there" } as const;

test("a refusal for want of budget says how long to wait", async () => {
  const limited: { scope: string; wait_ms: number }[] = [];
  const refused = (retry_after_ms: number) => (response: ServerResponse) => {
    const params = { retry_after_ms, scope: "agent_tier_1" };
    response.statusCode = 429;
    response.end(JSON.stringify({ error: { code: "RATE_LIMITED", message: "later", params } }));
  };
  const there = (response: ServerResponse): void => {
    response.setHeader("ratelimit", '"agent_tier_1";r=0;t=1');
    response.end('{"data":"there"}');
  };
  const hooks = { rate_limited: (told: (typeof limited)[0]) => void limited.push(told) };
  await asking([refused(100), there, refused(61_000)], hooks, async (http) => {
    assert.equal(await http.data(THERE), "there");
    assert.equal(limited[0]!.scope, "agent_tier_1");
    assert(limited[0]!.wait_ms >= 100 && limited[0]!.wait_ms <= 110);
    // The budget's last call was used, so the next one waits before it is refused.
    assert.deepEqual(limited[1], { scope: "agent_tier_1", wait_ms: 1_000 });
    const begun = Date.now();
    // Nobody waits beyond a minute.
    await assert.rejects(http.data(THERE), RateLimited);
    assert(Date.now() - begun > 900);
  });
});

test("the header of a refusal rules its repeat", async () => {
  const refused = (response: ServerResponse): void => {
    response.statusCode = 503;
    response.setHeader("retry-after", "7");
    response.end("{}");
  };
  const waits: number[] = [];
  const stop = new AbortController();
  const hooks = { retry: ({ wait_ms }: { wait_ms: number }) => void waits.push(wait_ms) };
  await asking([refused, refused], hooks, async (http) => {
    const asked = http.data({ ...THERE, signal: stop.signal });
    asked.catch(() => {});
    while (waits.length === 0) await turn();
    stop.abort();
    await assert.rejects(asked, Closed);
    // A call that may not be repeated fails at once.
    await assert.rejects(http.data({ ...THERE, method: "DELETE" }), { status: 503 });
  });
  assert.deepEqual(waits, [7_000]);
});

test("fifty calls at once end with their signal, and Node warns of no leak", async () => {
  const warnings: Error[] = [];
  const warned = (warning: Error): void => void warnings.push(warning);
  process.on("warning", warned);
  const stop = new AbortController();
  let asked = 0;
  const silent = (): void => void asked++;
  try {
    await asking(Array(50).fill(silent), {}, async (http) => {
      const calls = Array.from({ length: 50 }, () => http.data({ ...THERE, signal: stop.signal }));
      const ended = Promise.allSettled(calls);
      while (asked < 50) await turn();
      stop.abort();
      const reasons = (await ended).map((end) => end.status === "rejected" && end.reason instanceof Closed);
      assert.deepEqual(reasons, Array(50).fill(true));
    });
    await turn();
    assert.deepEqual(warnings, []);
  } finally {
    process.off("warning", warned);
  }
});
