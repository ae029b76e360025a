// A link with a sign-in code (`/#c=CODE`), opened in a browser that is signed in already: the code leaves the address bar and
// is swapped for a session of its scope.

/** Signs in with the code in the fragment, where there is one. Says whether the session is another one now. */
async function takeCode() {
  if (!location.hash.startsWith("#c=")) return false;
  const code = location.hash.slice(3);
  history.replaceState(null, "", location.pathname + location.search);
  try {
    const headers = { Authorization: `Code ${code}` };
    return (await fetch("/api/v1/session", { method: "POST", headers, cache: "no-store" })).ok;
  } catch {
    return false; // a used code or no answer: the session stays as it was
  }
}

addEventListener("hashchange", async () => { if (await takeCode()) location.reload(); });
await takeCode();
