// A question of the page to the run that it is about, and to the command and the Python code that answer it, too.
import { WORDS } from "./words.js";

// What this file computes: in these ranges it was compared with betastar.
const RANGES = {
  noise: { name: "noise_multiplier", low: 0.3, high: 1000 },
  rate: { name: "sample_rate", low: 1e-9, high: 1 },
  steps: { name: "steps", low: 1, high: 1e10 },
};
// The threats that this file computes, and the distance per step of each; null for the one that is given.
export const THREATS = { membership: 2, "membership-add-remove": 1, attribute: null };
// What else a setting may have: this file does not compute it, and the command is told of it.
export const OTHER_NUMBERS = ["max_batch_size", "records_per_person"];
const OTHER_WORDS = ["sampling", "sees"];
const GIVEN = ["noise_multiplier", "batch_size", "dataset_size", "epochs"];

const plain = (value) => String(Number(value)).replace("e+", "e");

export function commandOf(query, verb = "analyze") {
  const words = ["betastar", verb];
  if (verb === "calibrate") words.push("--target", `"${query.get("target")}"`);
  for (const name of GIVEN) if (query.has(name)) words.push(`--${WORDS.parameters[name].name}`, plain(query.get(name)));
  if (query.get("threat") !== WORDS.threats[0].name) words.push("--threat", query.get("threat"));
  for (const name of OTHER_NUMBERS) if (query.has(name)) words.push(`--${WORDS.parameters[name].name}`, plain(query.get(name)));
  for (const name of OTHER_WORDS) if (query.has(name)) words.push(`--${name}`, query.get(name));
  if (query.has("distance")) words.push("--distance", plain(query.get("distance")));
  if (query.get("prior") !== "0.5") words.push("--prior", plain(query.get("prior")));
  words.push("--fpr", plain(query.get("fpr")));
  return words.join(" ");
}

export function pythonOf(query, word) {
  const given = GIVEN.filter((name) => query.has(name)).map((name) => `${name}=${plain(query.get(name))}`).join(", ");
  const threat = word.python.replace("{distance!r}", plain(query.get("distance"))), method = word.method === "exact" ? ', method="exact"' : ', method="certified"';
  return ["import betastar as bs", "", `run = bs.DPSGD.from_epochs(${given})`, `risk = bs.analyze(run, ${threat}${method})`, "print(risk.bayes_security)"].join("\n");
}

// As DPSGD.from_epochs: an epoch has ⌈records / batch⌉ steps, and a fraction of one is rounded up to whole steps.
export function stepsOf(batch, records, epochs) {
  return Math.ceil(epochs * Math.ceil(records / batch) - 1e-9);
}

export function readRun(query) {
  const other = query.get("threat") in THREATS ? [...OTHER_WORDS, ...OTHER_NUMBERS].find((name) => query.has(name)) : "threat";
  if (other) throw new Error(`This file does not compute the ${other} ${query.get(other)}. This does: \`${commandOf(query)}\`.`);
  const number = (name) => (query.has(name) ? Number(query.get(name)) : NaN), [noise, batch, records, epochs] = GIVEN.map(number);
  if (batch > records) throw new Error(`batch_size must be at most dataset_size, got ${batch} > ${records}.`);
  const run = { noise, batch, records, epochs, rate: batch / records, steps: stepsOf(batch, records, epochs) };
  for (const [key, { name, low, high }] of Object.entries(RANGES)) {
    if (!(run[key] < low || run[key] > high)) continue;
    const label = WORDS.parameters[name].label;
    throw new Error(`In this file the ${label} must be between ${low} and ${high.toLocaleString("en")}, and is ${Number(run[key].toPrecision(4))}. This computes it: \`${commandOf(query)}\`.`);
  }
  return { ...run, threat: query.get("threat"), distance: number("distance"), prior: number("prior"), fpr: number("fpr") };
}
