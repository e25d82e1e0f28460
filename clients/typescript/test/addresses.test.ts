// The way to the service: over TLS, and with its cause where it fails.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mock, test } from "node:test";
import { Agent, ConnectionLost } from "@blindpipe/client/agent";
import { Client } from "@blindpipe/client";
import { AgentKey, UsageError, newUlid } from "@blindpipe/client/e2ee";

function agentOf(url: string, allowHttp?: boolean): Agent {
  const key = AgentKey.random().toText();
  return new Agent({ url, agentId: newUlid(), token: "hsk_none", key, allowHttp });
}

test("a token goes to another machine over TLS only", async () => {
  for (const url of ["http://example.com", "http://127.0.0.1.example.com", "http://10.0.0.1:8080", "ftp://localhost", "no address"]) {
    assert.throws(() => agentOf(url), UsageError, url);
    const login = { url, email: "a", password: "b", turnstileToken: "c" };
    await assert.rejects(async () => Client.login(login), UsageError, url);
  }
  for (const url of ["https://example.com", "http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"]) {
    agentOf(url);
  }
  agentOf("http://example.com", true);
});

test("a certificate that is not trusted is named, and the cause is kept", async () => {
  const folder = mkdtempSync(join(tmpdir(), "certificate-"));
  const [keyFile, file] = [join(folder, "key.pem"), join(folder, "cert.pem")];
  const request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
  execFileSync("openssl", [...request, ...subject, "-keyout", keyFile, "-out", file], {
    stdio: "ignore",
  });
  const server = createServer({ key: readFileSync(keyFile), cert: readFileSync(file) });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const random = mock.method(Math, "random", () => 0);
  try {
    const { port } = server.address() as AddressInfo;
    await assert.rejects(agentOf(`https://localhost:${port}`).check(), (error: Error) => {
      assert(error instanceof ConnectionLost);
      assert.match(error.message, /certificate is not trusted \(DEPTH_ZERO_SELF_SIGNED_CERT\)/);
      assert.equal(((error.cause as Error).cause as { code: string }).code, "DEPTH_ZERO_SELF_SIGNED_CERT");
      return true;
    });
    await assert.rejects(agentOf("http://127.0.0.1:9").check(), (error: Error) => {
      assert(error instanceof ConnectionLost && error.cause instanceof Error);
      return true;
    });
  } finally {
    random.mock.restore();
    server.close();
  }
});
