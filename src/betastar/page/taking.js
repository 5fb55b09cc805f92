// What a person takes along: a link, Python code, a command, and the curves as CSV and SVG.
import { csv, svg } from "./charts.js";

const $ = (id) => document.getElementById(id);

function say(text) {
  $("done").textContent = text;
  setTimeout(() => { $("done").textContent = ""; }, 3000);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied.`);
  } catch {
    window.prompt("Copy it from here:", text);
  }
}

// shown: the answers that the page shows; link: where they are.
export function offerToTake(shown, link) {
  $("share").addEventListener("click", () => copy(link(), "Link"));
  for (const id of ["python", "command"]) $(id).addEventListener("click", () => {
    if (!shown.answer) return say("There is no answer to repeat.");
    // The page asks for a few metrics only; whoever repeats it wants all.
    return copy(shown.answer[id].replaceAll(/ --(metric|tolerance) \S+|, tolerance=[\d.e-]+/g, ""), id === "python" ? "Python" : "Command");
  });
  for (const button of document.querySelectorAll("[data-svg]")) button.addEventListener("click", () => {
    const kind = button.dataset.svg;
    if (!shown[kind]) return say("There is no curve to save.");
    return svg($(`${kind}-chart`), `betastar-${kind}`);
  });
  for (const button of document.querySelectorAll("[data-csv]")) button.addEventListener("click", () => {
    const kind = button.dataset.csv;
    if (!shown[kind]) return say("There is no curve to save.");
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([csv(kind, shown[kind])], { type: "text/csv" })), download: `betastar-${kind}.csv` });
    link.click();
    return setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
