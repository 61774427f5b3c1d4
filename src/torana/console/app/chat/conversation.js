/**
 * The state of one conversation: a window of its turns, which the gateway's events keep current.
 *
 * A turn is `{ id, text, files, reply, status, model, usage, error, tools, approvals, createdAt, endedAt }`. Sent
 * messages carry an idempotency key and the stream of a turn continues after its last event, so a lost connection
 * repeats nothing.
 */
import { segment } from "../base/api.js";
import { randomId } from "../base/ids.js";
import { pause } from "../base/live.js";
import { Store } from "../base/store.js";
import { postDecision } from "./approval_card.js";

/** Turns of one request, and the largest number of turns that the page holds. */
const PAGE = 30;
const LARGEST_WINDOW = 150;

const OPEN = new Set(["sending", "queued", "running", "waiting"]);

export function isOpen(turn) {
  return OPEN.has(turn.status);
}

export class Conversation {
  /**
   * `{ session, turns, older, newer, opened, isLoading, problem }`: `older` and `newer` continue the window, and
   * `opened` counts how often it was opened anew.
   */
  state = new Store({ session: null, turns: [], older: null, newer: null, opened: 0, isLoading: false, problem: null });
  #client;
  #mayRead;
  #user;
  #channelId = `console-${randomId()}`;
  #stop = new AbortController();
  #followed = new Set();
  #sent = Promise.resolve();

  /**
   * `mayRead` is whether the token may read sessions; `user()` returns the user to name in messages, or null if the
   * token names the user.
   */
  constructor({ client, mayRead, user }) {
    this.#client = client;
    this.#mayRead = mayRead;
    this.#user = user;
  }

  close() {
    this.#stop.abort();
  }

  /** Load a session with its newest messages, or with those around a hit: `page` and `before` are cursors of it. */
  async open(sessionId, { page = null, before = null } = {}) {
    this.state.update({ isLoading: true, problem: null });
    try {
      const session = await this.#client.get(`v1/sessions/${segment(sessionId)}`);
      this.#channelId = session.channelId;
      const part = page ? await this.#read(session.id, "oldest", page) : await this.#read(session.id, "newest", null);
      const turns = page ? part.turns : part.turns.reverse();
      const edges = page ? { older: before, newer: part.next } : { older: part.next, newer: null };
      this.state.update({ session, turns, ...edges, opened: this.state.value.opened + 1, isLoading: false });
      await this.#refreshStates();
    } catch (problem) {
      if (!this.#stop.signal.aborted) this.state.update({ isLoading: false, problem });
    }
  }

  /** Load the turns before the window. The newest ones leave it when it grows too large. After a cut, open it anew. */
  async loadOlder() {
    const { session, older, isLoading } = this.state.value;
    if (!older || isLoading) return;
    if (older === "cut") {
      await this.open(session.id);
      return;
    }
    this.state.update({ isLoading: true });
    try {
      const part = await this.#read(session.id, "newest", older);
      const turns = merge(part.turns.reverse(), this.state.value.turns);
      const isCut = turns.length > LARGEST_WINDOW;
      const newer = isCut ? "cut" : this.state.value.newer;
      this.state.update({ turns: turns.slice(0, LARGEST_WINDOW), older: part.next, newer, isLoading: false });
    } catch (problem) {
      this.state.update({ isLoading: false, problem });
    }
  }

  /** Load the turns after the window, or the newest ones after a cut. */
  async loadNewer() {
    const { session, newer, isLoading } = this.state.value;
    if (!newer || isLoading) return;
    if (newer === "cut") {
      await this.open(session.id);
      return;
    }
    this.state.update({ isLoading: true });
    try {
      const part = await this.#read(session.id, "oldest", newer);
      const turns = merge(this.state.value.turns, part.turns);
      this.state.update({ turns: turns.slice(-LARGEST_WINDOW), newer: part.next, isLoading: false });
    } catch (problem) {
      this.state.update({ isLoading: false, problem });
    }
  }

  /** Send a message after the earlier ones. Resolves with the accepted turn; rejects with the gateway's refusal. */
  send(text, files, onBusy) {
    const local = { ...emptyTurn(`local-${randomId()}`, text), files: files.map(({ name, size }) => ({ name, size })), status: "sending" };
    const { turns, older } = this.state.value;
    const isCut = turns.length >= LARGEST_WINDOW;
    this.state.update({ turns: [...(isCut ? turns.slice(-PAGE) : turns), local], older: isCut ? "cut" : older });
    const accepted = this.#sent.catch(() => {}).then(() => this.#deliver(local, text, files, onBusy));
    this.#sent = accepted;
    return accepted;
  }

  async cancel(turnId) {
    this.#apply(await this.#client.post(`v1/turns/${segment(turnId)}/cancel`));
  }

  async retry(turnId) {
    this.#apply(await this.#client.post(`v1/turns/${segment(turnId)}/retry`));
    this.#change(turnId, { reply: "", tools: [], error: null });
    this.#follow(turnId);
  }

  /** Copy the conversation up to the turn before `turnId`, and return the new session. */
  async forkBefore(turnId) {
    const { session, turns } = this.state.value;
    const before = turns[turns.findIndex((turn) => turn.id === turnId) - 1];
    if (!before) return null;
    return this.#client.post(`v1/sessions/${segment(session.id)}/fork`, { turnId: before.id });
  }

  async fork(turnId) {
    return this.#client.post(`v1/sessions/${segment(this.state.value.session.id)}/fork`, { turnId });
  }

  /** Decide an approval. A decision of another browser is shown instead of an error. */
  async decide(approval, ...decision) {
    try {
      this.#setApproval(await postDecision(this.#client, approval, ...decision));
    } catch (problem) {
      if (problem.status !== 409) throw problem;
      this.#setApproval(await this.#client.get(`v1/approvals/${segment(approval.id)}`));
    }
  }

  /** Take in an event of the gateway. */
  async onEvent({ type, data }) {
    const { session, turns } = this.state.value;
    if (type === "reset") {
      if (session) await this.#refreshEnd();
    } else if (data?.sessionId && data.sessionId === session?.id) {
      if (!turns.some((turn) => turn.id === data.turnId)) await this.#refreshEnd();
      else if (type === "turn.started") this.#follow(data.turnId);
      else if (type === "approval.decided") this.#setApproval(await this.#client.get(`v1/approvals/${segment(data.approvalId)}`));
      else if (type === "turn.ended") await this.#refreshTurn(data.turnId);
    }
  }

  async #deliver(local, text, files, onBusy) {
    const body = { content: text, channelId: this.#channelId, onBusy, userId: this.#user() ?? undefined };
    if (files.length) body.files = await Promise.all(files.map(async ({ name, blob }) => ({ name, data: await base64(blob) })));
    const headers = { Prefer: "respond-async,decide-by-id", "Idempotency-Key": local.id };
    try {
      const turn = await this.#untilAnswered(() => this.#client.post("v1/messages", body, headers));
      this.#replaceLocal(local.id, turn);
      if (!this.state.value.session) {
        const session = { id: turn.sessionId, channelId: turn.channelId, title: null };
        const read = () => this.#client.get(`v1/sessions/${segment(session.id)}`);
        this.state.update({ session: this.#mayRead ? await this.#untilAnswered(read) : session });
      }
      this.#follow(turn.id);
      return turn;
    } catch (problem) {
      this.state.update({ turns: this.state.value.turns.filter((turn) => turn.id !== local.id) });
      throw problem;
    }
  }

  /** Repeat a request that changes nothing when it is repeated, until the gateway answers it. */
  async #untilAnswered(request) {
    for (let wait = 500; ; wait = Math.min(wait * 2, 10_000)) {
      try {
        return await request();
      } catch (problem) {
        if (this.#stop.signal.aborted || problem.status !== 0) throw problem;
      }
      await pause(wait, this.#stop.signal);
    }
  }

  #replaceLocal(localId, body) {
    const { turns } = this.state.value;
    const local = turns.find((turn) => turn.id === localId);
    const others = turns.filter((turn) => turn.id !== localId && turn.id !== body.id);
    this.state.update({ turns: [...others, { ...local, ...stateOf(body), id: body.id }] });
  }

  /** Follow the events of a turn to its end, over lost connections. */
  async #follow(turnId) {
    if (this.#followed.has(turnId)) return;
    this.#followed.add(turnId);
    let lastEventId = "", wait = 500;
    try {
      while (!this.#stop.signal.aborted) {
        try {
          const options = { lastEventId, signal: this.#stop.signal };
          for await (const event of this.#client.events(`v1/turns/${segment(turnId)}/events`, options)) {
            if (event.type === "open") {
              if (!lastEventId) this.#change(turnId, { reply: "", tools: [] });
              continue;
            }
            lastEventId = event.id || lastEventId;
            wait = 500;
            this.#take(turnId, event);
            if (event.type === "turn.completed" || event.type === "turn.failed") return;
          }
          await this.#refreshTurn(turnId);
          const turn = this.state.value.turns.find(({ id }) => id === turnId);
          if (!turn || !isOpen(turn)) return;
        } catch (problem) {
          if (!problem.isTemporary) return;
        }
        await pause(wait, this.#stop.signal);
        wait = Math.min(wait * 2, 10_000);
      }
    } finally {
      this.#followed.delete(turnId);
    }
  }

  #take(turnId, { type, data }) {
    const turn = this.state.value.turns.find(({ id }) => id === turnId);
    if (!turn) return;
    if (type === "message.delta") this.#change(turnId, { reply: turn.reply + data.text, status: "running" });
    else if (type === "message.snapshot") this.#change(turnId, { reply: data.text });
    else if (type === "tool.started") this.#change(turnId, { tools: [...turn.tools.filter((tool) => tool.callId !== data.callId), { ...data, ok: null }] });
    else if (type === "tool.finished") this.#change(turnId, { tools: turn.tools.map((tool) => (tool.callId === data.callId ? { ...tool, ...data } : tool)) });
    else if (type === "approval.required") {
      this.#change(turnId, { status: "waiting" });
      this.#setApproval({ state: "open", ...data, turnId });
    } else if (type === "turn.resumed") this.#change(turnId, { reply: data.text, status: "running" });
    else if (type === "turn.completed") this.#change(turnId, { ...data, id: turnId, status: "completed", reply: data.reply });
    else if (type === "turn.failed") this.#change(turnId, { status: data.code === "cancelled" ? "cancelled" : "failed", error: { code: data.code, detail: data.detail } });
  }

  #change(turnId, change) {
    this.state.update({ turns: this.state.value.turns.map((turn) => (turn.id === turnId ? { ...turn, ...change } : turn)) });
  }

  #apply(body) {
    this.#change(body.id, stateOf(body));
  }

  #setApproval(approval) {
    const turn = this.state.value.turns.find(({ id }) => id === approval.turnId);
    if (!turn) return;
    const others = turn.approvals.filter(({ id }) => id !== approval.id);
    this.#change(turn.id, { approvals: [...others, approval] });
  }

  async #refreshTurn(turnId) {
    const body = await this.#client.get(`v1/turns/${segment(turnId)}`);
    this.#apply(body);
    body.approvals.forEach((approval) => this.#setApproval(approval));
  }

  /** Load the newest turns again, and keep the others. */
  async #refreshEnd() {
    const { session, newer } = this.state.value;
    if (newer || !this.#mayRead) return;
    try {
      const part = await this.#read(session.id, "newest", null);
      this.state.update({ turns: merge(this.state.value.turns, part.turns.reverse()) });
      await this.#refreshStates();
    } catch (problem) {
      if (!problem.isTemporary) this.state.update({ problem });
    }
  }

  /** Read the states of the newest turns, and follow those that have not ended. */
  async #refreshStates() {
    const { session } = this.state.value;
    const page = await this.#client.get("v1/turns", { sessionId: session.id, limit: PAGE });
    for (const item of page.items) {
      this.#change(item.id, { status: item.status, error: item.error, model: item.model, usage: item.usage, mergedInto: item.mergedInto, endedAt: item.endedAt });
      if (item.status === "running" || item.status === "waiting") {
        this.#follow(item.id);
        if (item.status === "waiting") await this.#refreshTurn(item.id);
      }
    }
  }

  async #read(sessionId, order, after) {
    const page = await this.#client.get(`v1/sessions/${segment(sessionId)}/messages`, { order, after, limit: PAGE * 2 });
    const turns = new Map();
    for (const message of page.items) {
      const turn = turns.get(message.turnId) ?? { ...emptyTurn(message.turnId, ""), status: "completed" };
      if (message.role === "user") Object.assign(turn, { text: message.content, userId: message.userId, createdAt: message.createdAt });
      else Object.assign(turn, { reply: message.content, endedAt: message.createdAt });
      turns.set(message.turnId, turn);
    }
    return { turns: [...turns.values()], next: page.next };
  }
}

function emptyTurn(id, text) {
  return {
    id, text, files: [], reply: "", status: "queued", model: null, usage: null, error: null, tools: [], approvals: [],
    mergedInto: null, createdAt: new Date().toISOString(), endedAt: null,
  };
}

function stateOf(body) {
  const { status, reply, model, usage, error, mergedInto, createdAt, endedAt } = body;
  const told = { status, model, usage, error, mergedInto, createdAt, endedAt };
  return reply === null ? told : { ...told, reply };
}

/** Return the turns of both lists, in the order of the first list and then of the second, each once. */
function merge(first, second) {
  const turns = new Map(first.filter(({ id }) => !id.startsWith("local-")).map((turn) => [turn.id, turn]));
  for (const turn of second) turns.set(turn.id, { ...turn, ...keep(turns.get(turn.id), turn) });
  return [...turns.values(), ...first.filter(({ id }) => id.startsWith("local-"))];
}

/** A turn that is shown keeps what its messages do not hold. */
function keep(known, loaded) {
  if (!known) return {};
  return { ...known, text: loaded.text || known.text, reply: loaded.reply || known.reply };
}

async function base64(blob) {
  const address = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
  return address.slice(address.indexOf(",") + 1);
}
