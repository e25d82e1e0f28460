/** Sign in, or make an account. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { BlindpipeError } from "@blindpipe/client";
import { Button, Fault, Field, useAction } from "../parts/action.js";
import { HumanCheckDialog } from "../parts/human-check.js";
import { t } from "../i18n/first.js";
import { humanCheck } from "../model/human-check.js";
import { isWidget } from "../model/place.js";
import { hasPasskeys, offersPasskeys } from "../model/passkeys.js";

/** The session comes after the screen, which is written in while it loads. */
const session = (): Promise<typeof import("../model/session.js")> => import("../model/session.js");

type Mode = "password" | "code" | "register";

export function SignIn(): JSX.Element {
  const mode = useSignal<Mode>("password");
  const action = useAction();
  const email = useSignal("");
  const password = useSignal("");
  const code = useSignal("");
  const name = useSignal("");
  const isCodeSent = useSignal(false);

  const offer = useOfferedPasskey();
  const usePasskey = async (): Promise<void> => {
    // A browser has one question about passkeys at a time.
    offer.end();
    const { loginWithPasskey } = await session();
    await loginWithPasskey(false, new AbortController().signal).finally(offer.begin);
  };

  const needsCode = mode.value !== "password";
  const askForCode = async (): Promise<void> => {
    const { sendCode } = await session();
    await sendCode(email.value, mode.value === "register" ? "register" : "login", await humanCheck());
    isCodeSent.value = true;
  };
  const enter = async (): Promise<void> => {
    if (needsCode && !isCodeSent.value) return askForCode();
    const { login, loginWithCode, register } = await session();
    if (mode.value === "code") return loginWithCode(email.value, code.value.trim());
    const credentials = { email: email.value, password: password.value, turnstileToken: await humanCheck() };
    if (mode.value === "password") return login(credentials);
    return register({ ...credentials, code: code.value.trim(), displayName: name.value });
  };
  const change = (next: Mode): void => {
    mode.value = next;
    isCodeSent.value = false;
    action.fault.value = null;
  };

  const title = mode.value === "register" ? t("register") : t("sign_in");
  return (
    <main class="card">
      <h1>{title}</h1>
      <p>{t("sign_in_lead")}</p>
      {isWidget && <p class="hint">{t("widget_note")}</p>}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(enter);
        }}
      >
        <Field label={t("email")} type="email" autocomplete="username webauthn" value={email} />
        {isCodeSent.value && <p role="status">{t("code_sent")}</p>}
        {needsCode && isCodeSent.value && (
          <Field label={t("code")} autocomplete="one-time-code" value={code} />
        )}
        {mode.value === "register" && isCodeSent.value && (
          <Field label={t("name")} autocomplete="name" value={name} />
        )}
        {(mode.value === "password" || (mode.value === "register" && isCodeSent.value)) && (
          <Field
            label={t("password")}
            type="password"
            autocomplete={mode.value === "register" ? "new-password" : "current-password"}
            minLength={mode.value === "register" ? 8 : undefined}
            hint={mode.value === "register" ? t("password_hint") : undefined}
            value={password}
          />
        )}
        <Fault of={action} />
        <button class="primary" disabled={action.isRunning.value}>
          {needsCode && !isCodeSent.value ? t("send_code") : title}
        </button>
      </form>
      <div class="row">
        {hasPasskeys && mode.value !== "register" && (
          <Button action={action} kind="quiet" onPress={usePasskey}>
            {t("use_passkey")}
          </Button>
        )}
        {mode.value !== "password" && (
          <button type="button" class="quiet" onClick={() => change("password")}>
            {mode.value === "register" ? t("have_account") : t("use_password")}
          </button>
        )}
        {mode.value === "password" && (
          <button type="button" class="quiet" onClick={() => change("code")}>
            {t("use_code")}
          </button>
        )}
        {mode.value !== "register" && (
          <button type="button" class="quiet" onClick={() => change("register")}>
            {t("no_account")}
          </button>
        )}
      </div>
      <HumanCheckDialog />
    </main>
  );
}

/** The browser offers passkeys beside the field for the e-mail while the screen is open. */
function useOfferedPasskey(): { readonly begin: () => void; readonly end: () => void } {
  const ending = useRef(new AbortController());
  const begin = (): void => {
    ending.current = new AbortController();
    void offer(ending.current.signal);
  };
  const end = (): void => ending.current.abort();
  useEffect(() => {
    begin();
    return end;
  }, []);
  return { begin, end };
}

async function offer(signal: AbortSignal): Promise<void> {
  if (!(await offersPasskeys())) return;
  const { loginWithPasskey } = await session();
  try {
    await loginWithPasskey(true, signal);
  } catch (error) {
    // The other ways in are there. Some browsers say only now that they have no passkeys.
    if (!(error instanceof BlindpipeError || error instanceof DOMException)) throw error;
  }
}
