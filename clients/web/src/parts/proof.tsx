/** The proof of identity that the service wants before what a stolen session must not do. */
import { signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { type Proof, ReauthRequired } from "@blindpipe/client";
import { Button, Dialog, Fault, Field, useAction } from "./action.js";
import { t } from "../i18n/index.js";
import { hasPasskeys } from "../model/passkeys.js";
import { client } from "../model/phase.js";

/** Ends the wait for a proof: whether there is one. */
const asked = signal<((isProven: boolean) => void) | null>(null);

/** Does the work, after a proof if the service wants one. False if the person gives none. */
export async function withProof(work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    if (!(error instanceof ReauthRequired)) throw error;
  }
  const isProven = await new Promise<boolean>((resolve) => (asked.value = resolve));
  if (isProven) await work();
  return isProven;
}

export function ProofDialog(): JSX.Element | null {
  return asked.value && <Prove answer={asked.value} />;
}

function Prove({ answer }: { readonly answer: (isProven: boolean) => void }): JSX.Element {
  const action = useAction();
  const password = useSignal("");
  const end = (isProven: boolean): void => {
    asked.value = null;
    answer(isProven);
  };
  const prove = async (proof: Proof): Promise<void> => {
    await client().reauth(proof);
    end(true);
  };
  const provePasskey = async (): Promise<void> => {
    if (await client().reauthWithPasskey()) end(true);
  };
  return (
    <Dialog title={t("prove")} onClose={() => end(false)}>
      <p>{t("prove_lead")}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(() => prove({ accountPassword: password.value }));
        }}
      >
        <Field label={t("password")} type="password" autocomplete="current-password" value={password} />
        <Fault of={action} />
        <div class="row">
          <button type="button" class="plain" onClick={() => end(false)}>
            {t("cancel")}
          </button>
          <button class="primary" disabled={action.isRunning.value}>
            {t("go_on")}
          </button>
          {hasPasskeys && (
            <Button action={action} kind="quiet" onPress={provePasskey}>
              {t("use_passkey")}
            </Button>
          )}
        </div>
      </form>
    </Dialog>
  );
}
