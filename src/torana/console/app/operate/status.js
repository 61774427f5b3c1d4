import { html, useEffect } from "../base/view.js";
import { useLive, useLoad, useSignedIn } from "../base/context.js";
import { duration, number } from "../base/format.js";
import { t } from "../base/i18n.js";
import { href } from "../base/router.js";
import { ProblemNote, Spinner, State } from "../parts/controls.js";
import { Facts, View } from "./view_parts.js";

/** How the gateway is: health, queues, models, connectors and servers of tools. */
export function StatusView() {
  const { client } = useSignedIn();
  const { value, problem, reload } = useLoad(async () => {
    const [status, health] = await Promise.all([client.get("v1/status"), client.get("health")]);
    return { ...status, memory: health.memory, skills: health.skills };
  }, [client]);
  useLive(["turn.started", "turn.ended", "connector.changed"], reload);
  useEffect(() => {
    const timer = setInterval(reload, 10_000);
    return () => clearInterval(timer);
  }, [reload]);

  if (!value) return html`<${View} title=${t("status.title")}>${problem ? html`<${ProblemNote} problem=${problem} retry=${reload} />` : html`<${Spinner} />`}<//>`;
  return html`<${View} title=${t("status.title")} controls=${html`<${State} value=${value.status} />`}>
    ${problem && html`<${ProblemNote} problem=${problem} retry=${reload} />`}
    <div class="tiles">
      <${Tile} label=${t("status.running")} value=${number(value.turns.running)} link=${href("turns", { state: "running" })} />
      <${Tile} label=${t("status.queued")} value=${number(value.turns.queued)} link=${href("turns", { state: "queued" })} />
      <${Tile} label=${t("status.waiting")} value=${number(value.turns.waiting)} link=${href("approvals")} />
      <${Tile} label=${t("status.uptime")} value=${duration(value.uptime)} />
      <${Tile} label=${t("status.memory")} value=${value.memory} />
      <${Tile} label=${t("status.skills")} value=${number(value.skills.core + value.skills.user)} link=${href("skills")} />
    </div>
    <h2>${t("status.gateway")}</h2>
    <${Facts} facts=${[[t("status.version"), value.version], [t("status.model"), value.model.join(", ")]]} />
    <h2>${t("connectors.title")}</h2>
    ${value.connectors.length === 0 ? html`<p class="hint">${t("connectors.none_hint")}</p>` : html`<ul class="plain-list">
      ${value.connectors.map((one) => html`<li key=${one.account}><a href=${href("connectors")}>${one.account}</a> <${State} value=${one.state} /> <span class="hint">${one.reason}</span></li>`)}</ul>`}
    <h2>${t("mcp.title")}</h2>
    ${value.mcp.length === 0 ? html`<p class="hint">${t("mcp.none_hint")}</p>` : html`<ul class="plain-list">
      ${value.mcp.map((one) => html`<li key=${one.server}><a href=${href("mcp")}>${one.server}</a> <${State} value=${one.state} /> <span class="hint">${one.reason}</span></li>`)}</ul>`}
  <//>`;
}

function Tile({ label, value, link }) {
  const inside = html`<span class="tile-value">${value}</span><span class="tile-label">${label}</span>`;
  return link ? html`<a class="tile" href=${link}>${inside}</a>` : html`<div class="tile">${inside}</div>`;
}
