/** The encrypted cache: what it keeps, and from whom it keeps it. */
import type { JSX } from "preact";
import { Button, Fault, useAction } from "../../parts/action.js";
import { t } from "../../i18n/index.js";
import * as cache from "../../model/cache.js";
import { fillCache } from "../../model/chats.js";
import { MAX_KEPT_MESSAGES } from "../../model/kept.js";
import { client } from "../../model/phase.js";

export function Offline(): JSX.Element {
  const action = useAction();
  const isOn = cache.isOn.value;
  const turnOn = async (): Promise<void> => {
    const { userId, deviceId } = client().account;
    await cache.turnOn(userId, deviceId);
    fillCache();
  };
  return (
    <>
      <p>{t("cache_lead", { messages: MAX_KEPT_MESSAGES, conversations: cache.MAX_CONVERSATIONS })}</p>
      <h2>{t("cache_protection")}</h2>
      <ul>
        <li>{t("cache_protects")}</li>
        <li>{t("cache_protects_not")}</li>
        <li>{t("cache_ends")}</li>
      </ul>
      <p role="status">{t(isOn ? "cache_on" : "cache_off")}</p>
      {isOn ? (
        <Button action={action} onPress={cache.erase}>
          {t("cache_turn_off")}
        </Button>
      ) : (
        <Button action={action} kind="primary" onPress={turnOn}>
          {t("cache_turn_on")}
        </Button>
      )}
      <Fault of={action} />
    </>
  );
}
