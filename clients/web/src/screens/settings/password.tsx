/** Another password for the account. The protection password is a different one. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { Fault, Field, useAction } from "../../parts/action.js";
import { t } from "../../i18n/index.js";
import { client } from "../../model/phase.js";

export function Password(): JSX.Element {
  const action = useAction();
  const before = useSignal("");
  const next = useSignal("");
  const isSaved = useSignal(false);
  const save = async (): Promise<void> => {
    isSaved.value = false;
    await client().changePassword(before.value, next.value);
    before.value = next.value = "";
    isSaved.value = true;
  };
  return (
    <>
      <h2>{t("change_password")}</h2>
      <p class="hint">{t("change_password_lead")}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(save);
        }}
      >
        <Field label={t("present_password")} type="password" autocomplete="current-password" value={before} />
        <Field
          label={t("new_password")}
          type="password"
          autocomplete="new-password"
          minLength={8}
          hint={t("password_hint")}
          value={next}
        />
        <Fault of={action} />
        <div class="row">
          <button class="plain" disabled={action.isRunning.value}>
            {t("change_password")}
          </button>
          {isSaved.value && <span role="status">{t("password_changed")}</span>}
        </div>
      </form>
    </>
  );
}
