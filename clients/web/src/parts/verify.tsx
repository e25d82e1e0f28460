/** The digits that two people compare. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { Button, Dialog, Fault, useAction } from "./action.js";
import { t } from "../i18n/index.js";
import { client } from "../model/phase.js";

interface Member {
  readonly principal_type: "user" | "agent";
  readonly principal_id: string;
  readonly display_name: string;
}

interface Compared {
  readonly name: string;
  readonly digits: string;
  /** Null where it could not be fetched: the digits do without it. */
  readonly Qr: typeof import("./qr.js").Qr | null;
}

/** In a pair: a group has as many numbers as members. */
export function Verify({ members }: { readonly members: readonly Member[] }): JSX.Element | null {
  const action = useAction();
  const shown = useSignal<Compared | null>(null);
  const others = members.filter((member) => member.principal_id !== client().userId);
  const [member] = others;
  if (!member || others.length !== 1) return null;
  const principal = { type: member.principal_type, id: member.principal_id };
  const open = async (): Promise<void> => {
    const picture = import("./qr.js").catch(() => null);
    const digits = (await client().safetyNumber(principal)).replace(/\s+/g, "");
    shown.value = { name: member.display_name, digits, Qr: (await picture)?.Qr ?? null };
  };
  const verify = async (): Promise<void> => {
    await client().verify(principal, shown.value!.digits);
    shown.value = null;
  };
  const Picture = shown.value?.Qr;
  return (
    <>
      <Button action={action} kind="quiet" onPress={open}>
        {t("verify")}
      </Button>
      {shown.value && (
        <Dialog title={`${t("verify")}: ${shown.value.name}`} onClose={() => (shown.value = null)}>
          <p>{t("verify_lead")}</p>
          <div class="compared">
            <output class="digits">{groups(shown.value.digits)}</output>
            {Picture && <Picture text={shown.value.digits} label={t("verify_qr")} />}
          </div>
          <div class="row">
            <button type="button" class="plain" onClick={() => (shown.value = null)}>
              {t("cancel")}
            </button>
            <Button action={action} kind="primary" onPress={verify}>
              {t("they_fit")}
            </Button>
          </div>
          <Fault of={action} />
        </Dialog>
      )}
    </>
  );
}

function groups(digits: string): string {
  return digits.replace(/(\d{5})(?=\d)/g, "$1 ");
}
