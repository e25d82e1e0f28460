/** The passkeys that sign this person in. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { components } from "@blindpipe/client";
import { ask, Button, Fault, Field } from "../../parts/action.js";
import { withProof } from "../../parts/proof.js";
import { t, time } from "../../i18n/index.js";
import { hasPasskeys } from "../../model/passkeys.js";
import { client } from "../../model/phase.js";
import { all, useLoaded } from "./load.js";

type Passkey = components["schemas"]["Passkey"];

export function Passkeys(): JSX.Element {
  const { value, action, load } = useLoaded(() => all<Passkey>(client().passkeys()));
  const name = useSignal("");
  const add = async (): Promise<void> => {
    await withProof(() => client().registerPasskey(name.value.trim()));
    name.value = "";
    await load();
  };
  const remove = async (passkey: Passkey): Promise<void> => {
    if (!(await ask(t("remove_passkey_ask", { name: passkey.name })))) return;
    await withProof(() => client().deletePasskey(passkey.passkey_id));
    await load();
  };
  return (
    <>
      <h2>{t("passkeys")}</h2>
      <p class="hint">{t("passkeys_lead")}</p>
      {value.value?.length === 0 && <p class="hint">{t("no_passkeys")}</p>}
      <ul>
        {value.value?.map((passkey) => (
          <li key={passkey.passkey_id} class="row">
            <bdi>{passkey.name}</bdi>
            <small>
              {passkey.last_used_at ? t("last_used", { time: time(passkey.last_used_at) }) : t("never_used")}
            </small>
            <Button
              action={action}
              kind="danger"
              label={`${t("remove")}: ${passkey.name}`}
              onPress={() => remove(passkey)}
            >
              {t("remove")}
            </Button>
          </li>
        ))}
      </ul>
      <Fault of={action} />
      {hasPasskeys && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void action.run(add);
          }}
        >
          <Field label={t("passkey_name")} required={false} hint={t("passkey_name_hint")} value={name} />
          <button class="primary" disabled={action.isRunning.value}>
            {t("add_passkey")}
          </button>
        </form>
      )}
    </>
  );
}
