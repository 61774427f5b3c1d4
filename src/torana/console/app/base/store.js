import { useEffect, useState } from "./view.js";

/** A value with listeners. Listeners run once per animation frame at most, so that fast changes stay cheap. */
export class Store {
  #value;
  #listeners = new Set();
  #scheduled = false;

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    if (this.#scheduled) return;
    this.#scheduled = true;
    nextFrame(() => {
      this.#scheduled = false;
      for (const listener of [...this.#listeners]) listener(this.#value);
    });
  }

  update(change) {
    this.set({ ...this.#value, ...change });
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Return the current value of a store; the component renders again when it changes. */
export function useStore(store) {
  const [, render] = useState(0);
  useEffect(() => store.subscribe(() => render((count) => count + 1)), [store]);
  return store.value;
}

/** Call a function before the next paint. A hidden page has no frames, so a timer replaces them. */
function nextFrame(call) {
  if (document.hidden) setTimeout(call, 50);
  else requestAnimationFrame(call);
}
