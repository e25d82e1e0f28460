/**
 * A real cluster for tests: the development cluster of the service, not an imitation. Node only.
 *
 * @module testing
 */
import { spawn } from "node:child_process";
import { existsSync, readFileSync, readdirSync, realpathSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import tls from "node:tls";
import type { AgentOptions } from "../agent/options.js";
import { Client } from "../client/client.js";
import type { ClientOptions } from "../client/options.js";
import { AgentKey } from "../e2ee/keys.js";
import { newUlid } from "../e2ee/bytes.js";

const READY_TIMEOUT_MS = 60_000;
const MAIL_TIMEOUT_MS = 10_000;
/** The least that the scheme allows: nobody guesses the password of a test. */
const CHEAP_COSTS = { m: 19_456, t: 2, p: 1 };
const PROTECTION_PASSWORD = "correct horse battery staple";

interface ClusterFile {
  readonly nodes: readonly { readonly base_url: string; readonly pid: number }[];
  readonly ca_file: string;
  readonly mail_dir: string;
}

/** The part of a started program that its end needs. */
interface Started {
  once(event: "exit", listener: () => void): unknown;
  kill(signal: "SIGINT"): boolean;
}

export interface DevClusterOptions {
  /** The cluster's folder; by default the nearest `.dev` upward. */
  readonly dir?: string;
  /** The program that is started if no cluster runs. */
  readonly program?: string;
}

/** A person with a device whose keys are backed up. */
export interface TestUser {
  readonly client: Client;
  readonly email: string;
  readonly password: string;
  readonly protectionPassword: string;
}

/** Finds a running development cluster, or starts one. */
export async function devCluster(options: DevClusterOptions = {}): Promise<DevCluster> {
  const dir = options.dir ?? process.env["BLINDPIPE_DEV"] ?? nearest(".dev") ?? resolve(".dev");
  const file = join(dir, "cluster.json");
  let child: Started | null = null;
  if (!existsSync(file)) {
    const program = options.program ?? nearest("target/debug/devcluster");
    if (!program) throw new Error("no development cluster runs, and its program is not built");
    const parameters = ["--dir", dir, "--no-demo"];
    child = spawn(program, parameters, { stdio: "ignore", env: process.env });
    let hasEnded = false;
    child.once("exit", () => (hasEnded = true));
    const isThere = (): boolean => hasEnded || existsSync(file);
    await until(isThere, READY_TIMEOUT_MS, "the cluster did not start");
    if (hasEnded) throw new Error("the development cluster has ended");
  }
  const cluster = new DevCluster(file, child);
  cluster.trustAuthority();
  return cluster;
}

/** The nearest path of this name, from the working folder upward. */
function nearest(name: string): string | null {
  for (let folder = process.cwd(); ; folder = dirname(folder)) {
    if (existsSync(join(folder, name))) return join(folder, name);
    if (folder === dirname(folder)) return null;
  }
}

async function until(isTrue: () => boolean, ms: number, fault: string): Promise<void> {
  for (const end = Date.now() + ms; !isTrue(); await pause(20)) {
    if (Date.now() > end) throw new Error(fault);
  }
}

export class DevCluster {
  constructor(
    /** The cluster's own description. */
    readonly file: string,
    private readonly child: Started | null,
  ) {}

  #read(): ClusterFile {
    return JSON.parse(readFileSync(this.file, "utf8")) as ClusterFile;
  }

  get nodes(): readonly string[] {
    return this.#read().nodes.map((node) => node.base_url);
  }

  /** The certificate of the cluster's own authority. */
  get authority(): string {
    return this.#read().ca_file;
  }

  /** Node reads NODE_EXTRA_CA_CERTS only at its start; newer ones can be told later. */
  trustAuthority(): void {
    const { ca_file } = this.#read();
    const known = process.env["NODE_EXTRA_CA_CERTS"];
    if (known && existsSync(known) && realpathSync(known) === realpathSync(ca_file)) return;
    const { setDefaultCACertificates, getCACertificates } = tls as unknown as {
      setDefaultCACertificates?: (certificates: string[]) => void;
      getCACertificates?: () => string[];
    };
    if (!setDefaultCACertificates || !getCACertificates) {
      throw new Error(`start this with NODE_EXTRA_CA_CERTS=${ca_file}`);
    }
    setDefaultCACertificates([...getCACertificates(), readFileSync(ca_file, "utf8")]);
  }

  /** Registers a person; the device's keys are made and backed up. */
  async user(name: string, options: Partial<ClientOptions> = {}): Promise<TestUser> {
    const email = `${name}-${newUlid().toLowerCase()}@example.com`;
    const password = `account-${newUlid()}`;
    const url = options.url ?? this.nodes[0]!;
    const turnstileToken = "dev-pass";
    await Client.sendCode({ url, email, scene: "register", turnstileToken });
    const code = await this.code(email);
    const client = await Client.register({
      ...options,
      url,
      email,
      code,
      password,
      turnstileToken,
      displayName: name,
    });
    const protectionPassword = PROTECTION_PASSWORD;
    const costs = CHEAP_COSTS;
    await client.devices.create(protectionPassword, { accountPassword: password, costs });
    return { client, email, password, protectionPassword };
  }

  /** The newest code that was mailed to an address. */
  async code(email: string): Promise<string> {
    const { mail_dir } = this.#read();
    let found: string | null = null;
    const look = (): boolean => {
      for (const name of readdirSync(mail_dir).filter((each) => each.endsWith(".eml"))) {
        const mail = readFileSync(join(mail_dir, name), "utf8");
        if (mail.includes(email)) found = /^\s*(\d{8})\s*$/m.exec(mail)?.[1] ?? found;
      }
      return found !== null;
    };
    await until(look, MAIL_TIMEOUT_MS, "no mail with a code came");
    return found!;
  }

  /** Creates an agent of this person, with a new key. */
  async agent(name: string, owner: Client, manifest?: object): Promise<AgentOptions> {
    const made = await owner.account.http.data<{ agent_id: string; token: string }>({
      method: "POST",
      path: "/agents",
      body: { display_name: name, ...(manifest ? { manifest } : {}) },
    });
    return {
      url: this.nodes.at(-1)!,
      agentId: made.agent_id,
      token: made.token,
      key: AgentKey.random().toText(),
    };
  }

  /** Kills a node as a crash would; the cluster starts it again on the same port. */
  kill(node: number): void {
    process.kill(this.#read().nodes[node]!.pid, "SIGKILL");
  }

  /** Stops what `devCluster()` started. */
  async stop(): Promise<void> {
    if (!this.child) return;
    const ended = new Promise<void>((resolve) => this.child!.once("exit", resolve));
    this.child.kill("SIGINT");
    await ended;
  }
}
