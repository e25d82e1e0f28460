/** The protection password: made on the first device, asked for on each further one. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { ask, Button, Fault, Field, useAction } from "../parts/action.js";
import { t } from "../i18n/index.js";
import { logout, newProtectionPassword, setUpKeys } from "../model/session.js";

export function Keys({ hasBackup }: { readonly hasBackup: boolean }): JSX.Element {
  const isNew = useSignal(!hasBackup);
  return (
    <main class="card">
      {isNew.value ? <Protect /> : <Restore onStartAnew={() => (isNew.value = true)} />}
      <SignOut />
    </main>
  );
}

function Protect(): JSX.Element {
  const action = useAction();
  const password = useSignal(newProtectionPassword());
  const isWritten = useSignal(false);
  return (
    <>
      <h1>{t("protect")}</h1>
      <p>{t("protect_lead")}</p>
      <output class="password">{password.value}</output>
      <label class="check">
        <input
          type="checkbox"
          checked={isWritten.value}
          onChange={(event) => (isWritten.value = event.currentTarget.checked)}
        />
        {t("i_wrote_it")}
      </label>
      <Fault of={action} />
      <Button
        kind="primary"
        action={action}
        disabled={!isWritten.value}
        onPress={() => setUpKeys(password.value, "create")}
      >
        {t("go_on")}
      </Button>
    </>
  );
}

function Restore({ onStartAnew }: { readonly onStartAnew: () => void }): JSX.Element {
  const action = useAction();
  const password = useSignal("");
  const startAnew = async (): Promise<void> => {
    if (await ask(t("start_anew_ask"))) onStartAnew();
  };
  return (
    <>
      <h1>{t("restore")}</h1>
      <p>{t("restore_lead")}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(() => setUpKeys(password.value, "restore"));
        }}
      >
        <Field label={t("protection_password")} type="password" value={password} />
        <Fault of={action} />
        <button class="primary" disabled={action.isRunning.value}>
          {t("go_on")}
        </button>
      </form>
      <button type="button" class="quiet" onClick={() => void startAnew()}>
        {t("start_anew")}
      </button>
    </>
  );
}

function SignOut(): JSX.Element {
  return (
    <button type="button" class="quiet" onClick={() => void logout()}>
      {t("sign_out")}
    </button>
  );
}
