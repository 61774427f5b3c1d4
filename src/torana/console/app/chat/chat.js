import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../base/view.js";
import { segment } from "../base/api.js";
import { useSignedIn } from "../base/context.js";
import { t } from "../base/i18n.js";
import { go } from "../base/router.js";
import { useStore } from "../base/store.js";
import { ProblemNote, Spinner } from "../parts/controls.js";
import { Composer } from "./composer.js";
import { Conversation, isOpen } from "./conversation.js";
import { Turn } from "./message.js";
import { SessionDialog, sessionTitle, sessionsChanged } from "./session_list.js";

/** A conversation with the agent: its turns, and the box for the next message. */
export function Chat({ sessionId, turnId, page, before, fresh }) {
  const { live, me, can } = useSignedIn();
  const conversation = useConversation({ sessionId, page, before, fresh });
  const { session, turns, isLoading, problem, newer, opened } = useStore(conversation.state);
  const [draft, setDraft] = useState({ text: "", files: [] });
  const [isMenuOpen, setMenuOpen] = useState(false);
  const isOwn = !session?.owner || session.owner === (me.userId === null ? "gateway" : `user:${me.userId}`);
  const running = turns.find((turn) => turn.status === "running" || turn.status === "waiting");

  useEffect(() => live.subscribe((event) => conversation.onEvent(event).catch(() => {})), [conversation, live]);
  useEffect(() => {
    // The address gets the session of a first message, without loading it again.
    if (can("read") && session && session.id !== sessionId) {
      conversation.adopted = session.id;
      go(`chat/${segment(session.id)}`);
      sessionsChanged();
    }
  }, [session?.id]);

  const fork = useCallback(async (turn) => {
    const made = await conversation.fork(turn.id);
    sessionsChanged();
    go(`chat/${segment(made.id)}`);
  }, [conversation]);

  const edit = useCallback(async (turn) => {
    setDraft({ text: turn.text, files: [] });
    const made = await conversation.forkBefore(turn.id);
    sessionsChanged();
    go(made ? `chat/${segment(made.id)}` : "chat", made ? {} : { fresh: turn.id });
  }, [conversation]);

  return html`<section class="chat">
    <header class="view-header">
      <h1 dir="auto">${session ? sessionTitle(session) : t("chat.new")}</h1>
      ${session && can("message") && html`<button type="button" class="button icon" aria-label=${t("sessions.menu", { title: sessionTitle(session) })} onClick=${() => setMenuOpen(true)}>⋯</button>`}
    </header>
    ${isMenuOpen && html`<${SessionDialog} session=${session} onClose=${() => setMenuOpen(false)} />`}
    ${problem && html`<${ProblemNote} problem=${problem} retry=${sessionId ? () => conversation.open(sessionId, { page, before }) : null} />`}
    <${Transcript} key=${opened} conversation=${conversation} marked=${turnId} onFork=${fork} onEdit=${edit} />
    ${turns.length === 0 && !isLoading && !problem && html`<${Welcome} onPick=${(text) => setDraft({ text, files: [] })} />`}
    ${newer && html`<button type="button" class="button plain jump" onClick=${() => conversation.open(session.id)}>${t("chat.newest")}</button>`}
    ${!isOwn && html`<p class="note foreign">${t("chat.foreign", { owner: session.owner })}</p>`}
    ${can("message") && isOwn && html`<${Composer} conversation=${conversation} running=${running} draft=${draft} onDraft=${setDraft} />`}
    <${Announcer} turns=${turns} />
  </section>`;
}

/** Return the conversation of a session. A new conversation stays the same one when it gets its session. */
function useConversation({ sessionId, page, before, fresh }) {
  const { client, can, user, mayName } = useSignedIn();
  const current = useRef(null);
  return useMemo(() => {
    if (sessionId && !page && current.current?.adopted === sessionId) return current.current;
    current.current?.close();
    current.current = new Conversation({ client, mayRead: can("read"), user: () => (mayName ? user.value : null) });
    if (sessionId) {
      current.current.adopted = sessionId;
      current.current.open(sessionId, { page, before });
    }
    return current.current;
  }, [client, sessionId, page, fresh]);
}

/** The turns. It stays at its end while answers grow, unless the reader has scrolled up. */
function Transcript({ conversation, marked, onFork, onEdit }) {
  const { turns, older, newer, isLoading } = useStore(conversation.state);
  const frame = useRef(null);
  const isAtEnd = useRef(true);
  const before = useRef({ first: null, top: 0, isMarkShown: false });
  const shown = turns.filter((turn) => turn.text || turn.reply || isOpen(turn));

  useLayoutEffect(() => {
    const element = frame.current;
    const turnOf = (id) => element.querySelector(`[data-turn="${CSS.escape(id)}"]`);
    const { first, isMarkShown } = before.current;
    const mark = marked && !isMarkShown ? turnOf(marked) : null;
    if (mark) {
      mark.scrollIntoView({ block: "start" });
      before.current.isMarkShown = true;
      isAtEnd.current = false;
    } else if (isAtEnd.current) element.scrollTop = element.scrollHeight;
    // Earlier turns were added.
    else if (first && first !== shown[0]?.id) turnOf(first)?.scrollIntoView({ block: "start" });
    before.current.first = shown[0]?.id;
  });

  useEffect(() => {
    // Turns outside of the view get their true heights only when they are drawn.
    const element = frame.current;
    const observer = new ResizeObserver(() => { if (isAtEnd.current) element.scrollTop = element.scrollHeight; });
    observer.observe(element.firstElementChild);
    return () => observer.disconnect();
  }, []);

  const onScroll = useCallback(() => {
    const element = frame.current;
    // Turns that grow move the end away; only a reader who scrolls up leaves it.
    if (element.scrollHeight - element.scrollTop - element.clientHeight < 60) isAtEnd.current = true;
    else if (element.scrollTop < before.current.top) isAtEnd.current = false;
    before.current.top = element.scrollTop;
    if (element.scrollTop < 200) conversation.loadOlder();
    if (isAtEnd.current) conversation.loadNewer();
  }, [conversation]);

  return html`<div class="transcript" ref=${frame} onScroll=${onScroll} tabindex="0" role="log" aria-live="off" aria-label=${t("chat.transcript")}>
    <div class="transcript-column">
      ${older && html`<button type="button" class="button plain compact" disabled=${isLoading} onClick=${() => conversation.loadOlder()}>${t("chat.older")}</button>`}
      ${isLoading && shown.length === 0 && html`<${Spinner} />`}
      ${shown.map((turn) => html`<${Turn} key=${turn.id} turn=${turn} conversation=${conversation} isMarked=${turn.id === marked} onFork=${onFork} onEdit=${onEdit} />`)}
    </div>
  </div>`;
}

/** Tell screen readers each finished sentence of the newest answer once. */
function Announcer({ turns }) {
  const [said, setSaid] = useState("");
  const heard = useRef({ id: null, length: 0 });
  const last = turns.at(-1);
  useEffect(() => {
    if (!last) return;
    if (heard.current.id !== last.id) heard.current = { id: last.id, length: isOpen(last) ? 0 : last.reply.length };
    const rest = last.reply.slice(heard.current.length);
    const end = isOpen(last) ? lastSentenceEnd(rest) : rest.length;
    if (end > 0) {
      setSaid(rest.slice(0, end));
      heard.current.length += end;
    }
  }, [last?.id, last?.reply, last?.status]);
  return html`<div class="hidden" role="status" aria-live="polite">${said}</div>`;
}

function lastSentenceEnd(text) {
  return Math.max(0, ...[...text.matchAll(/[.!?…。！？]["')\]]*(\s|$)|\n/g)].map((found) => found.index + found[0].length));
}

function Welcome({ onPick }) {
  return html`<div class="welcome">
    <h2>${t("welcome.title")}</h2>
    <p>${t("welcome.text")}</p>
    <ul>${["welcome.example_1", "welcome.example_2", "welcome.example_3"].map((key) => html`<li>
      <button type="button" class="suggestion" onClick=${() => onPick(t(key))}>${t(key)}</button></li>`)}</ul>
  </div>`;
}
