/** Notifications while the app is closed, and what others learn by them. */
import type { JSX } from "preact";
import { Button, Fault } from "../../parts/action.js";
import { t } from "../../i18n/index.js";
import { client } from "../../model/phase.js";
import { type PushState, state, turnOff, turnOn } from "../../model/push.js";
import { useLoaded } from "./load.js";

const STATES = {
  unsupported: "push_unsupported",
  denied: "push_denied",
  off: "push_off",
  on: "push_on",
} as const;

export function Notifications(): JSX.Element {
  const { value, action } = useLoaded<PushState>(() => state(client()));
  const now = value.value;
  const change = async (to: typeof turnOn): Promise<void> => {
    value.value = await to(client());
  };
  return (
    <>
      <p>{t("push_lead")}</p>
      <h2>{t("push_leaks")}</h2>
      <ul>
        <li>{t("push_leaks_when")}</li>
        <li>{t("push_leaks_who")}</li>
        <li>{t("push_leaks_not")}</li>
      </ul>
      {now && <p role="status">{t(STATES[now])}</p>}
      {now === "off" && (
        <Button action={action} kind="primary" onPress={() => change(turnOn)}>
          {t("push_turn_on")}
        </Button>
      )}
      {now === "on" && (
        <Button action={action} onPress={() => change(turnOff)}>
          {t("push_turn_off")}
        </Button>
      )}
      <Fault of={action} />
    </>
  );
}
