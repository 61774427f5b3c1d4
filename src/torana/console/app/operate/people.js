import { html, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useLoad, useSignedIn } from "../base/context.js";
import { money, number } from "../base/format.js";
import { t } from "../base/i18n.js";
import { go, href } from "../base/router.js";
import { Action, ConfirmedAction, Dialog, Field, Form, ProblemNote, Spinner, State, Copyable, Empty } from "../parts/controls.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { saveAs } from "../parts/save.js";
import { Facts, timeColumn, View } from "./view_parts.js";

const SCOPES = ["message", "read", "memory", "skills", "impersonate", "admin"];

/** The users with messages in the last year; any user can be opened by id. */
export function UsersView({ parts }) {
  const { client } = useSignedIn();
  const list = usePages(async () => {
    const { breakdown } = await client.get("v1/usage", { days: 365, by: "user", limit: 200 });
    return { items: breakdown.groups.filter((group) => group.value).map((group) => ({ id: group.value, ...group })), next: null };
  }, [client]);
  if (parts[0]) return html`<${UserDetails} id=${parts[0]} key=${parts[0]} />`;
  const columns = [
    { key: "id", label: t("label.user") },
    { key: "messages", label: t("usage.messages"), kind: "number", cell: (user) => number(user.messages) },
    { key: "inputTokens", label: t("usage.input"), kind: "number", cell: (user) => number(user.inputTokens) },
    { key: "outputTokens", label: t("usage.output"), kind: "number", cell: (user) => number(user.outputTokens) },
    { key: "costUsd", label: t("label.cost"), kind: "number", cell: (user) => money(user.costUsd) },
  ];
  return html`<${View} title=${t("users.title")} text=${t("users.text")}>
    <form class="inline-form" onSubmit=${(event) => { event.preventDefault(); go(`users/${segment(new FormData(event.currentTarget).get("user").trim())}`); }}>
      <input name="user" required aria-label=${t("label.user")} placeholder=${t("label.user")} /><button class="button plain">${t("action.open")}</button>
    </form>
    <${ListTable} name="users" caption=${t("users.title")} list=${list} columns=${columns} rowHref=${(user) => href(`users/${segment(user.id)}`)} empty=${{ title: t("users.none"), hint: t("users.none_hint") }} />
  <//>`;
}

function UserDetails({ id }) {
  const { client } = useSignedIn();
  const [receipt, setReceipt] = useState(null);
  const { value, problem, reload } = useLoad(() => client.get(`v1/users/${segment(id)}/usage`, { days: 30 }), [client, id]);
  const controls = html`
    <${Action} label=${t("users.export")} act=${async () => saveAs(`${id}.zip`, "application/zip", await client.blob(`v1/users/${segment(id)}/export`))} />
    <${ConfirmedAction} compact=${false} label=${t("users.erase")} question=${t("users.erase_question", { user: id })} act=${async () => { setReceipt(await client.delete(`v1/users/${segment(id)}`)); await reload(); }} />`;
  return html`<${View} title=${id} controls=${controls}>
    ${receipt && html`<section class="note" role="status"><h2>${t("users.receipt")}</h2>
      <${Facts} facts=${[...Object.entries(receipt.counts).map(([name, count]) => [name, number(count)]), [t("users.kept"), receipt.kept.join("; ")], [t("users.out_of_reach"), receipt.outOfReach.join("; ")]]} />
      <button type="button" class="button plain compact" onClick=${() => saveAs(`erasure-${id}.json`, "application/json", JSON.stringify(receipt, null, 2))}>${t("action.json")}</button></section>`}
    ${problem && html`<${ProblemNote} problem=${problem} retry=${reload} />`}
    ${!value && !problem && html`<${Spinner} />`}
    ${value && html`<${Facts} facts=${[[t("usage.messages"), number(value.month.messages)], [t("label.tokens"), number(value.month.inputTokens + value.month.outputTokens)], [t("label.cost"), money(value.month.costUsd)]]} />`}
    <p><a href=${href("sessions", { user: id })}>${t("sessions.title")}</a> · <a href=${href("turns", { user: id })}>${t("turns.title")}</a> · <a href=${href("memories", { user: id })}>${t("memories.title")}</a></p>
  <//>`;
}

/** The tokens: create, rotate and revoke. A secret is shown once. */
export function TokensView() {
  const { client } = useSignedIn();
  const [isCreating, setCreating] = useState(false);
  const [issued, setIssued] = useState(null);
  const list = usePages((after) => client.get("v1/tokens", { after, limit: 50 }), [client]);
  const show = async (made) => { setIssued(made); setCreating(false); await list.reload(); };
  const columns = [
    { key: "label", label: t("tokens.label"), cell: (token) => token.label || token.id },
    { key: "status", label: t("label.state"), cell: (token) => html`<${State} value=${token.status} />` },
    { key: "user", label: t("label.user") },
    { key: "scopes", label: t("tokens.scopes"), cell: (token) => token.scopes.join(", ") },
    timeColumn("createdAt", t("label.created")), timeColumn("expiresAt", t("tokens.expires")), timeColumn("usedAt", t("tokens.used")),
    { key: "act", label: "", cell: (token) => token.status === "active" && html`<span class="row-actions">
      <${ConfirmedAction} kind="plain" label=${t("tokens.rotate")} question=${t("tokens.rotate_question")} act=${async () => show(await client.post(`v1/tokens/${segment(token.id)}/rotate`))} />
      <${ConfirmedAction} label=${t("tokens.revoke")} question=${t("tokens.revoke_question")} act=${async () => { await client.delete(`v1/tokens/${segment(token.id)}`); await list.reload(); }} /></span>` },
  ];
  return html`<${View} title=${t("tokens.title")} controls=${html`<button type="button" class="button primary" onClick=${() => setCreating(true)}>${t("tokens.create")}</button>`}>
    <${ListTable} name="tokens" caption=${t("tokens.title")} list=${list} columns=${columns} empty=${{ title: t("tokens.none"), hint: t("tokens.none_hint") }} />
    ${isCreating && html`<${TokenDialog} onClose=${() => setCreating(false)} create=${async (body) => show(await client.post("v1/tokens", body))} />`}
    ${issued && html`<${Dialog} title=${issued.label || issued.id} onClose=${() => setIssued(null)}>
      <p>${t("tokens.once")}</p><${Copyable} text=${issued.token} label=${t("signin.token")} />
    <//>`}
  <//>`;
}

function TokenDialog({ create, onClose }) {
  const [scopes, setScopes] = useState(["message", "read", "memory"]);
  const toggle = (scope) => setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope]);
  function submit({ label, user, days }) {
    return create({ label, user: user.trim() || null, scopes, expiresIn: days ? Number(days) * 86_400 : null });
  }
  return html`<${Dialog} title=${t("tokens.create")} onClose=${onClose}>
    <${Form} submitLabel=${t("tokens.create")} onSubmit=${submit} onCancel=${onClose}>
      <${Field} label=${t("tokens.label")} hint=${t("tokens.label_hint")}><input name="label" maxlength="100" /><//>
      <${Field} label=${t("label.user")} hint=${t("tokens.user_hint")}><input name="user" maxlength="256" /><//>
      <fieldset><legend>${t("tokens.scopes")}</legend>${SCOPES.map((scope) => html`<label class="check"><input type="checkbox" checked=${scopes.includes(scope)} onChange=${() => toggle(scope)} /> <code>${scope}</code> <span class="hint">${t(`scope.${scope}`)}</span></label>`)}</fieldset>
      <${Field} label=${t("tokens.days")} hint=${t("tokens.days_hint")}><input name="days" type="number" min="1" max="3650" /><//>
    <//>
  <//>`;
}

/** What the agent remembers about a user. */
export function MemoriesView({ query }) {
  const signedIn = useSignedIn();
  const { client, me } = signedIn;
  const user = me.userId ?? query.user ?? signedIn.user.value ?? "";
  const [edited, setEdited] = useState(null);
  const path = `v1/users/${segment(user)}/memories`;
  const list = usePages((after) => (user ? client.get(path, { query: query.q, after: query.q ? undefined : after, limit: 50 }) : Promise.resolve({ items: [], next: null })), [client, user, query.q]);
  useLive(["turn.ended"], list.reload);
  async function save({ text, subject }) {
    const body = { text, subject: subject.trim() || null };
    await (edited.id ? client.patch(`${path}/${segment(edited.id)}`, body) : client.post(path, body));
    setEdited(null);
    await list.reload();
  }
  const columns = [
    { key: "text", label: t("memories.text"), kind: "long", cell: (memory) => html`<bdi>${memory.text}</bdi>` },
    { key: "subject", label: t("memories.subject") },
    timeColumn("createdAt", t("label.created")),
    { key: "act", label: "", cell: (memory) => html`<span class="row-actions">
      <button type="button" class="button plain compact" onClick=${() => setEdited(memory)}>${t("action.edit")}</button>
      <${ConfirmedAction} label=${t("memories.forget")} question=${t("memories.forget_question")} act=${async () => { await client.delete(`${path}/${segment(memory.id)}`); await list.reload(); }} /></span>` },
  ];
  const controls = user && html`<button type="button" class="button primary" onClick=${() => setEdited({ text: "", subject: "" })}>${t("memories.add")}</button>`;
  return html`<${View} title=${t("memories.title")} text=${t("memories.text_of", { user })} controls=${controls}>
    ${!me.userId && html`<form class="inline-form" onSubmit=${(event) => { event.preventDefault(); go("memories", { user: new FormData(event.currentTarget).get("user").trim() }); }}>
      <input name="user" required aria-label=${t("label.user")} placeholder=${t("label.user")} value=${user} /><button class="button plain">${t("action.open")}</button></form>`}
    ${user ? html`<${ListTable} name="memories" caption=${t("memories.title")} list=${list} columns=${columns} empty=${{ title: t("memories.none"), hint: t("memories.none_hint") }} />`
      : html`<${Empty} title=${t("memories.choose")} hint=${t("memories.choose_hint")} />`}
    ${edited && html`<${Dialog} title=${edited.id ? t("action.edit") : t("memories.add")} onClose=${() => setEdited(null)}>
      <${Form} submitLabel=${t("action.save")} onSubmit=${save} onCancel=${() => setEdited(null)}>
        <${Field} label=${t("memories.text")}><textarea name="text" rows="3" required maxlength="2000" value=${edited.text}></textarea><//>
        <${Field} label=${t("memories.subject")} hint=${t("memories.subject_hint")}><input name="subject" value=${edited.subject ?? ""} /><//>
      <//><//>`}
  <//>`;
}
