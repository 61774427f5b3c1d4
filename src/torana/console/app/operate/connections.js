import { html, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useLoad, useSignedIn } from "../base/context.js";
import { number } from "../base/format.js";
import { t } from "../base/i18n.js";
import { setQuery } from "../base/router.js";
import { Action, ConfirmedAction, Empty, ProblemNote, Spinner, State } from "../parts/controls.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { Choice, stateText, Time, timeColumn, turnHref, View } from "./view_parts.js";

const DELIVERY_STATES = ["pending", "sending", "sent", "ambiguous", "refused", "stale", "dropped"];

/** The accounts on chat platforms, and the senders who ask to talk with the agent. */
export function ConnectorsView() {
  const { client } = useSignedIn();
  const [changed, setChanged] = useState(null);
  const { value, problem, reload } = useLoad(() => client.get("v1/status"), [client]);
  const senders = usePages(async () => ({ ...(await client.get("v1/pairing")), next: null }), [client]);
  useLive(["connector.changed"], reload);

  async function decide(sender, decision) {
    await client.post(`v1/pairing/${decision}`, { who: sender.sender });
    await senders.reload();
  }

  const connectors = { items: value?.connectors.map((one) => ({ id: one.account, ...one })) ?? null, problem, hasMore: false, reload, all: async () => value.connectors };
  const columns = [
    { key: "account", label: t("connectors.account") },
    { key: "link", label: t("chat.title"), cell: (one) => one.link && html`<a href=${one.link} target="_blank" rel="noopener noreferrer">${t("action.open")}</a>` },
    { key: "kind", label: t("connectors.kind") },
    { key: "state", label: t("label.state"), cell: (one) => html`<${State} value=${one.state} />` },
    { key: "reason", label: t("label.reason"), kind: "long" },
    timeColumn("since", t("connectors.since")), timeColumn("lastHeard", t("connectors.heard")), timeColumn("nextTry", t("connectors.next_try")),
    { key: "deliveries", label: t("connectors.held"), kind: "number", cell: (one) => number(Object.values(one.deliveries).reduce((sum, count) => sum + count, 0)) },
  ];
  const senderColumns = [
    { key: "name", label: t("pairing.name"), cell: (one) => html`<bdi>${one.name}</bdi>` }, { key: "sender", label: t("pairing.sender") },
    { key: "state", label: t("label.state"), cell: (one) => html`<${State} value=${one.state} />` },
    { key: "user", label: t("label.user") }, timeColumn("askedAt", t("pairing.asked")), timeColumn("decidedAt", t("pairing.decided")),
    { key: "act", label: "", cell: (one) => html`<span class="row-actions">
      ${one.state !== "approved" && html`<${Action} compact label=${t("pairing.approve")} kind="primary" act=${() => decide(one, "approve")} />`}
      ${one.state !== "denied" && html`<${ConfirmedAction} label=${t("pairing.deny")} question=${t("pairing.deny_question", { name: one.name })} act=${() => decide(one, "deny")} />`}</span>` },
  ];
  const controls = html`<${Action} label=${t("connectors.reload")} act=${async () => { setChanged((await client.post("v1/connectors/reload")).changed); await reload(); }} />`;
  return html`<${View} title=${t("connectors.title")} controls=${controls}>
    ${changed && html`<p class="note" role="status">${changed.length ? t("connectors.changed", { accounts: changed.join(", ") }) : t("connectors.unchanged")}</p>`}
    <${ListTable} name="connectors" caption=${t("connectors.title")} list=${connectors} columns=${columns} empty=${{ title: t("connectors.none"), hint: t("connectors.none_hint") }} />
    <h2>${t("pairing.title")}</h2>
    <${ListTable} name="senders" caption=${t("pairing.title")} list=${senders} columns=${senderColumns} empty=${{ title: t("pairing.none"), hint: t("pairing.none_hint") }} />
  <//>`;
}

/** The replies on their way to chat platforms; held ones wait for a decision. */
export function DeliveriesView({ query }) {
  const { client } = useSignedIn();
  const list = usePages((after) => client.get("v1/deliveries", { state: query.state, after, limit: 50 }), [client, query.state]);
  useLive(["delivery.ended"], list.reload);
  const act = (delivery, name) => async () => { await client.post(`v1/deliveries/${segment(delivery.id)}/${name}`); await list.reload(); };
  const isHeld = (delivery) => ["refused", "stale", "ambiguous"].includes(delivery.state);
  const columns = [
    { key: "text", label: t("deliveries.text"), kind: "long", cell: (one) => html`<bdi>${one.text || t("deliveries.sent_text")}</bdi>` },
    { key: "state", label: t("label.state"), cell: (one) => html`<${State} value=${one.state} />` },
    { key: "account", label: t("connectors.account") }, { key: "tries", label: t("deliveries.tries"), kind: "number" },
    { key: "reason", label: t("label.reason"), kind: "long" }, timeColumn("createdAt", t("label.created")), timeColumn("endedAt", t("label.ended")),
    { key: "turnId", label: t("label.turn"), cell: (one) => one.turnId && html`<a href=${turnHref(one.turnId)}>${t("turn.details")}</a>` },
    { key: "act", label: "", cell: (one) => html`<span class="row-actions">
      ${isHeld(one) && html`<${Action} compact label=${t("action.retry")} act=${act(one, "retry")} />`}
      ${(isHeld(one) || one.state === "pending") && html`<${ConfirmedAction} label=${t("deliveries.drop")} question=${t("deliveries.drop_question")} act=${act(one, "drop")} />`}</span>` },
  ];
  const controls = html`<${Choice} label=${t("label.state")} value=${query.state} values=${DELIVERY_STATES} textOf=${stateText} onChange=${(state) => setQuery({ state })} />`;
  return html`<${View} title=${t("deliveries.title")} controls=${controls}>
    <${ListTable} name="deliveries" caption=${t("deliveries.title")} list=${list} columns=${columns} empty=${{ title: t("deliveries.none"), hint: t("deliveries.none_hint") }} />
  <//>`;
}

/** The servers of tools, and the changed tools that wait for an approval. */
export function McpView() {
  const { client } = useSignedIn();
  const { value, problem, reload } = useLoad(() => client.get("v1/mcp"), [client]);
  if (!value) return html`<${View} title=${t("mcp.title")}>${problem ? html`<${ProblemNote} problem=${problem} retry=${reload} />` : html`<${Spinner} />`}<//>`;
  const approve = (server) => async () => { await client.post(`v1/mcp/${segment(server.server)}/approve`, { held: server.held }); await reload(); };
  return html`<${View} title=${t("mcp.title")} controls=${html`<${Action} label=${t("action.reload")} act=${reload} />`}>
    ${problem && html`<${ProblemNote} problem=${problem} retry=${reload} />`}
    ${value.items.length === 0 && html`<${Empty} title=${t("mcp.none")} hint=${t("mcp.none_hint")} />`}
    ${value.items.map((server) => html`<section class="card" key=${server.server}>
      <header><h2>${server.server}</h2><${State} value=${server.state} /> <span class="hint">${server.transport} · ${t("mcp.calls", { calls: number(server.calls), failed: number(server.failedCalls) })} · <${Time} at=${server.since} /></span></header>
      ${server.reason && html`<p class="fault">${server.reason}</p>`}
      ${server.waiting.length > 0 && html`<div class="note"><p>${t("mcp.waiting")}</p>
        ${server.waiting.map((tool) => html`<${McpTool} key=${tool.name} tool=${tool} />`)}
        <${Action} label=${t("mcp.approve")} kind="primary" act=${approve(server)} /></div>`}
      ${server.leftOut.length > 0 && html`<details><summary>${t("mcp.left_out")}</summary><ul>${server.leftOut.map((one) => html`<li><code>${one.tool}</code> ${one.reason}</li>`)}</ul></details>`}
      <details><summary>${t("mcp.tools", { count: number(server.tools) })}</summary>${server.offered.map((tool) => html`<${McpTool} key=${tool.name} tool=${tool} />`)}</details>
    </section>`)}
  <//>`;
}

function McpTool({ tool }) {
  return html`<details class="mcp-tool"><summary><code>${tool.name}</code> <${State} value=${tool.permission} /></summary>
    <p>${tool.description}</p>${tool.notes.map((note) => html`<p class="hint">${note}</p>`)}
    <pre tabindex="0">${JSON.stringify(tool.inputSchema, null, 2)}</pre></details>`;
}
