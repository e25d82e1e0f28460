/** Work that a button begins: it shows that it runs, and says in words what failed. */
import { signal, type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { BlindpipeError, ConnectionLost, DecryptError } from "@blindpipe/client";
import { t } from "../i18n/first.js";

export interface Action {
  readonly isRunning: Signal<boolean>;
  readonly fault: Signal<string | null>;
  run(work: () => Promise<unknown>): Promise<void>;
}

export function useAction(): Action {
  const isRunning = useSignal(false);
  const fault = useSignal<string | null>(null);
  const run = async (work: () => Promise<unknown>): Promise<void> => {
    if (isRunning.value) return;
    isRunning.value = true;
    fault.value = null;
    try {
      await work();
    } catch (error) {
      fault.value = words(error);
    } finally {
      isRunning.value = false;
    }
  };
  return { isRunning, fault, run };
}

export function words(error: unknown): string {
  if (error instanceof ConnectionLost) return t("failed_network");
  if (error instanceof DecryptError) return t("wrong_protection");
  if (!(error instanceof BlindpipeError)) return t("failed", { reason: (error as Error).message });
  switch (error.code) {
    case "INVALID_CREDENTIALS":
      return t("failed_credentials");
    case "PASSKEY_INVALID":
      return t("failed_passkey");
    case "CODE_INVALID":
      return t("failed_code");
    case "ACCOUNT_LOCKED":
    case "RATE_LIMITED": {
      const { retry_after_ms: ms, retry_after: seconds } = error.params as Record<string, number>;
      return t("failed_limited", { count: Math.ceil(seconds ?? (ms ?? 1000) / 1000) });
    }
    default:
      return t("failed", { reason: error.message });
  }
}

export function Fault({ of }: { readonly of: Action }): JSX.Element | null {
  return of.fault.value === null ? null : (
    <p class="fault" role="alert">
      {of.fault.value}
    </p>
  );
}

export interface ButtonProps {
  readonly action: Action;
  readonly onPress: () => Promise<unknown>;
  readonly kind?: "plain" | "primary" | "danger" | "quiet";
  readonly autofocus?: boolean;
  readonly disabled?: boolean;
  readonly label?: string;
  /** Whether what it opens is open. */
  readonly expanded?: boolean;
  readonly children: ComponentChildren;
}

export function Button({ action, onPress, kind, children, label, ...rest }: ButtonProps): JSX.Element {
  return (
    <button
      type="button"
      class={kind ?? "plain"}
      aria-label={label}
      aria-expanded={rest.expanded}
      disabled={action.isRunning.value || rest.disabled}
      autofocus={rest.autofocus}
      onClick={() => void action.run(onPress)}
    >
      {children}
    </button>
  );
}

export function focus(element: HTMLElement | null): void {
  element?.focus();
}

/** The question of the moment, above everything else. */
interface Question {
  readonly text: string;
  readonly answer: (isAgreed: boolean) => void;
}

const question = signal<Question | null>(null);

/** Asks before what cannot be undone. */
export function ask(text: string): Promise<boolean> {
  return new Promise((resolve) => {
    question.value = { text, answer: resolve };
  });
}

export function QuestionDialog(): JSX.Element | null {
  const now = question.value;
  if (!now) return null;
  const end = (isAgreed: boolean): void => {
    question.value = null;
    now.answer(isAgreed);
  };
  return (
    <Dialog title={now.text} onClose={() => end(false)}>
      <div class="row">
        <button type="button" class="plain" autofocus onClick={() => end(false)}>
          {t("cancel")}
        </button>
        <button type="button" class="danger" onClick={() => end(true)}>
          {t("go_on")}
        </button>
      </div>
    </Dialog>
  );
}

export interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

/** A modal of the browser's own: it keeps the focus, and Escape closes it. */
export function Dialog({ title, onClose, children }: DialogProps): JSX.Element {
  const show = (dialog: HTMLDialogElement | null): void => {
    if (dialog && !dialog.open) dialog.showModal();
  };
  return (
    <dialog ref={show} aria-label={title} onCancel={onClose}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

export interface FieldProps {
  readonly label: string;
  readonly value: Signal<string>;
  readonly type?: "text" | "email" | "password";
  readonly autocomplete?: string;
  readonly hint?: string;
  readonly required?: boolean;
  readonly readonly?: boolean;
  readonly minLength?: number;
}

export function Field({ label, value, hint, ...rest }: FieldProps): JSX.Element {
  // The types of the elements have a shape for each kind of input.
  const type = (rest.type ?? "text") as "text";
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type={type}
        autocomplete={rest.autocomplete ?? "off"}
        required={rest.required ?? true}
        readOnly={rest.readonly ?? false}
        minLength={rest.minLength}
        value={value.value}
        onInput={(event) => (value.value = event.currentTarget.value)}
      />
      {hint && <small>{hint}</small>}
    </label>
  );
}
