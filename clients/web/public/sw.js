// The shell of the app for times without a line: its page, scripts and style. Nothing that a person has written or read
// passes through here: calls of the API are left to the browser.
const CACHE = "shell";
const PAGE = "/app";
const BESIDE = ["/app/icon.svg", "/app/manifest.webmanifest"];

addEventListener("install", (event) => {
  event.waitUntil(fetch(PAGE).then(keep));
  skipWaiting();
});

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const { method, url, mode } = event.request;
  const { origin, pathname } = new URL(url);
  if (method !== "GET" || origin !== location.origin) return;
  if (mode === "navigate" && pathname === PAGE) event.respondWith(page(event));
  else if (pathname.startsWith("/app/assets/") || BESIDE.includes(pathname)) event.respondWith(part(event.request));
});

/** The page of now, so that nobody stays with an old one. */
async function page(event) {
  const kept = () => caches.match(PAGE, { ignoreVary: true });
  try {
    const response = await fetch(event.request);
    if (response.status >= 500) return (await kept()) ?? response;
    if (response.ok) event.waitUntil(keep(response.clone()));
    return response;
  } catch (error) {
    const shell = await kept();
    if (shell) return shell;
    throw error;
  }
}

async function part(request) {
  const kept = await caches.match(request, { ignoreVary: true });
  if (kept) return kept;
  const response = await fetch(request);
  if (response.ok) await (await caches.open(CACHE)).put(request, response.clone());
  return response;
}

/** Keeps a page with the scripts and styles that it names, and drops those of earlier pages. */
async function keep(response) {
  if (!response.ok) return;
  const cache = await caches.open(CACHE);
  const text = await response.clone().text();
  const named = [...text.matchAll(/"(\/app\/assets\/[^"]+)"/g)].map(([, path]) => path);
  const isNew = (await Promise.all(named.map((path) => cache.match(path)))).includes(undefined);
  if (isNew) {
    await cache.addAll([...named, ...BESIDE]);
    for (const { url } of await cache.keys()) {
      const { pathname } = new URL(url);
      if (pathname.startsWith("/app/assets/") && !named.includes(pathname)) await cache.delete(url);
    }
  }
  await cache.put(PAGE, response);
}
