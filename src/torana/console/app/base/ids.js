/** Return a random id. `crypto.randomUUID` exists only on pages of a secure origin, so it is not used. */
export function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
