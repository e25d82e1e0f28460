// What the app costs: `npm run figures` prints a row each. MINUTES sets how long streams run (10).
import { readFileSync, readdirSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { Agent } from "@blindpipe/client/agent";
import { devCluster } from "@blindpipe/client/testing";
import { appOf, findBrowser, newPage, openAgent, register, say, startBrowser } from "./support.mjs";

const ASSETS = fileURLToPath(new URL("../dist/assets", import.meta.url));
const LOADS = 5;
/** A phone of the middle class on a slow mobile network, as browsers' own audits assume it. */
const SLOW_PROCESSOR = 4;
const SLOW_NETWORK = { offline: false, latency: 150, downloadThroughput: 200_000, uploadThroughput: 93_750 };
const MESSAGES = 1_000;
const SENDS_AT_ONCE = 50;
const DELTA_PAUSE_MS = 20;
const DELTAS_OF_STREAM = 300;
const minutes = Number(process.env.MINUTES ?? 10);

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];
const row = (name, value) => console.log(`| ${name} | ${value} |`);

function firstLoad() {
  const names = readdirSync(ASSETS);
  const sizeOf = (end) =>
    names.filter((name) => name.endsWith(end)).reduce((sum, name) => sum + gzipSync(readFileSync(`${ASSETS}/${name}`)).length, 0);
  row("first load, compressed: scripts, style", `${sizeOf(".js")}, ${sizeOf(".css")} bytes`);
}

/** The first paint, and the moment at which the sign-in takes a keystroke. */
async function loads(browser, cluster, isSlow) {
  const found = [];
  for (let n = 0; n < LOADS; n++) {
    const { page, context } = await newPage(browser, { serviceWorkers: "block" });
    const devtools = await context.newCDPSession(page);
    if (isSlow) {
      await devtools.send("Network.enable");
      await devtools.send("Network.emulateNetworkConditions", SLOW_NETWORK);
      await devtools.send("Emulation.setCPUThrottlingRate", { rate: SLOW_PROCESSOR });
    }
    await page.addInitScript(() => {
      new MutationObserver((_, observer) => {
        if (!document.querySelector("input[type=email]:not([disabled])")) return;
        globalThis.interactiveMs = performance.now();
        observer.disconnect();
      }).observe(document, { childList: true, subtree: true });
    });
    await page.goto(appOf(cluster));
    await page.waitForFunction(() => globalThis.interactiveMs && performance.getEntriesByName("first-contentful-paint").length > 0);
    found.push(
      await page.evaluate(() => [performance.getEntriesByName("first-contentful-paint")[0].startTime, globalThis.interactiveMs]),
    );
    await context.close();
  }
  const [paint, interactive] = [0, 1].map((at) => Math.round(median(found.map((each) => each[at]))));
  row(`first paint, sign-in ready (${isSlow ? "slow profile" : "this machine"})`, `${paint}, ${interactive} ms`);
}

/** An agent that streams without end, and sends a burst or a flood of messages when it is told to. */
async function startAgent(owner, cluster) {
  const options = await cluster.agent("Writer", owner);
  const agent = new Agent(options);
  const stopping = new AbortController();
  const written = { deltas: 0 };
  agent.on("message", async (ctx) => {
    if (ctx.text === "burst") {
      for (let n = 0; n < MESSAGES; n++) await ctx.reply(`burst ${n}`, { key: `burst ${n}` });
      return;
    }
    if (ctx.text === "flood") {
      const all = Array.from({ length: MESSAGES }, (_, n) => `flood ${n}`);
      while (all.length > 0) await Promise.all(all.splice(0, SENDS_AT_ONCE).map((text) => ctx.reply(text, { key: text })));
      // Replies at once arrive in any order, and only those in view are drawn. So a last one says that all are here.
      await ctx.reply("end of the flood", { key: "end" });
      return;
    }
    while (!stopping.signal.aborted && !ctx.stopped.aborted) {
      const stream = ctx.stream({ key: `stream ${written.deltas}` });
      for (let n = 0; n < DELTAS_OF_STREAM && !stopping.signal.aborted; n++) {
        await stream.write(`**word ${n}** `);
        written.deltas += 1;
        await pause(DELTA_PAUSE_MS);
      }
      await stream.end();
    }
  });
  const running = agent.run({ signal: stopping.signal });
  return {
    id: options.agentId,
    written,
    stop: async () => {
      stopping.abort();
      await running;
    },
  };
}

async function heapBytes(devtools) {
  await devtools.send("HeapProfiler.collectGarbage");
  const { usedSize } = await devtools.send("Runtime.getHeapUsage");
  return usedSize;
}

const mib = (bytes) => `${(bytes / 1024 / 1024).toFixed(1)} MiB`;

const cluster = await devCluster();
const browser = await startBrowser(findBrowser(), cluster.nodes[0]);
const owner = await cluster.user("owner");
const [writer, sender] = [await startAgent(owner.client, cluster), await startAgent(owner.client, cluster)];
try {
  firstLoad();
  await loads(browser, cluster, false);
  await loads(browser, cluster, true);

  const { page, context } = await newPage(browser);
  page.setDefaultTimeout(120_000);
  await register(page, cluster, `reader-${Date.now()}@example.com`, "Reader");
  await openAgent(page, cluster, sender.id);
  const shownASecond = async (words, last) => {
    await say(page, words);
    const began = Date.now();
    await page.locator("article.message", { hasText: last }).waitFor();
    return Math.round((MESSAGES * 1000) / (Date.now() - began));
  };
  row("messages a second that are shown, sent one after another", await shownASecond("burst", `burst ${MESSAGES - 1}`));
  row(`the same, sent ${SENDS_AT_ONCE} at once`, await shownASecond("flood", "end of the flood"));

  await openAgent(page, cluster, writer.id);
  await say(page, "write");
  await page.locator("article.live").waitFor();
  const devtools = await context.newCDPSession(page);
  const before = [await heapBytes(devtools), writer.written.deltas];
  for (let minute = 0; minute < minutes; minute++) await pause(60_000);
  const after = [await heapBytes(devtools), writer.written.deltas];
  row(`memory before and after ${minutes} minutes of streams (${after[1] - before[1]} deltas)`, `${mib(before[0])}, ${mib(after[0])}`);
} finally {
  await writer.stop();
  await sender.stop();
  await browser.close();
}
