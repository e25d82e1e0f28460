/** Notifications while the app is closed, and what others learn by them. */
import type { JSX } from "preact";
import { Button, Fault } from "../../parts/action.js";
import { t } from "../../i18n/index.js";
import { client } from "../../model/phase.js";
import { type PushState, type PushWords, pushWords, setPushWords, state, turnOff, turnOn } from "../../model/push.js";
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
      {now === "on" && <Shown />}
      {now === "on" && (
        <Button action={action} onPress={() => change(turnOff)}>
          {t("push_turn_off")}
        </Button>
      )}
      <Fault of={action} />
    </>
  );
}

const WORD_CHOICES = [
  ["none", "push_words_none"],
  ["words", "push_words_words"],
  ["buttons", "push_words_buttons"],
] as const satisfies readonly (readonly [PushWords, string])[];

/** What others who see this screen may read and press. */
function Shown(): JSX.Element {
  const { value, action } = useLoaded(pushWords);
  const change = async (wanted: PushWords): Promise<void> => {
    await setPushWords(client(), wanted);
    value.value = wanted;
  };
  return (
    <fieldset>
      <legend>{t("push_words")}</legend>
      {WORD_CHOICES.map(([words, label]) => (
        <label key={words} class="check">
          <input
            type="radio"
            name="words"
            checked={value.value === words}
            onChange={() => void action.run(() => change(words))}
          />
          {t(label)}
        </label>
      ))}
      <p class="hint">{t("push_words_note")}</p>
      <p class="hint">{t("push_buttons_note")}</p>
      <Fault of={action} />
    </fieldset>
  );
}
