import { html, useEffect, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useSignedIn } from "../base/context.js";
import { dayGroup } from "../base/format.js";
import { t } from "../base/i18n.js";
import { go, href } from "../base/router.js";
import { ConfirmedAction, Dialog, Field, Form, ProblemNote } from "../parts/controls.js";
import { usePages } from "../parts/page_list.js";
import { saveAs } from "../parts/save.js";

/** The conversations, newest first and grouped by day, with their menu. */
export function SessionList({ current, isArchived, onNavigate }) {
  const { client, can } = useSignedIn();
  const list = usePages((after) => client.get("v1/sessions", { archived: String(isArchived), after, limit: 40 }), [client, isArchived]);
  useLive(["turn.accepted", "turn.ended"], () => list.reload());
  useEffect(() => onSessionsChanged(() => list.reload()), [list]);
  if (list.items === null) return list.problem ? html`<${ProblemNote} problem=${list.problem} retry=${list.reload} />` : null;
  if (list.items.length === 0) return html`<p class="hint side-empty">${isArchived ? t("sessions.none_archived") : t("sessions.none")}</p>`;

  let group = null;
  return html`<nav class="session-list" aria-label=${t("sessions.title")}>
    ${list.items.map((session) => {
      const own = dayGroup(session.updatedAt, t);
      const heading = own === group ? null : html`<h3 key=${own}>${own}</h3>`;
      group = own;
      return html`${heading}<${SessionItem} key=${session.id} session=${session} isCurrent=${session.id === current} mayChange=${can("message")} onNavigate=${onNavigate} />`;
    })}
    ${list.hasMore && html`<button type="button" class="button plain compact" onClick=${list.more}>${t("action.more")}</button>`}
  </nav>`;
}

export function sessionTitle(session) {
  return session?.title || session?.channelId || t("chat.new");
}

function SessionItem({ session, isCurrent, mayChange, onNavigate }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class="session-item ${isCurrent ? "is-current" : ""}">
    <a href=${href(`chat/${segment(session.id)}`)} aria-current=${isCurrent ? "page" : undefined} dir="auto" onClick=${onNavigate}>${sessionTitle(session)}</a>
    ${mayChange && html`<button type="button" class="button icon" aria-label=${t("sessions.menu", { title: sessionTitle(session) })} onClick=${() => setOpen(true)}>⋯</button>`}
    ${isOpen && html`<${SessionDialog} session=${session} onClose=${() => setOpen(false)} />`}
  </div>`;
}

/** Rename, archive, export or delete a conversation. */
export function SessionDialog({ session, onClose }) {
  const { client } = useSignedIn();
  const path = `v1/sessions/${segment(session.id)}`;

  async function change(body) {
    await client.patch(path, body);
    sessionsChanged();
    onClose();
  }

  async function save(format, name, type) {
    saveAs(name, type, await client.blob(`${path}/export`, { format }));
  }

  async function remove() {
    await client.delete(path);
    sessionsChanged();
    onClose();
    go("chat");
  }

  return html`<${Dialog} title=${sessionTitle(session)} onClose=${onClose}>
    <${Form} submitLabel=${t("action.rename")} onSubmit=${({ title }) => change({ title: title.trim() || null })}>
      <${Field} label=${t("sessions.name")} hint=${t("sessions.name_hint")}><input name="title" maxlength="100" value=${session.title ?? ""} /><//>
    <//>
    <div class="dialog-actions">
      <button type="button" class="button plain" onClick=${() => change({ archived: !session.archived })}>${session.archived ? t("action.unarchive") : t("action.archive")}</button>
      <button type="button" class="button plain" onClick=${() => save("markdown", `${session.id}.md`, "text/markdown")}>${t("action.export_markdown")}</button>
      <button type="button" class="button plain" onClick=${() => save("jsonl", `${session.id}.jsonl`, "application/jsonl")}>${t("action.export_jsonl")}</button>
      <${ConfirmedAction} compact=${false} label=${t("action.delete")} question=${t("sessions.delete_question")} act=${remove} />
    </div>
  <//>`;
}

const listeners = new Set();

/** Tell all lists of sessions that a session has changed on this page. */
export function sessionsChanged() {
  for (const listener of [...listeners]) listener();
}

function onSessionsChanged(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
