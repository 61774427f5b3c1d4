import { html, useEffect, useState } from "../base/view.js";
import { useSignedIn } from "../base/context.js";
import { t } from "../base/i18n.js";
import { setQuery } from "../base/router.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { Choice, TextFilter, timeColumn, View } from "./view_parts.js";

/** Who changed what, and when. */
export function AuditView() {
  const { client } = useSignedIn();
  const list = usePages((after) => client.get("v1/audit", { after, limit: 50 }), [client]);
  const columns = [
    { key: "action", label: t("audit.action"), cell: (entry) => html`<code>${entry.action}</code>` },
    { key: "target", label: t("audit.target"), kind: "short" },
    { key: "principal", label: t("audit.principal"), kind: "short" },
    { key: "source", label: t("audit.source"), kind: "short" },
    { key: "detail", label: t("audit.detail"), kind: "long", cell: (entry) => JSON.stringify(entry.detail) },
    timeColumn("at", t("label.time")),
  ];
  return html`<${View} title=${t("audit.title")}>
    <${ListTable} name="audit" caption=${t("audit.title")} list=${list} columns=${columns} empty=${{ title: t("audit.none"), hint: t("audit.none_hint") }} />
  <//>`;
}

/** The end of the log, read again every three seconds. */
export function LogsView({ query }) {
  const { client } = useSignedIn();
  const [isFollowing, setFollowing] = useState(true);
  const { level, event } = query;
  const list = usePages(async () => ({ ...(await client.get("v1/logs", { level: level ?? "info", event, limit: 200 })), next: null }), [client, level, event]);
  useEffect(() => {
    if (!isFollowing) return undefined;
    const timer = setInterval(() => document.hidden || list.reload(), 3_000);
    return () => clearInterval(timer);
  });
  const columns = [
    { key: "at", label: t("label.time"), cell: (line) => html`<time datetime=${line.at}>${line.at.slice(11, 23)}</time>` },
    { key: "level", label: t("logs.level"), cell: (line) => html`<span class=${`level ${line.level}`}>${line.level}</span>` },
    { key: "event", label: t("logs.event"), kind: "medium" },
    { key: "fields", label: t("logs.fields"), kind: "long", cell: (line) => html`<code>${Object.entries(line.fields).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ")}</code>` },
    { key: "logger", label: t("logs.logger"), kind: "short" },
  ];
  const controls = html`
    <${Choice} label=${t("logs.level")} value=${level ?? "info"} values=${["debug", "info", "warning", "error"]} all=${false} onChange=${(next) => setQuery({ ...query, level: next })} />
    <${TextFilter} label=${t("logs.event")} value=${event} onChange=${(next) => setQuery({ ...query, event: next })} />
    <label class="check"><input type="checkbox" checked=${isFollowing} onChange=${(change) => setFollowing(change.target.checked)} /> ${t("logs.follow")}</label>`;
  return html`<${View} title=${t("logs.title")} controls=${controls}>
    <${ListTable} name="logs" caption=${t("logs.title")} list=${list} columns=${columns} empty=${{ title: t("logs.none"), hint: t("logs.none_hint") }} />
  <//>`;
}

/** The settings in effect, with where each value comes from. */
export function SettingsView({ query }) {
  const { client } = useSignedIn();
  const words = (query.q ?? "").toLowerCase();
  const isChanged = query.which === "changed";
  const list = usePages(async () => {
    const { items } = await client.get("v1/settings");
    return { items: items.map((item) => ({ id: item.name, ...item })).filter((item) => item.name.includes(words) && (!isChanged || item.origin !== "default")), next: null };
  }, [client, words, isChanged]);
  const shown = (value) => html`<code>${typeof value === "string" ? value : JSON.stringify(value)}</code>`;
  const columns = [
    { key: "name", label: t("settings.name"), cell: (item) => html`<code>${item.name}</code>` },
    { key: "value", label: t("settings.value"), kind: "long", cell: (item) => shown(item.value) },
    { key: "default", label: t("settings.default"), kind: "long", cell: (item) => shown(item.default) },
    { key: "origin", label: t("settings.origin"), kind: "short" },
  ];
  const controls = html`<${TextFilter} label=${t("settings.name")} value=${query.q} onChange=${(q) => setQuery({ ...query, q })} />
    <${Choice} label=${t("settings.which")} value=${query.which} values=${["changed"]} textOf=${() => t("settings.changed")} onChange=${(which) => setQuery({ ...query, which })} />`;
  return html`<${View} title=${t("settings.title")} text=${t("settings.text")} controls=${controls}>
    <${ListTable} name="settings" caption=${t("settings.title")} list=${list} columns=${columns} rowClass=${(item) => (item.origin === "default" ? "" : "is-changed")} empty=${{ title: t("settings.none") }} />
  <//>`;
}
