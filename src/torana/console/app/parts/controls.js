import { html, useLayoutEffect, useRef, useState } from "../base/view.js";
import { problemText, t } from "../base/i18n.js";
import { copyText } from "./copy.js";

/** A button that cannot be pressed again while its action runs, and that shows the action's failure. */
export function Action({ label, act, kind = "plain", disabled = false, title, compact = false }) {
  const [state, setState] = useState({ isRunning: false, problem: null });
  async function run() {
    setState({ isRunning: true, problem: null });
    try {
      await act();
      setState({ isRunning: false, problem: null });
    } catch (problem) {
      setState({ isRunning: false, problem });
    }
  }
  return html`<span class="action">
    <button type="button" class="button ${kind} ${compact ? "compact" : ""}" title=${title}
      disabled=${disabled || state.isRunning} aria-busy=${state.isRunning} onClick=${run}>${label}</button>
    ${state.problem && html`<${ProblemNote} problem=${state.problem} />`}
  </span>`;
}

/** A field of a form with its label, a hint, and the gateway's word about its value. */
export function Field({ label, hint, fault, children }) {
  return html`<label class="field">
    <span class="field-label">${label}</span>
    ${children}
    ${hint && html`<span class="hint">${hint}</span>`}
    ${fault && html`<span class="fault" role="alert">${fault}</span>`}
  </label>`;
}

/** A form that sends its values once, keeps them after a failure, and shows which field is invalid. */
export function Form({ submitLabel, onSubmit, onCancel, children }) {
  const [state, setState] = useState({ isRunning: false, problem: null });
  async function submit(event) {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.currentTarget));
    setState({ isRunning: true, problem: null });
    try {
      await onSubmit(values);
      setState({ isRunning: false, problem: null });
    } catch (problem) {
      setState({ isRunning: false, problem });
    }
  }
  return html`<form class="form" onSubmit=${submit}>
    ${children}
    ${state.problem && html`<${ProblemNote} problem=${state.problem} />`}
    <div class="form-buttons">
      ${onCancel && html`<button type="button" class="button plain" onClick=${onCancel}>${t("action.cancel")}</button>`}
      <button class="button primary" disabled=${state.isRunning} aria-busy=${state.isRunning}>${submitLabel}</button>
    </div>
  </form>`;
}

/** The text of a failed request. */
export function ProblemNote({ problem, retry }) {
  return html`<div class="note problem" role="alert">
    <span>${problemText(problem)}</span>
    ${problem.errors?.map(({ pointer, detail }) => html`<span class="hint">${pointer.slice(1)}: ${detail}</span>`)}
    ${retry && html`<button type="button" class="button plain compact" onClick=${retry}>${t("action.again")}</button>`}
  </div>`;
}

/** What an empty list shows: that it is empty, and how that changes. */
export function Empty({ title, hint, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${hint && html`<p>${hint}</p>`}${children}</div>`;
}

const TONES = {
  completed: "good", active: "good", ok: "good", sent: "good", approved: "good", enabled: "good",
  failed: "bad", refused: "bad", revoked: "bad", denied: "bad", dropped: "bad", expired: "bad",
  waiting: "attention", open: "attention", pending: "attention", quarantine: "attention", ambiguous: "attention",
  backing_off: "attention", degraded: "attention", draining: "attention", stale: "attention",
  running: "busy", queued: "busy", starting: "busy", sending: "busy",
};

/** A state with a colour and a word; the word carries the meaning. */
export function State({ value }) {
  const key = `state.${value}`;
  const text = t(key);
  return html`<span class="state ${TONES[value] ?? "calm"}">${text === key ? value : text}</span>`;
}

export function Spinner() {
  return html`<span class="spinner" role="status" aria-label=${t("label.loading")}></span>`;
}

/** A dialog that takes the focus, gives it back, and closes with Escape. */
export function Dialog({ title, onClose, children, wide = false }) {
  const element = useRef(null);
  // An effect after the paint would lose an Escape that is pressed before it.
  useLayoutEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => (before?.isConnected ? before : document.getElementById("main"))?.focus();
  }, []);
  return html`<dialog class=${wide ? "dialog wide" : "dialog"} ref=${element} aria-label=${title} onClose=${onClose}
    onClick=${(event) => event.target === element.current && element.current.close()}>
    <header class="dialog-header">
      <h2>${title}</h2>
      <button type="button" class="button icon" aria-label=${t("action.close")} onClick=${() => element.current.close()}>✕</button>
    </header>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

/** A button whose action is done only after a second, explicit yes. */
export function ConfirmedAction({ label, question, act, kind = "danger", compact = true }) {
  const [isAsking, setAsking] = useState(false);
  return html`<button type="button" class="button ${kind} ${compact ? "compact" : ""}" onClick=${() => setAsking(true)}>${label}</button>
    ${isAsking && html`<${Dialog} title=${label} onClose=${() => setAsking(false)}>
      <p>${question}</p>
      <div class="form-buttons">
        <button type="button" class="button plain" onClick=${() => setAsking(false)}>${t("action.cancel")}</button>
        <${Action} label=${label} kind=${kind} act=${async () => { await act(); setAsking(false); }} />
      </div>
    <//>`}`;
}

/** A text that a person copies, such as a secret that is shown once. */
export function Copyable({ text, label }) {
  const [isCopied, setCopied] = useState(false);
  async function copy() {
    await copyText(text);
    setCopied(true);
  }
  return html`<div class="copyable">
    <code aria-label=${label}>${text}</code>
    <button type="button" class="button plain compact" onClick=${copy}>${isCopied ? t("action.copied") : t("action.copy")}</button>
  </div>`;
}
