// A button on a page of somebody else that opens a conversation with one agent:
//   <script src="https://chat.example.org/app/widget.js" data-agent="agent id, or its link"></script>
// The conversation is in a frame of the app's own origin. This script sees nothing of it, and says nothing to it.
(() => {
  const script = document.currentScript;
  const app = new URL(".", script.src);
  const agent = agentOf(script.dataset.agent ?? "");
  if (!agent) {
    console.error("Blindpipe: data-agent is neither the id of an agent nor a link to one at " + app.origin);
    return;
  }
  const isGerman = (document.documentElement.lang || navigator.language).startsWith("de");
  const label = script.dataset.label || (isGerman ? "Gespräch" : "Chat");
  const closing = isGerman ? "Schließen" : "Close";
  const host = document.createElement("div");
  // The styles of the page and of the button do not meet.
  const root = host.attachShadow({ mode: "open" });
  const button = styled(document.createElement("button"), {
    all: "initial",
    position: "fixed",
    right: "1rem",
    bottom: "1rem",
    zIndex: "2147483647",
    padding: "0.7rem 1.2rem",
    borderRadius: "2rem",
    font: "600 1rem system-ui, sans-serif",
    color: "#ffffff",
    background: "#1f5fbf",
    cursor: "pointer",
    boxShadow: "0 2px 10px rgb(0 0 0 / 30%)",
  });
  button.type = "button";
  button.addEventListener("focus", () => {
    if (button.matches(":focus-visible")) button.style.outline = "3px solid #17202b";
  });
  button.addEventListener("blur", () => (button.style.outline = ""));
  root.append(button);
  let frame = null;
  let isOpen = false;
  show();

  button.addEventListener("click", () => {
    isOpen = !isOpen;
    // Nothing is loaded before somebody wants it.
    if (isOpen && !frame) root.prepend((frame = makeFrame()));
    show();
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isOpen) return;
    isOpen = false;
    show();
  });
  if (document.body) document.body.append(host);
  else addEventListener("DOMContentLoaded", () => document.body.append(host));

  function show() {
    button.textContent = isOpen ? closing : label;
    button.setAttribute("aria-expanded", String(isOpen));
    if (frame) frame.style.display = isOpen ? "block" : "none";
  }

  function makeFrame() {
    const made = document.createElement("iframe");
    made.title = label;
    made.src = new URL("widget.html#/a/" + agent.map(encodeURIComponent).join("/"), app).href;
    // Of its own origin, for its keys. It cannot turn the page that shows it to another address.
    made.sandbox =
      "allow-scripts allow-same-origin allow-forms allow-downloads allow-popups allow-popups-to-escape-sandbox";
    made.allow = "clipboard-write";
    made.referrerPolicy = "no-referrer";
    return styled(made, {
      position: "fixed",
      right: "1rem",
      bottom: "5rem",
      zIndex: "2147483647",
      width: "min(26rem, calc(100vw - 2rem))",
      height: "min(40rem, calc(100vh - 7rem))",
      border: "1px solid #56616f",
      borderRadius: "0.9rem",
      background: "#ffffff",
    });
  }

  function styled(element, style) {
    // A policy of the page may forbid written styles, and allows these.
    Object.assign(element.style, style);
    return element;
  }

  /** Its id, and its key if the link names one. */
  function agentOf(text) {
    const id = /^[0-9A-Za-z-]{10,64}$/;
    if (id.test(text)) return [text];
    if (!URL.canParse(text) || new URL(text).origin !== app.origin) return null;
    const [, at, ...named] = new URL(text).hash.split("/");
    const isLink = at === "a" && named.length <= 2 && named.length > 0 && named.every((part) => id.test(part));
    return isLink ? named : null;
  }
})();
