/** Values that the browser keeps: `local` for good, `session` until the tab is closed. A browser may refuse both. */
class BrowserStorage {
  #name;

  constructor(name) {
    this.#name = name;
  }

  get(key) {
    try {
      return window[this.#name].getItem(key);
    } catch {
      return null;
    }
  }

  set(key, value) {
    try {
      window[this.#name].setItem(key, value);
    } catch {
      // The value lasts as long as the page.
    }
  }

  remove(key) {
    try {
      window[this.#name].removeItem(key);
    } catch {
      // There is nothing to remove.
    }
  }
}

export const local = new BrowserStorage("localStorage");
export const session = new BrowserStorage("sessionStorage");
