/** The name that others see. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Fault, Field, useAction } from "../../parts/action.js";
import { t } from "../../i18n/index.js";
import { client } from "../../model/phase.js";

export function Profile(): JSX.Element {
  const action = useAction();
  const name = useSignal("");
  const email = useSignal("");
  const isSaved = useSignal(false);
  const load = async (): Promise<void> => {
    const account = await client().profile();
    name.value = account.display_name;
    email.value = account.email;
  };
  useEffect(() => void action.run(load), []);
  const save = async (): Promise<void> => {
    isSaved.value = false;
    await client().updateProfile({ display_name: name.value });
    isSaved.value = true;
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void action.run(save);
      }}
    >
      <Field label={t("name")} autocomplete="name" value={name} />
      <p class="hint">
        {t("email")}: {email.value}
      </p>
      <Fault of={action} />
      <div class="row">
        <button class="primary" disabled={action.isRunning.value}>
          {t("save")}
        </button>
        {isSaved.value && <span role="status">{t("saved")}</span>}
      </div>
    </form>
  );
}
