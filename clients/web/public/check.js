// The human check. A foreign script runs here, so this page has an origin of its own, where no person has anything. It
// hands its proof to a page of the app that asks for it, and to no other.
const SCRIPT = "https://challenges.cloudflare.com/turnstile/v0/api.js?render=explicit";
const settings = fetch("/app/check.json").then((response) => response.json());

addEventListener("message", async ({ data, origin, source }) => {
  if (data?.blindpipe !== "check" || source !== parent) return;
  const { site_key, stand_in, app_origins } = await settings;
  if (!app_origins.includes(origin)) return;
  const answer = (message) => source.postMessage({ blindpipe: "check", ...message }, origin);
  // The development cluster takes this word, and no other service does.
  if (stand_in) answer({ token: "dev-pass" });
  else show(site_key, data.language, answer);
});

function show(sitekey, language, answer) {
  const failed = () => answer({ failed: true });
  const script = document.createElement("script");
  script.src = SCRIPT;
  script.addEventListener("error", failed);
  script.addEventListener("load", () =>
    globalThis.turnstile.render("#check", {
      sitekey,
      language,
      action: "blindpipe",
      size: "flexible",
      callback: (token) => answer({ token }),
      "error-callback": failed,
    }),
  );
  document.head.append(script);
}
