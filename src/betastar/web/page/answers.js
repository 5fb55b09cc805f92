// Where the answers come from: here, the server behind the page. The page as one file has another module in place of this one,
// which computes them in the browser; it exports the same names.

// What this source has no answer to, and what is said of it; whether slow answers can be had rough, first; where answers come from.
export const SOURCE = {
  lacks: { threats: [], samplings: [], sees: [], parameters: [], methods: [], metrics: [], sentence: "" },
  rough: true,
  origin: `Nothing leaves this machine. The <a href="openapi.json">API</a> behind this page answers what <code>betastar analyze --json</code> prints.`,
};

// A server with too many questions refuses, and says when to ask again.
export async function get(path, query, tries = 5) {
  const response = await fetch(`api/${path}?${query}`);
  if (response.status === 503 && tries > 1) {
    await new Promise((later) => setTimeout(later, 1000 * response.headers.get("Retry-After")));
    return get(path, query, tries - 1);
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

// Plotly is large: the first number does not wait for it.
let plotly = null;
export const loadPlotly = () => (plotly ??= new Promise((loaded, failed) => {
  document.head.append(Object.assign(document.createElement("script"), { src: "plotly.js", onload: loaded, onerror: failed }));
}));
