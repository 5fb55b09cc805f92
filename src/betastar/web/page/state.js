// What the page shows is one object; it can be read from and written to the address.

export const KNOBS = {
  records: { label: "training records", api: "dataset_size", min: 100, max: 1e7, whole: true, start: 26048 },
  batch: { label: "batch size", api: "batch_size", min: 1, max: 16384, whole: true, start: 256 },
  noise: { label: "noise multiplier", api: "noise_multiplier", min: 0.3, max: 50, whole: false, start: 3.51 },
  epochs: { label: "epochs", api: "epochs", min: 1, max: 1000, whole: true, start: 20 },
};
// Sliders of the attack: on straight or logarithmic scales, without "find".
export const DIALS = {
  distance: { label: "largest distance per step, in clipping norms", min: 0, max: 2, start: 1 },
  prior: { label: "probability of “yes” before the attack", min: 0.01, max: 0.99, start: 0.5 },
  fpr: { label: "false-positive rate to look at", min: 1e-5, max: 0.5, log: true, start: 0.01 },
};
const LIMITS = { bayes_security: 0.98, success: 0.51, tpr: 0.02, epsilon: 1 };
export const limitOf = (target) => LIMITS[target];

export function fresh() {
  const state = { solve: "", target: "bayes_security", limit: LIMITS.bayes_security, threat: "membership" };
  for (const [name, knob] of Object.entries({ ...KNOBS, ...DIALS })) state[name] = knob.start;
  return { ...state, strong: 0.98, moderate: 0.9, log: false, pins: [] };
}

const NUMBERS = [...Object.keys(KNOBS), ...Object.keys(DIALS), "limit", "strong", "moderate"];
const WORDS = { solve: ["", ...Object.keys(KNOBS)], target: Object.keys(LIMITS), threat: ["membership", "membership-add-remove", "attribute"] };

function read(parameters, state) {
  for (const name of NUMBERS) {
    const value = parameters.get(name);
    if (value !== null && value.trim() !== "" && Number.isFinite(Number(value))) state[name] = Number(value);
  }
  for (const [name, allowed] of Object.entries(WORDS)) if (allowed.includes(parameters.get(name))) state[name] = parameters.get(name);
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
  const parameters = write(state, [...NUMBERS, ...Object.keys(WORDS)]);
  if (state.log) parameters.set("log", "1");
  for (const pin of state.pins) parameters.append("pin", write(pin.setting, [...Object.keys(KNOBS), "threat", "distance", "prior", "fpr"]));
  return `${location.pathname}?${parameters}`;
}

// What the API is asked; the parameter that is sought is left out.
export function question(state) {
  const query = new URLSearchParams();
  for (const [name, knob] of Object.entries(KNOBS)) if (name !== state.solve) query.set(knob.api, state[name]);
  query.set("threat", state.threat);
  if (state.threat === "attribute") query.set("distance", state.distance);
  query.set("prior", state.prior);
  query.set("fpr", state.fpr);
  return query;
}

export function targetOf(state) {
  const sign = state.target === "bayes_security" ? ">=" : "<=";
  const given = { success: `@prior=${state.prior}`, tpr: `@fpr=${state.fpr}`, epsilon: "@delta=1e-5" }[state.target] ?? "";
  return `${state.target}${sign}${state.limit}${given}`;
}

// Sliders go from 0 to 1000.
export function place(dial, value) {
  const [low, high, at] = dial.log ?? dial.api ? [dial.min, dial.max, value].map(Math.log) : [dial.min, dial.max, value];
  return Math.round((1000 * (at - low)) / (high - low));
}

export function valueAt(dial, place) {
  const share = place / 1000;
  if (!(dial.log ?? dial.api)) return Number((dial.min + share * (dial.max - dial.min)).toPrecision(3));
  const value = dial.min * (dial.max / dial.min) ** share;
  const short = Number(value.toPrecision(3));
  return dial.whole ? Math.max(1, Math.round(short)) : short;
}

// To the safe side: β* down, what an attacker can do up.
// Numbers keep their order when they are read again: what is shown is never on the unsafe side of the number.
function fixed(value, digits, upwards, times = 1) {
  const near = (value * times).toFixed(digits), unsafe = upwards ? Number(near) / times < value : Number(near) / times > value;
  return unsafe ? (Number(near) + (upwards ? 1 : -1) * 10 ** -digits).toFixed(digits) : near;
}
export const down = (value, digits = 4) => fixed(value, digits, false);
export const percent = (value, digits = 1) => `${fixed(value, digits, true, 100)} %`;
export function up(value, digits = 3) {
  if (value === null || value === undefined) return "no bound";
  const near = value.toPrecision(digits);
  if (Number(near) >= value) return String(Number(near));
  const unit = 10 ** (Number(value.toExponential(digits - 1).split("e")[1]) - digits + 1);
  return String(Number((Number(near) + unit).toPrecision(digits)));
}
