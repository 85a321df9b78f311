// The only way out: questions to the server that this page came from.

const base = new URL("explore/", new URL("./", location.href));

export class Refused extends Error {}

async function answer(response) {
  const said = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Refused(said.error?.message || said.error || said.reason || `the server answered ${response.status}`);
  return said;
}

async function reached(asked) {
  try {
    return await asked;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer: is it still running?");
  }
}

/** Read something that does not depend on a problem. */
export async function get(path, query = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return answer(await reached(fetch(url)));
}

/** Ask a question; a later one may take it back with its signal. */
export async function ask(path, body, signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  return answer(await reached(fetch(new URL(path, base), options)));
}

/** Questions about one thing: a new one takes back the one before. */
export class Line {
  #current = null;

  async ask(path, body) {
    this.#current?.abort();
    const own = (this.#current = new AbortController());
    try {
      const found = await ask(path, body, own.signal);
      return own === this.#current ? found : null;
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    }
  }
}
