import { html, useState } from "../base/view.js";
import { t } from "../base/i18n.js";
import { fullTime, shownJson, time } from "../base/format.js";
import { Action, ProblemNote, State } from "../parts/controls.js";

/** A tool call that waits for a yes or a no, with its exact arguments; afterwards, the decision. */
export function ApprovalCard({ approval, decide, mayDecide }) {
  const [edited, setEdited] = useState(null);
  const [problem, setProblem] = useState(null);
  const isOpen = approval.state === "open";

  async function approve() {
    if (edited === null) return decide(approval, { decision: "approve" });
    let argumentsText;
    try {
      argumentsText = JSON.parse(edited);
    } catch (error) {
      setProblem({ code: "", message: t("approval.invalid_json", { detail: error.message }) });
      return undefined;
    }
    setProblem(null);
    return decide(approval, { decision: "approve", arguments: argumentsText });
  }

  return html`<section class="approval ${isOpen ? "is-open" : ""}" aria-label=${t("approval.title", { tool: approval.tool })}>
    <header>
      <strong>${t("approval.title", { tool: approval.tool })}</strong>
      <${State} value=${approval.state} />
    </header>
    ${edited === null
      ? html`<pre class="arguments" tabindex="0">${shownJson(approval.edited ?? approval.arguments)}</pre>`
      : html`<textarea class="arguments" aria-label=${t("approval.arguments")} rows="8" value=${edited} onInput=${(event) => setEdited(event.target.value)}></textarea>`}
    ${problem && html`<${ProblemNote} problem=${problem} />`}
    ${isOpen && mayDecide && html`<div class="approval-buttons">
      <${Action} label=${t("approval.allow")} kind="primary" act=${approve} />
      <${Action} label=${t("approval.deny")} act=${() => decide(approval, { decision: "deny" })} />
      <button type="button" class="button plain" onClick=${() => setEdited(edited === null ? shownJson(approval.arguments) : null)}>
        ${edited === null ? t("approval.edit") : t("approval.keep")}</button>
      <span class="hint" title=${fullTime(approval.expiresAt)}>${t("approval.expires", { time: time(approval.expiresAt) })}</span>
    </div>`}
    ${!isOpen && approval.decidedBy && approval.decidedBy !== "time" && html`<p class="hint">${t("approval.decided", { time: time(approval.decidedAt), by: approval.decidedBy })}</p>`}
    ${approval.reason && html`<p class="hint">${approval.reason}</p>`}
  </section>`;
}
