/** The devices of this person. */
import type { JSX } from "preact";
import type { components } from "@blindpipe/client";
import { ask, Button, Fault } from "../../parts/action.js";
import { t, time } from "../../i18n/index.js";
import { client } from "../../model/phase.js";
import { useLoaded } from "./load.js";

type Device = components["schemas"]["Device"];

export function Devices(): JSX.Element {
  const { value, action, load } = useLoaded<readonly Device[]>(() => client().devices.list());
  const revoke = async (device: Device): Promise<void> => {
    if (!(await ask(t("revoke_ask", { name: nameOf(device) })))) return;
    await client().devices.revoke(device.device_id);
    await load();
  };
  return (
    <>
      <h2>{t("devices")}</h2>
      <ul>
        {value.value?.map((device) => (
          <li key={device.device_id} class="row">
            <bdi>{nameOf(device)}</bdi>
            <small>{device.current ? t("this_device") : t("last_seen", { time: time(device.last_seen_at) })}</small>
            {!device.current && (
              <Button action={action} kind="danger" onPress={() => revoke(device)}>
                {t("revoke")}
              </Button>
            )}
          </li>
        ))}
      </ul>
      <Fault of={action} />
    </>
  );
}

const nameOf = (device: Device): string => device.display_name ?? device.device_id;
