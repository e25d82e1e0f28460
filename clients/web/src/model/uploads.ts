/** How far an upload has come. `fetch` does not tell, so uploads go by `XMLHttpRequest`. */
import { signal } from "@preact/signals";

export interface Upload {
  readonly sentBytes: number;
  readonly totalBytes: number;
}

/** The upload of this moment: the app sends one file after the other. */
export const upload = signal<Upload | null>(null);

const UPLOAD_PATH = /\/files\/[^/]+\/upload$/;

export const fetchWithUploads: typeof fetch = (input, init) => {
  const isUpload = init?.method === "PUT" && typeof input === "string" && UPLOAD_PATH.test(new URL(input).pathname);
  return isUpload ? put(input, init) : fetch(input, init);
};

function put(url: string, { body, headers, signal }: RequestInit): Promise<Response> {
  return new Promise<Response>((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    for (const [name, value] of new Headers(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = ({ loaded, total }) => (upload.value = { sentBytes: loaded, totalBytes: total });
    request.onload = () => {
      // `fetch` is told to follow no redirect, and this cannot be.
      if (request.responseURL !== url) return reject(new TypeError("redirected"));
      const lines = request.getAllResponseHeaders().trim().split("\r\n");
      const found = lines.map((line): [string, string] => {
        const end = line.indexOf(": ");
        return [line.slice(0, end), line.slice(end + 2)];
      });
      resolve(new Response(request.responseText || null, { status: request.status, headers: found }));
    };
    request.onerror = () => reject(new TypeError("the upload was lost"));
    request.onabort = () => reject(new DOMException("aborted", "AbortError"));
    const abort = (): void => request.abort();
    signal?.addEventListener("abort", abort);
    request.onloadend = () => {
      signal?.removeEventListener("abort", abort);
      upload.value = null;
    };
    if (signal?.aborted) return abort();
    request.send(body as XMLHttpRequestBodyInit);
  });
}
