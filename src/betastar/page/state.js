// What the page shows is one object; it can be read from and written to the address. Its words are those of the vocabulary.
import { WORDS } from "./words.js";

// The sliders: their ranges, and where they start. Those of the training have "find", and logarithmic scales.
const TRAINING = {
  dataset_size: { min: 100, max: 1e7, whole: true, start: 26048 },
  batch_size: { min: 1, max: 16384, whole: true, start: 256 },
  noise_multiplier: { min: 0.3, max: 50, whole: false, start: 3.51 },
  epochs: { min: 1, max: 1000, whole: true, start: 20 },
};
const ATTACK = {
  max_batch_size: { min: 0, max: 32768, whole: true, start: 0 }, // 0: batches are not cut off
  distance: { min: 0, max: 2, start: 1 },
  records_per_person: { min: 1, max: 100, whole: true, log: true, start: 1 },
  prior: { min: 0.01, max: 0.99, start: 0.5 },
  fpr: { min: 1e-5, max: 0.5, log: true, start: 0.01 },
};
const named = (sliders) => Object.fromEntries(Object.entries(sliders).map(([api, slider]) => [WORDS.parameters[api].name, { ...slider, api, label: WORDS.parameters[api].label, help: WORDS.parameters[api].help }]));
export const KNOBS = named(Object.fromEntries(Object.entries(TRAINING).map(([api, slider]) => [api, { ...slider, log: true }])));
export const DIALS = named(ATTACK);
export const limitOf = (target) => WORDS.metrics[target].limit;
export const threatOf = (state) => WORDS.threats.find((threat) => threat.name === state.threat);
const samplingOf = (state) => WORDS.samplings.find((sampling) => sampling.name === state.sampling);
export const takes = (state, api) => [...threatOf(state).takes, ...samplingOf(state).takes].includes(api);
export const takesDistance = (state) => takes(state, "distance");
// Controls that belong to some threats or samplings only.
export const SOMETIMES = Object.entries(DIALS).filter(([, dial]) => ["max_batch_size", "distance", "records_per_person"].includes(dial.api)).map(([name]) => name);
// The exact curve of such a threat takes long to read.
export const isSlow = (state) => threatOf(state).method !== "exact" || samplingOf(state).slow;

export function fresh() {
  const [target] = Object.keys(WORDS.metrics);
  const state = { solve: "", target, limit: limitOf(target), threat: WORDS.threats[0].name, method: "", sampling: WORDS.samplings[0].name, sees: WORDS.sees[0].name };
  for (const [name, knob] of Object.entries({ ...KNOBS, ...DIALS })) state[name] = knob.start;
  return { ...state, strong: 0.98, moderate: 0.9, log: false, pins: [] };
}

// The number that a metric depends on: the page's, if it has a slider for it.
export const givenOf = (metric, state) => state[WORDS.metrics[metric].at] ?? WORDS.metrics[metric].given;
const plain = (value) => (value > 0 && value < 1e-4 ? value.toExponential() : String(value));
export const shortOf = (metric, state) => WORDS.metrics[metric].short.replace("{}", plain(givenOf(metric, state)));
export const titleOf = (metric, state) => WORDS.metrics[metric].title.replace("{}", plain(givenOf(metric, state)));

// What is not allowed in a setting, each in a sentence that says what is. A field without a number is NaN.
export function problemsOf(state) {
  const isAsked = ([name, { api, start }]) => name !== state.solve && (!SOMETIMES.includes(name) || (takes(state, api) && (api === "distance" || state[name] !== start)));
  const asked = Object.entries({ ...KNOBS, ...DIALS }).filter(isAsked);
  const problems = asked.map(([name, { api }]) => wrongNumber(WORDS.parameters[api], state[name]));
  if (state.solve) problems.push(wrongNumber(limitWord(state.target), state.limit));
  return problems.filter(Boolean);
}

function limitWord(target) {
  const { short, limited } = WORDS.metrics[target], label = `the limit of ${short.split(" at ")[0]}`;
  return limited ? { label, limits: { gt: 0, lt: 1 }, allowed: "a number greater than 0 and below 1" } : { label, limits: { ge: 0 }, allowed: "a number of at least 0" };
}

function wrongNumber({ label, limits: { ge = -Infinity, gt = -Infinity, le = Infinity, lt = Infinity }, allowed, whole }, value) {
  const inside = value >= ge && value > gt && value <= le && value < lt && (!whole || Number.isInteger(value));
  const sentence = `${label} must be ${allowed}, got ${Number.isNaN(value) ? "no number" : value}.`;
  return inside ? "" : sentence[0].toUpperCase() + sentence.slice(1);
}

const NUMBERS = [...Object.keys(KNOBS), ...Object.keys(DIALS), "limit", "strong", "moderate"];
const ALLOWED = {
  solve: ["", ...Object.keys(KNOBS)],
  target: Object.keys(WORDS.metrics),
  threat: WORDS.threats.map((threat) => threat.name),
  sampling: WORDS.samplings.map((sampling) => sampling.name),
  sees: WORDS.sees.map((one) => one.name),
  method: ["", ...WORDS.methods.map((method) => method.name)],
};

function read(parameters, state) {
  for (const name of NUMBERS) {
    const value = parameters.get(name);
    if (value !== null && value.trim() !== "" && Number.isFinite(Number(value))) state[name] = Number(value);
  }
  for (const [name, allowed] of Object.entries(ALLOWED)) if (allowed.includes(parameters.get(name))) state[name] = parameters.get(name);
  return state;
}

export function fromAddress() {
  const parameters = new URLSearchParams(location.search);
  const state = read(parameters, fresh());
  state.log = parameters.get("log") === "1";
  state.pins = parameters.getAll("pin").slice(0, 4).map((text) => ({ setting: read(new URLSearchParams(text), fresh()) }));
  return state;
}

function write(state, names) {
  const start = fresh(), parameters = new URLSearchParams();
  for (const name of names) {
    const always = name in KNOBS;
    if (always || state[name] !== start[name]) parameters.set(name, state[name]);
  }
  return parameters;
}

export function toAddress(state) {
  const parameters = write(state, [...NUMBERS, ...Object.keys(ALLOWED)]);
  if (state.log) parameters.set("log", "1");
  for (const pin of state.pins) parameters.append("pin", write(pin.setting, [...Object.keys(KNOBS), ...Object.keys(DIALS), "threat", "method", "sampling", "sees"]));
  return `${location.pathname}?${parameters}`;
}

// What the API is asked; the parameter that is sought is left out.
export function question(state) {
  const query = new URLSearchParams();
  for (const [name, knob] of Object.entries(KNOBS)) if (name !== state.solve) query.set(knob.api, state[name]);
  query.set("threat", state.threat);
  if (takesDistance(state)) query.set("distance", state.distance);
  for (const name of ["sampling", "sees"]) if (state[name] !== fresh()[name]) query.set(name, state[name]);
  for (const name of SOMETIMES) if (DIALS[name].api !== "distance" && takes(state, DIALS[name].api) && state[name] !== DIALS[name].start) query.set(DIALS[name].api, state[name]);
  query.set("prior", state.prior);
  query.set("fpr", state.fpr);
  return query;
}

export function targetOf(state) {
  const { sign, at } = WORDS.metrics[state.target];
  return `${state.target}${sign}${state.limit}${at ? `@${at}=${givenOf(state.target, state)}` : ""}`;
}

// Sliders go from 0 to 1000.
export function place(dial, value) {
  const [low, high, at] = dial.log ? [dial.min, dial.max, value].map(Math.log) : [dial.min, dial.max, value];
  return Math.round((1000 * (at - low)) / (high - low));
}

export function valueAt(dial, place) {
  const share = place / 1000;
  if (!dial.log) {
    const even = Number((dial.min + share * (dial.max - dial.min)).toPrecision(3));
    return dial.whole ? Math.round(even) : even;
  }
  const value = dial.min * (dial.max / dial.min) ** share;
  const short = Number(value.toPrecision(3));
  return dial.whole ? Math.max(1, Math.round(short)) : short;
}
