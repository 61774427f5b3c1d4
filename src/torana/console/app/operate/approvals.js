import { html } from "../base/view.js";
import { useLive, useSignedIn } from "../base/context.js";
import { t } from "../base/i18n.js";
import { ApprovalCard, postDecision, useStillCards } from "../chat/approval_card.js";
import { Empty, ProblemNote, Spinner } from "../parts/controls.js";
import { usePages } from "../parts/page_list.js";
import { turnHref, View } from "./view_parts.js";

/** All calls of tools that wait for a decision. */
export function ApprovalsView() {
  const { client, can } = useSignedIn();
  const list = usePages((after) => client.get("v1/approvals", { after, limit: 50 }), [client]);
  const cards = useStillCards(list.items ?? []);
  useLive(["approval.required", "approval.decided", "turn.ended"], list.reload);

  async function decide(...decision) {
    await postDecision(client, ...decision);
    await list.reload();
  }

  return html`<${View} title=${t("approvals.title")} text=${t("approvals.text")}>
    ${list.problem && html`<${ProblemNote} problem=${list.problem} retry=${list.reload} />`}
    ${list.items === null ? !list.problem && html`<${Spinner} />` : list.items.length === 0 && html`<${Empty} title=${t("approvals.none")} hint=${t("approvals.none_hint")} />`}
    <div class="cards" ref=${cards}>${list.items?.map((approval) => html`<div key=${approval.id}>
      <${ApprovalCard} approval=${approval} decide=${decide} mayDecide=${can("message")} />
      <p class="hint"><a href=${turnHref(approval.turnId)}>${t("turn.details")}</a></p>
    </div>`)}</div>
    ${list.hasMore && html`<button type="button" class="button plain" onClick=${list.more}>${t("action.more")}</button>`}
  <//>`;
}
