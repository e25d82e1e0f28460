/** The address of the service. */
import { UsageError } from "../e2ee/errors.js";

const LOOPBACK = /^(localhost|.*\.localhost|127(\.\d{1,3}){3}|\[::1\])$/;

/** Throws `UsageError` for `http://` to another machine: anybody on the way would read the token. */
export function checkAddress(address: string, allowHttp: boolean | undefined): void {
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    throw new UsageError("the address of the service is no URL");
  }
  if (url.protocol === "https:") return;
  if (url.protocol !== "http:") throw new UsageError("the address of the service is https://");
  if (allowHttp === true || LOOPBACK.test(url.hostname)) return;
  throw new UsageError("http:// would show the token to anybody on the way; see allowHttp");
}
