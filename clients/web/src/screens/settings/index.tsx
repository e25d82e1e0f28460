/** The settings: what there is, and a page for each part. */
import type { JSX } from "preact";
import { ask } from "../../parts/action.js";
import { t, type Texts } from "../../i18n/index.js";
import { logout } from "../../model/session.js";
import { AccessLog } from "./access-log.js";
import { Blocks } from "./blocks.js";
import { Devices } from "./devices.js";
import { Grants } from "./grants.js";
import { Notifications } from "./notifications.js";
import { Offline } from "./offline.js";
import { Password } from "./password.js";
import { Passkeys } from "./passkeys.js";
import { Profile } from "./profile.js";
import { SECTIONS, type Section } from "./sections.js";
import { Sessions } from "./sessions.js";

const TITLES: Readonly<Record<Section, keyof Texts>> = {
  profile: "profile",
  "sign-in": "sign_in_ways",
  devices: "devices_sessions",
  notifications: "notifications",
  offline: "cache",
  blocks: "blocks",
  grants: "grants",
  reads: "access_log",
};

export function Settings({ section }: { readonly section: Section | null }): JSX.Element {
  return section ? <Part section={section} /> : <Overview />;
}

function Overview(): JSX.Element {
  const signOut = async (): Promise<void> => {
    if (await ask(t("sign_out_ask"))) await logout();
  };
  return (
    <section class="page" aria-label={t("settings")}>
      <h1>{t("settings")}</h1>
      <ul class="links">
        {SECTIONS.map((name) => (
          <li key={name}>
            <a href={`#/settings/${name}`}>{t(TITLES[name])}</a>
          </li>
        ))}
      </ul>
      <p class="hint">{t("theme_note")}</p>
      <button type="button" class="danger" onClick={() => void signOut()}>
        {t("sign_out")}
      </button>
    </section>
  );
}

function Part({ section }: { readonly section: Section }): JSX.Element {
  return (
    <section class="page" aria-label={t(TITLES[section])}>
      <p class="up">
        <a href="#/settings">{t("settings")}</a>
      </p>
      <h1>{t(TITLES[section])}</h1>
      <Content section={section} />
    </section>
  );
}

function Content({ section }: { readonly section: Section }): JSX.Element {
  switch (section) {
    case "profile":
      return <Profile />;
    case "sign-in":
      return (
        <>
          <Passkeys />
          <Password />
        </>
      );
    case "devices":
      return (
        <>
          <Devices />
          <Sessions />
        </>
      );
    case "notifications":
      return <Notifications />;
    case "offline":
      return <Offline />;
    case "blocks":
      return <Blocks />;
    case "grants":
      return <Grants />;
    case "reads":
      return <AccessLog />;
  }
}
