import { html, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useSignedIn } from "../base/context.js";
import { number } from "../base/format.js";
import { t } from "../base/i18n.js";
import { href, setQuery } from "../base/router.js";
import { SessionDialog, sessionTitle } from "../chat/session_list.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { Choice, TextFilter, timeColumn, View } from "./view_parts.js";

export function SessionsView({ query }) {
  const { client, can } = useSignedIn();
  const [opened, setOpened] = useState(null);
  const { user, channel, archived } = query;
  const list = usePages((after) => client.get("v1/sessions", { userId: user, channelId: channel, archived, after, limit: 50 }), [client, user, channel, archived]);
  useLive(["turn.accepted"], list.reload);
  const filter = (name) => (value) => setQuery({ ...query, [name]: value });
  const controls = html`
    <${Choice} label=${t("sessions.archived")} value=${archived} values=${["false", "true"]} textOf=${(value) => t(`answer.${value === "true" ? "yes" : "no"}`)} onChange=${filter("archived")} />
    <${TextFilter} label=${t("label.user")} value=${user} onChange=${filter("user")} />
    <${TextFilter} label=${t("label.channel")} value=${channel} onChange=${filter("channel")} />`;
  const columns = [
    { key: "title", label: t("sessions.name"), kind: "long", cell: (session) => html`<bdi>${sessionTitle(session)}</bdi>` },
    { key: "channelId", label: t("label.channel"), kind: "short" },
    { key: "owner", label: t("label.owner"), kind: "short" },
    { key: "turns", label: t("sessions.turns"), kind: "number", cell: (session) => number(session.turns) },
    timeColumn("updatedAt", t("label.updated")),
    timeColumn("createdAt", t("label.created")),
    ...(can("message") ? [{ key: "menu", label: "", cell: (session) => html`<button type="button" class="button icon" aria-label=${t("sessions.menu", { title: sessionTitle(session) })} onClick=${() => setOpened(session)}>⋯</button>` }] : []),
  ];
  return html`<${View} title=${t("sessions.title")} controls=${controls}>
    <${ListTable} name="sessions" caption=${t("sessions.title")} list=${list} columns=${columns} rowHref=${(session) => href(`chat/${segment(session.id)}`)}
      empty=${{ title: t("sessions.none"), hint: t("sessions.none_hint") }} />
    ${opened && html`<${SessionDialog} session=${opened} onClose=${() => { setOpened(null); list.reload(); }} />`}
  <//>`;
}
