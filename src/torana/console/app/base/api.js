/** An error of the gateway (RFC 9457), or a failed connection with the code `connection_failed`. */
class Problem extends Error {
  constructor({ status, code, detail, errors, retryAfterMs }) {
    super(detail);
    this.status = status;
    this.code = code;
    this.errors = errors ?? [];
    this.retryAfterMs = retryAfterMs ?? null;
  }

  /** Whether the same request can succeed a little later. */
  get isTemporary() {
    return this.status === 0 || this.status === 503 || this.status === 429 || this.status === 502;
  }
}

/** The HTTP interface of the gateway that served this page. All paths are relative, so a prefix stays. */
export class Client {
  #token;
  #onUnauthorized;

  constructor({ token = null, onUnauthorized = () => {} } = {}) {
    this.#token = token;
    this.#onUnauthorized = onUnauthorized;
  }

  get(path, query) {
    return this.#json("GET", path, { query });
  }

  post(path, body, headers) {
    return this.#json("POST", path, { body, headers });
  }

  patch(path, body) {
    return this.#json("PATCH", path, { body });
  }

  delete(path, query) {
    return this.#json("DELETE", path, { query });
  }

  /** Return the body of a file to save. */
  async blob(path, query) {
    return (await this.#request("GET", path, { query })).blob();
  }

  /** Upload a file as the body of a request. */
  async upload(path, file) {
    return (await this.#request("POST", path, { raw: file })).json();
  }

  /** Yield `{ type: "open" }`, then the server-sent events of a path as `{ type, id, data }` until the stream ends. */
  async *events(path, { lastEventId = "", signal } = {}) {
    const headers = { Accept: "text/event-stream" };
    if (lastEventId) headers["Last-Event-ID"] = lastEventId;
    const response = await this.#request("GET", path, { headers, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = "";
    yield { type: "open" };
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        pending += value;
        const frames = pending.split("\n\n");
        pending = frames.pop();
        yield* frames.map(parseFrame).filter((event) => event.type);
      }
    } catch (error) {
      throw signal?.aborted ? error : connectionFailed();
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #json(method, path, options) {
    const response = await this.#request(method, path, options);
    return response.status === 204 ? null : response.json();
  }

  async #request(method, path, { query, body, raw, headers = {}, signal } = {}) {
    const sent = { ...headers };
    if (this.#token) sent.Authorization = `Bearer ${this.#token}`;
    if (body !== undefined) sent["Content-Type"] = "application/json";
    if (raw !== undefined) sent["Content-Type"] = raw.type || "application/zip";
    let response;
    try {
      response = await fetch(path + queryText(query), {
        method,
        headers: sent,
        body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
        signal,
        cache: "no-store",
        redirect: "error",
        referrerPolicy: "no-referrer",
      });
    } catch (error) {
      throw signal?.aborted ? error : connectionFailed();
    }
    if (response.ok) return response;
    const problem = await readProblem(response);
    if (response.status === 401) this.#onUnauthorized(problem);
    throw problem;
  }
}

/** Return a segment of a path. */
export function segment(text) {
  return encodeURIComponent(text);
}

function queryText(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

function parseFrame(frame) {
  const event = { type: "", id: "", data: null };
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) event.type = line.slice(7);
    else if (line.startsWith("id: ")) event.id = line.slice(4);
    else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
  }
  return event;
}

async function readProblem(response) {
  try {
    const body = await response.json();
    return new Problem({ ...body, status: response.status });
  } catch {
    return new Problem({ status: response.status, code: "unknown", detail: `HTTP ${response.status}` });
  }
}

function connectionFailed() {
  return new Problem({ status: 0, code: "connection_failed", detail: "" });
}
