/** The frame around the screens. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { t } from "./i18n/first.js";
import { phase } from "./model/phase.js";
import { isWidget } from "./model/place.js";
import { knownDeviceId } from "./model/storage.js";
import { WidgetFrame } from "./parts/widget-frame.js";
import { SignIn } from "./screens/sign-in.js";

type SignedIn = typeof import("./signed-in.js");

const signedIn = signal<SignedIn | null>(null);

/** A browser that has never been here shows the sign-in at once, and asks nobody for a session. */
export async function start(): Promise<void> {
  // The browser opens its database beside the first drawing.
  const knowing = knownDeviceId();
  const loading = import("./signed-in.js");
  const isKnown = (await knowing) !== null;
  if (!isKnown) phase.value = { is: "signed-out" };
  const loaded = await loading;
  signedIn.value = loaded;
  if (isKnown) await loaded.start();
}

export function App(): JSX.Element {
  const now = <Now />;
  return isWidget ? <WidgetFrame>{now}</WidgetFrame> : now;
}

function Now(): JSX.Element {
  const now = phase.value;
  if (now.is === "signed-out") return <SignIn />;
  if (now.is === "away") {
    return (
      <p class="centre" role="status">
        {t("away")}
      </p>
    );
  }
  const Inside = signedIn.value?.Inside;
  return now.is === "starting" || !Inside ? <p class="centre">{t("starting")}</p> : <Inside />;
}
