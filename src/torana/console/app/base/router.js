/** Routes in the hash of the address, such as `#/turns/turn_1?state=failed`. */
import { Store } from "./store.js";

export const route = new Store(read());

addEventListener("hashchange", () => route.set(read()));

/** Return the address of a route. */
export function href(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export function go(path, query) {
  location.hash = href(path, query);
}

/** Replace the query of the current route without a new entry in the history. */
export function setQuery(query) {
  history.replaceState(null, "", href(route.value.parts.map(encodeURIComponent).join("/"), query));
  route.set(read());
}

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
