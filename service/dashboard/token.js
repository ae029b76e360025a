// A link with the token (`/#t=TOKEN`), opened in a browser that is signed in already: the token leaves the address bar and
// the history, and is swapped for a session of its own scope.

/** Signs in with the token in the fragment, where there is one. Says whether the session is another one now. */
async function takeToken() {
  if (!location.hash.startsWith("#t=")) return false;
  const token = location.hash.slice(3);
  history.replaceState(null, "", location.pathname);
  try {
    const headers = { Authorization: `Bearer ${token}` };
    return (await fetch("/api/v1/session", { method: "POST", headers, cache: "no-store" })).ok;
  } catch {
    return false; // a wrong token or no answer: the session stays as it was
  }
}

addEventListener("hashchange", async () => { if (await takeToken()) location.reload(); });
await takeToken();
