import { html } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useLoad, useSignedIn } from "../base/context.js";
import { money, number } from "../base/format.js";
import { t } from "../base/i18n.js";
import { setQuery } from "../base/router.js";
import { Empty, ProblemNote, Spinner } from "../parts/controls.js";
import { ListTable } from "../parts/page_list.js";
import { BarPlot } from "../parts/plot.js";
import { Choice, Facts, Time, View } from "./view_parts.js";

const DIMENSIONS = ["model", "user", "token", "channel", "schedule"];
const MICRO = 1_000_000;

/** Usage by day and by one dimension, with the state of the limits. The totals are those of the ledger. */
export function UsageView({ query }) {
  const { client, me, can } = useSignedIn();
  const days = query.days ?? "30";
  const by = query.by ?? "model";
  const isGateway = can("admin");
  const { value, problem, reload } = useLoad(
    () => (isGateway ? client.get("v1/usage", { days, by, limit: 100 }) : client.get(`v1/users/${segment(me.userId)}/usage`, { days })),
    [client, days, by, isGateway],
  );
  useLive(["turn.ended"], reload);
  const controls = html`
    <${Choice} label=${t("usage.days")} value=${days} values=${["7", "30", "90", "365"]} textOf=${number} all=${false} onChange=${(next) => setQuery({ ...query, days: next })} />
    ${isGateway && html`<${Choice} label=${t("usage.by")} value=${by} values=${DIMENSIONS} textOf=${(one) => t(`usage.by_${one}`)} all=${false} onChange=${(next) => setQuery({ ...query, by: next })} />`}`;
  if (!value) return html`<${View} title=${t("usage.title")} controls=${controls}>${problem ? html`<${ProblemNote} problem=${problem} retry=${reload} />` : html`<${Spinner} />`}<//>`;

  const bars = [...value.days].sort((one, other) => one.date.localeCompare(other.date));
  const plot = (name, format) => bars.map((day) => ({ name: day.date, short: day.date.slice(5), value: day[name], format }));
  return html`<${View} title=${t("usage.title")} controls=${controls}>
    ${problem && html`<${ProblemNote} problem=${problem} retry=${reload} />`}
    <${Facts} facts=${[[t("usage.today"), amountText(value.today)], [t("usage.month"), amountText(value.month)]]} />
    ${value.limits.length > 0 && html`<h2>${t("usage.limits")}</h2><${Limits} limits=${value.limits} />`}
    ${bars.length === 0 ? html`<${Empty} title=${t("usage.none")} hint=${t("usage.none_hint")} />` : html`
      <div class="plots">
        <${BarPlot} label=${t("label.cost")} bars=${plot("costUsd")} format=${money} />
        <${BarPlot} label=${t("usage.messages")} bars=${plot("messages")} format=${number} />
      </div>
      <${ListTable} name="usage-days" caption=${t("usage.per_day")} list=${fixed(bars.toReversed().filter((day) => day.messages + day.inputTokens + day.outputTokens > 0))} columns=${dayColumns()} empty=${{}} />`}
    ${value.breakdown && html`<h2>${t(`usage.by_${value.breakdown.by}`)}</h2>
      <${ListTable} name=${`usage-by-${by}`} caption=${t(`usage.by_${by}`)} list=${fixed(breakdownRows(value.breakdown))} columns=${groupColumns(by)} empty=${{ title: t("usage.none") }}
        rowClass=${(row) => (row.isTotal ? "total" : "")} />`}
  <//>`;
}

function Limits({ limits }) {
  const columns = [
    { key: "policy", label: t("usage.limit") },
    { key: "used", label: t("usage.used"), kind: "number", cell: (limit) => number(limit.used) },
    { key: "reserved", label: t("usage.reserved"), kind: "number", cell: (limit) => number(limit.reserved) },
    { key: "quota", label: t("usage.quota"), kind: "number", cell: (limit) => number(limit.quota) },
    { key: "share", label: t("usage.share"), value: (limit) => limit.used / limit.quota, cell: (limit) => html`<meter min="0" max=${limit.quota} high=${limit.quota * 0.8} value=${limit.used + limit.reserved} aria-label=${limit.policy}></meter>` },
    { key: "resetsAt", label: t("usage.resets"), cell: (limit) => html`<${Time} at=${limit.resetsAt} />` },
  ];
  return html`<${ListTable} name="limits" caption=${t("usage.limits")} list=${fixed(limits.map((limit) => ({ id: limit.policy, ...limit })))} columns=${columns} empty=${{}} />`;
}

function dayColumns() {
  return [{ key: "date", label: t("usage.day") }, ...amountColumns(),
    { key: "summaryTokens", label: t("usage.summaries"), kind: "number", cell: (row) => number(row.summaryTokens) }];
}

function groupColumns(by) {
  return [{ key: "value", label: t(`usage.by_${by}`), kind: "long" }, ...amountColumns()];
}

function amountColumns() {
  return [
    { key: "messages", label: t("usage.messages"), kind: "number", cell: (row) => number(row.messages) },
    { key: "inputTokens", label: t("usage.input"), kind: "number", cell: (row) => number(row.inputTokens) },
    { key: "outputTokens", label: t("usage.output"), kind: "number", cell: (row) => number(row.outputTokens) },
    { key: "costUsd", label: t("label.cost"), kind: "number", value: dollars, cell: (row) => costText(row) },
  ];
}

function breakdownRows({ groups, other, total }) {
  const rows = groups.map((group) => ({ ...group, id: `group ${group.value}`, value: group.value ?? t("usage.without") }));
  if (other.messages > 0) rows.push({ ...other, id: "other", value: t("usage.other") });
  return rows.length ? [...rows, { ...total, id: "total", value: t("usage.total"), isTotal: true }] : [];
}

function dollars(row) {
  return row.costMicroUsd === undefined ? row.costUsd : row.costMicroUsd / MICRO;
}

/** Tokens without a cost are said to have no known price, instead of looking free. */
function costText(row) {
  const isUnpriced = dollars(row) === 0 && row.inputTokens + row.outputTokens > 0;
  return isUnpriced ? html`<span class="hint" title=${t("usage.unpriced_hint")}>${t("usage.unpriced")}</span>` : money(dollars(row));
}

function amountText(amount) {
  return t("usage.amount", { messages: number(amount.messages), tokens: number(amount.inputTokens + amount.outputTokens), cost: money(amount.costUsd) });
}

/** A list that is complete. */
function fixed(items) {
  return { items, problem: null, hasMore: false, reload() {}, all: async () => items };
}
