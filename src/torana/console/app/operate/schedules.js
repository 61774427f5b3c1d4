import { html, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useSignedIn } from "../base/context.js";
import { money } from "../base/format.js";
import { t } from "../base/i18n.js";
import { setQuery } from "../base/router.js";
import { Action, ConfirmedAction, Dialog, Field, Form, State } from "../parts/controls.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { Choice, stateText, timeColumn, turnHref, View } from "./view_parts.js";

/** Reminders and tasks at their times. */
export function SchedulesView({ query }) {
  const { client, can } = useSignedIn();
  const [isAdding, setAdding] = useState(false);
  const list = usePages(async (after) => {
    const page = await client.get("v1/schedules", { state: query.state, after, limit: 50 });
    const { groups } = can("admin") ? (await client.get("v1/usage", { by: "schedule", days: 365, limit: 200 })).breakdown : { groups: [] };
    return { ...page, items: page.items.map((one) => ({ ...one, costUsd: groups.find(({ value }) => value === one.id)?.costUsd })) };
  }, [client, query.state]);
  useLive(["turn.accepted", "turn.ended"], list.reload);
  const path = (schedule) => `v1/schedules/${segment(schedule.id)}`;
  const post = (schedule, name) => async () => { await client.post(`${path(schedule)}/${name}`); await list.reload(); };

  async function add({ text, kind, when, words }) {
    await client.post("v1/schedules", { text, kind, [when]: words });
    setAdding(false);
    await list.reload();
  }

  const columns = [
    { key: "text", label: t("schedules.text"), kind: "long", cell: (one) => html`<bdi>${one.text}</bdi>` },
    { key: "kind", label: t("schedules.kind"), cell: (one) => t(`schedule_kind.${one.kind}`) },
    { key: "state", label: t("label.state"), cell: (one) => html`<${State} value=${one.state} />` },
    timeColumn("dueAt", t("schedules.next")), { key: "rule", label: t("schedules.rule"), cell: (one) => one.rule && html`<code>${one.rule}</code>` },
    { key: "timezone", label: t("schedules.zone"), kind: "short" }, { key: "userId", label: t("label.user") },
    timeColumn("lastDueAt", t("schedules.last")),
    { key: "costUsd", label: t("label.cost"), kind: "number", cell: (one) => one.costUsd >= 0 && money(one.costUsd) },
    { key: "turnId", label: t("label.turn"), cell: (one) => one.turnId && html`<a href=${turnHref(one.turnId)}>${t("turn.details")}</a>` },
    { key: "reason", label: t("label.reason"), kind: "long" },
    { key: "act", label: "", cell: (one) => can("message") && html`<span class="row-actions">
      ${one.state === "active" && html`<${Action} compact label=${t("schedules.run")} act=${post(one, "run")} /><${Action} compact label=${t("schedules.pause")} act=${post(one, "pause")} />`}
      ${one.state === "paused" && html`<${Action} compact label=${t("schedules.resume")} act=${post(one, "resume")} />`}
      <${ConfirmedAction} label=${t("action.remove")} question=${t("schedules.remove_question")} act=${async () => { await client.delete(path(one)); await list.reload(); }} /></span>` },
  ];
  const controls = html`<${Choice} label=${t("label.state")} value=${query.state} values=${["active", "paused", "ended"]} textOf=${stateText} onChange=${(state) => setQuery({ state })} />
    ${can("message") && html`<button type="button" class="button primary" onClick=${() => setAdding(true)}>${t("schedules.add")}</button>`}`;
  return html`<${View} title=${t("schedules.title")} controls=${controls}>
    <${ListTable} name="schedules" caption=${t("schedules.title")} list=${list} columns=${columns} empty=${{ title: t("schedules.none"), hint: t("schedules.none_hint") }} />
    ${isAdding && html`<${Dialog} title=${t("schedules.add")} onClose=${() => setAdding(false)}>
      <${Form} submitLabel=${t("schedules.add")} onSubmit=${add} onCancel=${() => setAdding(false)}>
        <${Field} label=${t("schedules.text")}><input name="text" required /><//>
        <${Field} label=${t("schedules.kind")}><select name="kind"><option value="remind">${t("schedule_kind.remind")}</option><option value="task">${t("schedule_kind.task")}</option></select><//>
        <${Field} label=${t("schedules.when")}><select name="when"><option value="at">${t("schedules.once")}</option><option value="rule">${t("schedules.repeated")}</option></select><//>
        <${Field} label=${t("schedules.words")} hint=${t("schedules.words_hint")}><input name="words" required /><//>
      <//><//>`}
  <//>`;
}
