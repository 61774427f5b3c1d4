import { html, useLayoutEffect, useRef, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { t } from "../base/i18n.js";
import { fullTime, time } from "../base/format.js";
import { Action, ProblemNote, State } from "../parts/controls.js";

/** A tool call that waits for a yes or a no, with its exact arguments; afterwards, the decision. */
export function ApprovalCard({ approval, decide, mayDecide }) {
  const [edited, setEdited] = useState(null);
  const [problem, setProblem] = useState(null);
  const isOpen = approval.state === "open";

  async function approve() {
    try {
      if (edited !== null) JSON.parse(edited);
    } catch (error) {
      return setProblem({ message: t("approval.invalid_json", { detail: error.message }) });
    }
    setProblem(null);
    return decide(approval, "approve", edited);
  }

  return html`<section class="approval ${isOpen ? "is-open" : ""}" aria-label=${t("approval.title", { tool: approval.tool })}>
    <header>
      <strong>${t("approval.title", { tool: approval.tool })}</strong>
      <${State} value=${approval.state} />
    </header>
    ${edited === null || !isOpen
      ? html`<pre class="arguments" tabindex="0">${approval.argumentsText}</pre>`
      : html`<textarea class="arguments" aria-label=${t("approval.arguments")} rows="8" value=${edited} onInput=${(event) => setEdited(event.target.value)}></textarea>`}
    ${problem && html`<${ProblemNote} problem=${problem} />`}
    ${isOpen && mayDecide && html`<div class="approval-buttons">
      <${Action} label=${t("approval.allow")} kind="primary" act=${approve} />
      <${Action} label=${t("approval.deny")} act=${() => decide(approval, "deny", null)} />
      <button type="button" class="button plain" onClick=${() => setEdited(edited === null ? approval.argumentsText : null)}>
        ${edited === null ? t("approval.edit") : t("approval.keep")}</button>
      <span class="hint" title=${fullTime(approval.expiresAt)}>${t("approval.expires", { time: time(approval.expiresAt) })}</span>
    </div>`}
    ${!isOpen && approval.decidedBy && approval.decidedBy !== "time" && html`<p class="hint">${t("approval.decided", { time: time(approval.decidedAt), by: approval.decidedBy })}</p>`}
    ${approval.reason && html`<p class="hint">${approval.reason}</p>`}
  </section>`;
}

/**
 * Return the ref of an element with cards. It takes clicks when for a second the cards have not changed, nothing outside
 * of it was clicked, and the page had the focus: a button may have appeared where a person is clicking.
 */
export function useStillCards(approvals) {
  const element = useRef(null);
  const cards = approvals.map(({ id }) => id).join();
  useLayoutEffect(() => {
    if (!cards) return;
    const wait = () => element.current.animate({ pointerEvents: ["none", "none"] }, 1000);
    const waitOutside = ({ target }) => element.current.contains(target) || wait();
    wait();
    addEventListener("focus", wait);
    addEventListener("pageshow", wait);
    addEventListener("pointerdown", waitOutside);
    return () => {
      removeEventListener("focus", wait);
      removeEventListener("pageshow", wait);
      removeEventListener("pointerdown", waitOutside);
    };
  }, [cards]);
  return element;
}

/** Send a decision. The arguments stay text, because JavaScript rounds large numbers. */
export function postDecision(client, { id, digest }, decision, argumentsText) {
  const body = JSON.stringify({ digest, decision }).slice(0, -1) + (argumentsText ? `,"arguments":${argumentsText}}` : "}");
  return client.upload(`v1/approvals/${segment(id)}`, new Blob([body], { type: "application/json" }));
}
