// The shell of the app for times without a line: its page, scripts and style. Nothing that a person has written or read
// passes through here: calls of the API are left to the browser.
const CACHE = "shell";
const PAGE = "/app";
const READER_TIMEOUT_MS = 10_000;
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
  const named = text.match(/\/app\/assets\/[^" ]+/g) ?? [];
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

// A push says that something waits, and never what. The page has the keys, and opens what it reads by itself. In the
// worker of a person who wants words, a reader opens it as well.
const WORDS = {
  en: {
    "message.created": "There is a new message.",
    "approval.requested": "An agent asks for your approval.",
    artifact_request: "An agent wants to use a tool on your device.",
    "grant.requested": "An agent asks for a permission.",
    "key.backup_accessed": "The backup of your keys was read. Was it you?",
    "key.device_added": "A device was added to your account. Was it you?",
    other: "Something waits for you.",
  },
  de: {
    "message.created": "Es gibt eine neue Nachricht.",
    "approval.requested": "Ein Agent bittet um Ihre Zustimmung.",
    artifact_request: "Ein Agent möchte ein Werkzeug auf Ihrem Gerät benutzen.",
    "grant.requested": "Ein Agent bittet um eine Erlaubnis.",
    "key.backup_accessed": "Die Sicherung Ihrer Schlüssel wurde gelesen. Waren Sie das?",
    "key.device_added": "Ein Gerät kam zu Ihrem Konto hinzu. Waren Sie das?",
    other: "Etwas wartet auf Sie.",
  },
};

addEventListener("push", (event) => event.waitUntil(notify(content(event))));
addEventListener("notificationclick", (event) => {
  const { action, notification } = event;
  notification.close();
  event.waitUntil(action ? decide(action, notification) : show(notification.data.hash));
});

function content(event) {
  try {
    return event.data?.json() ?? {};
  } catch {
    return {};
  }
}

async function notify(pushed) {
  const { event, conversation_id } = pushed;
  const pages = await clients.matchAll({ type: "window" });
  // The person sees it already.
  if (pages.some(({ focused }) => focused)) return;
  const language = navigator.languages.find((tag) => /^(de|en)\b/.test(tag))?.startsWith("de") ? "de" : "en";
  const words = await read(pushed);
  const { approve, deny } = globalThis.reader?.labels ?? {};
  await registration.showNotification(words?.title ?? "Blindpipe", {
    body: words?.body ?? WORDS[language][event] ?? WORDS[language].other,
    icon: "/app/icon.svg",
    lang: language,
    // A conversation has one notification, which stands for those before it. A question to decide stands by itself.
    tag: words?.question?.id ?? conversation_id ?? event ?? "other",
    data: { hash: place(event, conversation_id), question: words?.question },
    actions: [
      ...(words?.question ? [{ action: "deny", title: deny }] : []),
      // A question that is not shown whole is approved in the app.
      ...(words?.question?.canApprove ? [{ action: "approve", title: approve }] : []),
    ],
  });
}

/** Null without a reader, and if it opens nothing in time: a push that shows nothing is not allowed. */
async function read(pushed) {
  if (!globalThis.reader) return null;
  const late = new Promise((resolve) => setTimeout(resolve, READER_TIMEOUT_MS, null));
  return Promise.race([globalThis.reader.read(pushed).catch(() => null), late]);
}

async function decide(action, { title, tag, lang, data }) {
  const { reader } = globalThis;
  const shown = { icon: "/app/icon.svg", lang, tag, data: { hash: data.hash } };
  try {
    const body = await reader.decide(action, data.question);
    await registration.showNotification(title, { ...shown, body, silent: true });
  } catch {
    await registration.showNotification(title, { ...shown, body: reader?.labels.failed ?? "" });
  }
}

/** Where in the app it waits. */
function place(event, conversation) {
  if (event === "approval.requested" || event === "grant.requested") return "#/approvals";
  if (event?.startsWith("key.")) return "#/settings/devices";
  return conversation ? `#/c/${encodeURIComponent(conversation)}` : "#/";
}

async function show(hash) {
  const [open] = await clients.matchAll({ type: "window" });
  if (!open) return clients.openWindow(PAGE + hash);
  await open.focus();
  open.postMessage({ go: hash });
}
