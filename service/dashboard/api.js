// Talks to the sidecar: JSON requests with errors as ApiError, and the live stream with its connection state.

const BASE = "/api/v1";

/** A refusal of the sidecar in words, or a lost connection (status 0). `errors` are per knob, where it says so. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the sidecar answered ${status}`);
    this.status = status;
    this.errors = Array.isArray(problem.errors) ? problem.errors : [];
  }
}

/** Sends a request. Returns {status, etag, data}; an expired session goes to the sign-in page. */
export async function request(method, path, { body, etag, timeout = 10000 } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  if (etag) headers["If-Match"] = etag;
  let response;
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(BASE + path, { method, headers, body: text, cache: "no-store", signal: AbortSignal.timeout(timeout) });
  } catch {
    throw new ApiError(0, { detail: "The sidecar does not answer." });
  }
  if (response.status === 401) signIn();
  const data = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, data);
  return { status: response.status, etag: response.headers.get("ETag"), data };
}

export const get = async (path) => (await request("GET", path)).data;

/** Loads `/` anew, where the server asks for the token. Not more than once in five seconds: no loop if it does not. */
function signIn() {
  const last = Number(sessionStorage.getItem("adaptive-rec-sign-in") || 0);
  if (Math.abs(Date.now() - last) < 5000) return; // the clock may have been set back since
  sessionStorage.setItem("adaptive-rec-sign-in", String(Date.now()));
  location.assign(`/${location.search}`);
}

const RETRY_MS = [250, 500, 1000, 2000];
const SILENCE_MS = 5000;
const HIDDEN_MS = 60000;

/**
 * The live stream. Calls onSnapshot(data) for every snapshot and onState(state) when the connection's state changes:
 * "connecting", "live", "polling" (no stream to be had, figures asked for one by one), "lost", "asleep" (hidden tab).
 */
export class Live {
  constructor({ hz, onSnapshot, onState }) {
    Object.assign(this, { hz, onSnapshot, onState, state: "", heard: 0, source: null, failures: 0, timer: 0, hiding: 0 });
    document.addEventListener("visibilitychange", () => this.#visibility());
    addEventListener("pagehide", () => this.#sleep()); // browsers keep pages that were left, and six connections to a host
    addEventListener("pageshow", () => this.state === "asleep" && this.open());
    setInterval(() => this.#watch(), 1000);
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.source?.close();
    if (this.state === "") this.#say("connecting");
    const source = new EventSource(`${BASE}/stream?hz=${this.hz}`);
    this.source = source;
    this.heard = performance.now();
    source.addEventListener("open", () => this.#say("live"));
    source.addEventListener("snapshot", (event) => {
      this.heard = performance.now();
      this.failures = 0;
      this.#say("live");
      this.onSnapshot(JSON.parse(event.data));
    });
    source.addEventListener("error", () => this.#broke(source));
  }

  #broke(source) {
    source.close();
    if (this.source !== source) return;
    this.source = null;
    if (this.state === "live") this.#say("connecting");
    this.timer = setTimeout(() => this.open(), RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)]);
    this.failures += 1;
    this.#probe();
  }

  /** Is the sidecar there at all? Then its figures are shown while the stream is tried again. */
  async #probe() {
    const isBack = () => this.state === "asleep" || this.source?.readyState === EventSource.OPEN;
    try {
      const timeout = 2000;
      const [status, stats] = await Promise.all(["/status", "/stats"].map((path) => request("GET", path, { timeout })));
      if (isBack()) return;
      this.#say("polling");
      this.onSnapshot({ status: status.data, stats: stats.data });
    } catch (error) {
      if (!isBack()) this.#say(error.status === 0 ? "lost" : "polling");
    }
  }

  /** A stream can be silent because nothing changes (a paused run), or because the other side hangs. */
  async #watch() {
    if (!this.source || performance.now() - this.heard < SILENCE_MS) return;
    const source = this.source;
    this.heard = performance.now();
    try {
      await request("GET", "/status", { timeout: 3000 });
    } catch {
      this.#broke(source);
    }
  }

  /** A tab in the background gives its stream back after a minute: there are only sixty-four for all browsers. */
  #visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => this.#sleep(), HIDDEN_MS);
    } else if (this.state === "asleep") {
      this.open();
    }
  }

  #sleep() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
    this.#say("asleep");
  }

  #say(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }
}
