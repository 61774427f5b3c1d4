import { html } from "../base/view.js";
import { segment } from "../base/api.js";
import { useLive, useLoad, useSignedIn } from "../base/context.js";
import { duration, money, number, secondsBetween } from "../base/format.js";
import { t } from "../base/i18n.js";
import { href, setQuery } from "../base/router.js";
import { ToolCall } from "../chat/message.js";
import { Action, ProblemNote, Spinner, State } from "../parts/controls.js";
import { ListTable, usePages } from "../parts/page_list.js";
import { Choice, Facts, stateText, TextFilter, Time, timeColumn, turnHref, View } from "./view_parts.js";

const STATES = ["queued", "running", "waiting", "completed", "failed", "cancelled"];

export function TurnsView({ parts, query }) {
  return parts[0] ? html`<${TurnDetails} id=${parts[0]} key=${parts[0]} />` : html`<${TurnList} query=${query} />`;
}

function TurnList({ query }) {
  const { client } = useSignedIn();
  const { state, user, channel, session } = query;
  const list = usePages((after) => client.get("v1/turns", { state, userId: user, channelId: channel, sessionId: session, after, limit: 50 }), [client, state, user, channel, session]);
  useLive(["turn.accepted", "turn.started", "turn.ended"], list.reload);
  const filter = (name) => (value) => setQuery({ ...query, [name]: value });
  const controls = html`
    <${Choice} label=${t("label.state")} value=${state} values=${STATES} textOf=${stateText} onChange=${filter("state")} />
    <${TextFilter} label=${t("label.user")} value=${user} onChange=${filter("user")} />
    <${TextFilter} label=${t("label.channel")} value=${channel} onChange=${filter("channel")} />`;
  const columns = [
    { key: "excerpt", label: t("turns.message"), kind: "long", cell: (turn) => html`<bdi>${turn.excerpt || turn.id}</bdi>` },
    { key: "status", label: t("label.state"), cell: (turn) => html`<${State} value=${turn.status} />` },
    { key: "userId", label: t("label.user") },
    { key: "channelId", label: t("label.channel"), kind: "short" },
    { key: "model", label: t("label.model"), kind: "short" },
    { key: "tokens", label: t("label.tokens"), kind: "number", value: (turn) => turn.usage.inputTokens + turn.usage.outputTokens, cell: (turn) => number(turn.usage.inputTokens + turn.usage.outputTokens) },
    { key: "cost", label: t("label.cost"), kind: "number", value: (turn) => turn.usage.costUsd, cell: (turn) => (turn.usage.costUsd ? money(turn.usage.costUsd) : "") },
    { key: "time", label: t("label.duration"), kind: "number", value: (turn) => secondsBetween(turn.createdAt, turn.endedAt), cell: (turn) => duration(secondsBetween(turn.createdAt, turn.endedAt)) },
    timeColumn("createdAt", t("label.created")),
    { key: "id", label: t("label.id"), kind: "unseen" },
  ];
  return html`<${View} title=${t("turns.title")} controls=${controls}>
    <${ListTable} name="turns" caption=${t("turns.title")} list=${list} columns=${columns} rowHref=${(turn) => turnHref(turn.id)}
      empty=${{ title: t("turns.none"), hint: t("turns.none_hint") }} />
  <//>`;
}

/** One turn with the time that each of its steps took. */
function TurnDetails({ id }) {
  const { client, can } = useSignedIn();
  const { value, problem, reload } = useLoad(async () => {
    const path = `v1/turns/${segment(id)}`;
    const [turn, steps, calls] = await Promise.all([client.get(path), allItems(client, `${path}/steps`), allItems(client, `${path}/calls`)]);
    return { turn, steps, calls };
  }, [client, id]);
  useLive(["turn.started", "turn.ended", "approval.required", "approval.decided", "delivery.ended"], (event) => {
    if (event.type === "reset" || event.data.turnId === id) reload();
  });
  if (!value) return html`<${View} title=${id}>${problem ? html`<${ProblemNote} problem=${problem} retry=${reload} />` : html`<${Spinner} />`}<//>`;
  const { turn, steps, calls } = value;
  const isOpen = ["queued", "running", "waiting"].includes(turn.status);
  const act = (name) => async () => { await client.post(`v1/turns/${segment(id)}/${name}`); await reload(); };
  const controls = can("message") && html`
    ${isOpen && html`<${Action} label=${t("action.cancel_turn")} kind="danger" act=${act("cancel")} />`}
    ${turn.status === "failed" && html`<${Action} label=${t("action.retry")} kind="primary" act=${act("retry")} />`}`;
  return html`<${View} title=${t("turn.title")} controls=${controls}>
    ${problem && html`<${ProblemNote} problem=${problem} retry=${reload} />`}
    <${Facts} facts=${[
      [t("label.state"), html`<${State} value=${turn.status} />`],
      [t("label.conversation"), html`<a href=${href(`chat/${segment(turn.sessionId)}`, { turn: turn.id })}>${turn.channelId}</a>`],
      [t("label.user"), turn.userId], [t("label.model"), turn.model],
      [t("turn.input"), number(turn.usage.inputTokens)], [t("turn.output"), number(turn.usage.outputTokens)],
      [t("turn.parts"), turn.usage.estimatedInput.history ? t("turn.parts_text", Object.fromEntries(Object.entries(turn.usage.estimatedInput).map(([name, count]) => [name, number(count)]))) : null],
      [t("label.cost"), turn.usage.costUsd ? money(turn.usage.costUsd) : null],
      [t("label.created"), html`<${Time} at=${turn.createdAt} />`], [t("label.ended"), html`<${Time} at=${turn.endedAt} />`],
      [t("label.id"), html`<code>${turn.id}</code>`],
    ]} />
    ${turn.error && html`<${ProblemNote} problem=${{ code: turn.error.code, message: turn.error.detail }} />`}
    <h2>${t("turn.steps")}</h2>
    <${Waterfall} turn=${turn} steps=${steps} />
    ${calls.length > 0 && html`<h2>${t("turn.calls")}</h2>${calls.map((call) => html`<${ToolCall} key=${call.id} call=${call} />`)}`}
    ${turn.reply && html`<h2>${t("turn.reply")}</h2><pre class="reply" dir="auto" tabindex="0">${turn.reply}</pre>`}
  <//>`;
}

/** A bar for each step, on the time line from the first step to the end. */
function Waterfall({ turn, steps }) {
  if (steps.length === 0) return html`<p class="hint">${t("turn.no_steps")}</p>`;
  const start = Math.min(Date.parse(turn.createdAt), ...steps.map((step) => Date.parse(step.startedAt)));
  const end = Math.max(...steps.map((step) => (step.endedAt ? Date.parse(step.endedAt) : Date.now())), start + 1);
  const place = (at) => ((Date.parse(at) - start) / (end - start)) * 100;
  return html`<table class="table waterfall">
    <thead><tr><th scope="col">${t("turn.step")}</th><th scope="col">${t("label.state")}</th><th scope="col" class="number">${t("label.duration")}</th><th scope="col" class="line">${duration((end - start) / 1000)}</th></tr></thead>
    <tbody>${steps.map((step) => html`<tr>
      <td><span class="kind ${step.kind}">${t(`step.${step.kind}`)}</span> ${step.name ?? step.account ?? ""}
        ${step.attempt > 1 && html` <span class="hint">${t("turn.attempt", { number: step.attempt })}</span>`}
        ${step.decidedBy && html` <span class="hint">${step.decidedBy}</span>`}${step.reason && html` <span class="hint">${step.reason}</span>`}</td>
      <td><${State} value=${step.state} /></td>
      <td class="number">${duration(secondsBetween(step.startedAt, step.endedAt))}</td>
      <td class="line"><span class="span ${step.kind}" style=${{ insetInlineStart: `${place(step.startedAt)}%`, width: `${Math.max(place(step.endedAt ?? new Date().toISOString()) - place(step.startedAt), 0.5)}%` }}></span></td>
    </tr>`)}</tbody>
  </table>`;
}

async function allItems(client, path) {
  const items = [];
  let after = null;
  do {
    const page = await client.get(path, { after, limit: 200 });
    items.push(...page.items);
    after = page.next;
  } while (after && items.length < 1_000);
  return items;
}
