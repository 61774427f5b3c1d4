/**
 * The events of the gateway for all tabs of one sign-in.
 *
 * Browsers open six connections to a server, so one tab follows `/v1/events` and tells the others. The lock of
 * that tab ends with it, and the next tab continues. After a lost connection the stream continues after its last
 * event; a `reset` event tells every listener to load again.
 */
import { Store } from "./store.js";

const LONGEST_WAIT = 15_000;

export class Live {
  /** `connected`, or `lost` while this tab waits to connect again. */
  state = new Store("connected");
  #client;
  #channel;
  #listeners = new Set();
  #stop = new AbortController();
  #lastEventId = "";

  constructor(client, identity) {
    this.#client = client;
    this.#channel = new BroadcastChannel(`torana ${location.pathname} ${identity}`);
    this.#channel.onmessage = ({ data }) => this.#deliver(data);
    // Pages of an insecure origin have no locks: each tab follows the events itself.
    if (navigator.locks) navigator.locks.request(this.#channel.name, { signal: this.#stop.signal }, () => this.#follow()).catch(() => {});
    else this.#follow();
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  close() {
    this.#stop.abort();
    this.#channel.close();
    this.#listeners.clear();
  }

  #deliver(message) {
    if (message.state) this.state.set(message.state);
    if (!message.event) return;
    this.#lastEventId = message.event.id || this.#lastEventId;
    for (const listener of [...this.#listeners]) listener(message.event);
  }

  #tell(message) {
    if (this.#stop.signal.aborted) return;
    if (navigator.locks) this.#channel.postMessage(message);
    this.#deliver(message);
  }

  async #follow() {
    let wait = 500;
    while (!this.#stop.signal.aborted) {
      try {
        const options = { lastEventId: this.#lastEventId, signal: this.#stop.signal };
        for await (const event of this.#client.events("v1/events", options)) {
          wait = 500;
          if (event.type === "open") this.#tell({ state: "connected" });
          else this.#tell({ event });
        }
      } catch (problem) {
        if (this.#stop.signal.aborted || problem.status === 401 || problem.status === 403) return;
        this.#tell({ state: "lost" });
      }
      await pause(wait, this.#stop.signal);
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  }
}

/** Wait, but no longer than until the connection or the page comes back. */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      document.removeEventListener("visibilitychange", done);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    addEventListener("online", done);
    document.addEventListener("visibilitychange", done);
    signal?.addEventListener("abort", done);
  });
}
