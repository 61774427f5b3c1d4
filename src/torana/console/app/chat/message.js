import { html, useMemo, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useSignedIn } from "../base/context.js";
import { language, plural, t } from "../base/i18n.js";
import { useStore } from "../base/store.js";
import { bytes, fullTime, money, time } from "../base/format.js";
import { Action, ProblemNote, State } from "../parts/controls.js";
import { copyText } from "../parts/copy.js";
import { Markdown } from "../parts/markdown.js";
import { isOpen } from "./conversation.js";
import { ApprovalCard, useStillCards } from "./approval_card.js";

/** A turn, which is drawn again only if it changed: an answer that grows changes many times a second. */
export function Turn(parts) {
  useStore(language);
  return useMemo(() => html`<${TurnView} ...${parts} />`, [...Object.values(parts), language.value]);
}

/** A message and its answer, with tool calls, approvals and what can be done about them. */
function TurnView({ turn, conversation, onFork, onEdit, isMarked }) {
  const { can } = useSignedIn();
  return html`<article class="turn ${isMarked ? "is-marked" : ""}" data-turn=${turn.id} aria-busy=${isOpen(turn)}>
    <div class="message user">
      <p class="message-text" dir="auto">${turn.text}</p>
      ${turn.files.length > 0 && html`<ul class="file-chips">${turn.files.map((file) => html`<li>${file.name} <span class="hint">${bytes(file.size)}</span></li>`)}</ul>`}
    </div>
    <div class="message agent" ref=${useStillCards(turn.approvals)}>
      <${ToolCalls} turn=${turn} />
      ${turn.reply && !turn.mergedInto && html`<${Markdown} text=${turn.reply} isComplete=${!isOpen(turn)} />`}
      ${turn.approvals.map((approval) => html`<${ApprovalCard} key=${approval.id} approval=${approval} mayDecide=${can("message")}
        decide=${(...decision) => conversation.decide(...decision)} />`)}
      <${Standing} turn=${turn} conversation=${conversation} />
    </div>
    ${!isOpen(turn) && html`<footer class="turn-footer">
      <time datetime=${turn.createdAt} title=${fullTime(turn.createdAt)}>${time(turn.createdAt)}</time>
      ${turn.usage && html`<span title=${turn.model ?? ""}>${plural("usage.tokens", turn.usage.inputTokens + turn.usage.outputTokens)}${turn.usage.costUsd ? ` · ${money(turn.usage.costUsd)}` : ""}</span>`}
      <a href=${`#/turns/${segment(turn.id)}`}>${t("turn.details")}</a>
      ${turn.reply && html`<button type="button" class="link" onClick=${() => copyText(turn.reply)}>${t("action.copy")}</button>`}
      ${can("message") && html`<button type="button" class="link" onClick=${() => onEdit(turn)}>${t("action.edit")}</button>
        <button type="button" class="link" onClick=${() => onFork(turn)}>${t("action.fork")}</button>`}
    </footer>`}
  </article>`;
}

/** How far an answer is, or why there is none. */
function Standing({ turn, conversation }) {
  if (turn.status === "sending") return html`<p class="standing">${t("turn.sending")}</p>`;
  if (turn.status === "queued") return html`<p class="standing">${t("turn.queued")} <${Action} compact label=${t("action.cancel")} act=${() => conversation.cancel(turn.id)} /></p>`;
  if (turn.status === "running" && !turn.reply) return html`<p class="standing"><span class="dots" aria-hidden="true"></span>${t("turn.running")}</p>`;
  if (turn.status === "cancelled") return html`<p class="standing">${t("turn.cancelled")}</p>`;
  if (turn.mergedInto) return html`<p class="standing">${t("turn.merged")}</p>`;
  if (turn.status === "failed") return html`<div class="standing">
    <${ProblemNote} problem=${{ code: turn.error?.code, message: turn.error?.detail ?? t("turn.failed") }} />
    <${Action} label=${t("action.retry")} act=${() => conversation.retry(turn.id)} />
  </div>`;
  return null;
}

/** The tool calls of a turn, folded; their arguments and results are loaded when they are opened. */
function ToolCalls({ turn }) {
  const { client } = useSignedIn();
  const [calls, setCalls] = useState(null);
  const [problem, setProblem] = useState(null);
  const live = turn.tools;
  const mayHaveCalls = live.length > 0 || (!isOpen(turn) && turn.model && !turn.mergedInto);
  if (!mayHaveCalls) return null;

  async function load(event) {
    if (!event.currentTarget.open || calls) return;
    try {
      setCalls((await client.get(`v1/turns/${segment(turn.id)}/calls`, { limit: 100 })).items);
    } catch (failure) {
      setProblem(failure);
    }
  }

  const label = live.length ? plural("tool.calls", live.length) : t("tool.steps");
  return html`<details class="tools ${live.length ? "" : "is-quiet"}" onToggle=${load}>
    <summary>${label}${live.some((tool) => tool.ok === null) && isOpen(turn) ? html` <span class="hint">${live.at(-1).tool}…</span>` : ""}</summary>
    ${problem && html`<${ProblemNote} problem=${problem} />`}
    ${calls?.length === 0 && html`<p class="hint">${t("tool.none")}</p>`}
    ${(calls ?? live).map((call) => html`<${ToolCall} key=${call.id ?? call.callId} call=${call} />`)}
  </details>`;
}

export function ToolCall({ call }) {
  const state = call.state ?? (call.ok === null ? "running" : call.ok ? "completed" : "failed");
  return html`<div class="tool-call">
    <p><code>${call.tool}</code> <${State} value=${state} /></p>
    ${call.argumentsText && call.argumentsText !== "{}" && html`<pre tabindex="0">${call.argumentsText}</pre>`}
    ${call.result && html`<pre tabindex="0">${call.result}</pre>`}
    ${call.hidden && html`<p class="hint">${t("tool.hidden")}</p>`}
  </div>`;
}
