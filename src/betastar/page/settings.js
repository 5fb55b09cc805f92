// A setting of the page: its fields with their words and limits, its entries, its address, and the command and Python code for it.
"use strict";

// The sliders. low, high: what the field takes; min, max: the range of the slider; share: a probability, for which percent is accepted;
// only: the threat that it belongs to. Those with `find` can be found from a target.
const KNOBS = {
  records: { api: "dataset_size", label: "training records", help: "Number of training records.", low: 1, high: 1e12, whole: true, find: true, log: true, min: 100, max: 1e7, start: 26048 },
  batch: { api: "batch_size", label: "batch size", help: "Expected number of records in a batch. The sampling rate is batch size / training records.", low: 1, high: 1e9, whole: true, find: true, log: true, min: 1, max: 16384, start: 256 },
  noise: { api: "noise_multiplier", label: "noise multiplier", help: "Standard deviation of the noise / clipping norm.", low: 0.3, high: 1000, farther: true, find: true, log: true, min: 0.3, max: 50, start: 3.51 },
  epochs: { api: "epochs", label: "epochs", help: "Passes over the training records.", above: 0, high: 1e6, find: true, log: true, slidesWhole: true, min: 1, max: 1000, start: 20 },
  trials: { api: "trials", label: "models tried", help: "Number of models that are trained like this, independently, of which only the best one is released.", low: 1, high: 1000, whole: true, log: true, min: 1, max: 200, start: 1 },
  distance: { api: "distance", label: "largest distance per step, in clipping norms", help: "The largest distance between the clipped gradients of two values of the attribute, from 0 to 2.", low: 0, high: 2, only: "attribute", min: 0, max: 2, start: 1 },
  prior: { api: "prior", label: "probability of “yes” before the attack", help: "Probability, before the attack, that “yes” is the right guess.", low: 0, high: 1, share: true, min: 0.01, max: 0.99, start: 0.5 },
  fpr: { api: "fpr", label: "false-positive rate", help: "The false-positive rate for which the page shows the true-positive rate.", low: 0, high: 1, share: true, log: true, min: 1e-5, max: 0.5, start: 0.01 },
};
const FOUND = Object.keys(KNOBS).filter((name) => KNOBS[name].find);
const DELTA = 1e-5; // at which ε is shown
// From these values of β* on a setting is called strong, and moderate. An example.
const BANDS = { strong: 0.98, moderate: 0.9 };
// What the page computes; in these ranges its numbers were compared with Python's.
const COMPUTED = { rate: [1e-9, 1], steps: [1, 1e10] };

// Who attacks. distance: between the gradients at each step, in clipping norms; null if it is given.
const THREATS = {
  membership: { distance: 2, python: "bs.Membership()", attacker: "An attacker who guesses membership", assumed: "a worst-case record: the attacker knows two records and guesses which of them was used" },
  "membership-add-remove": { distance: 1, python: 'bs.Membership("add-remove")', attacker: "An attacker who guesses membership", assumed: "a worst-case record: the attacker guesses whether the record was used, or nothing in its place" },
  attribute: { distance: null, python: "bs.AttributeInference(distances={distance})", attacker: "An attacker who guesses between two values of the attribute", assumed: "a worst-case record: the attacker knows the rest of the record, and the clipped gradients of the attribute's values are never farther apart than {distance} clipping norms at any step" },
};
const ASSUMED = [
  "an attacker who knows all other records and sees every update",
  "Poisson sampling: each step samples every record independently with the same probability",
  "ideal Gaussian noise on the sum of clipped gradients",
];
const SAMPLINGS = {
  poisson: "Each step takes every record with the same probability.",
  "fixed-size": "Each step draws a fixed number of records without replacement.",
  "balls-in-bins": "Each record is in one random batch of an epoch.",
  shuffled: "Each epoch shuffles the records and cuts them into batches.",
};

// Targets: sign, the condition that the metric depends on, and the limit to start with.
const TARGETS = {
  bayes_security: { label: "β*", sign: ">=", share: true, limit: 0.98 },
  advantage: { label: "advantage", sign: "<=", share: true, limit: 0.05 },
  success: { label: "right guesses", sign: "<=", share: true, at: "prior", limit: 0.51 },
  tpr: { label: "TPR", sign: "<=", share: true, at: "fpr", limit: 0.05 },
  epsilon: { label: "ε", sign: "<=", at: "delta", limit: 1 },
};
const givenOf = (setting, target) => ({ prior: setting.prior, fpr: setting.fpr, delta: DELTA })[TARGETS[target].at];

function fresh() {
  const state = Object.fromEntries(Object.entries(KNOBS).map(([name, { start }]) => [name, start]));
  return { ...state, solve: "", target: "bayes_security", limit: TARGETS.bayes_security.limit, threat: "membership", sampling: "poisson", ...BANDS, log: false, pins: [] };
}

// As DPSGD.from_epochs: an epoch has ⌈records / batch⌉ steps, and a fraction of one is rounded up to whole steps.
const stepsOf = ({ batch, records, epochs }) => Math.ceil(epochs * Math.ceil(records / batch) - 1e-9);
const rateOf = ({ batch, records }) => batch / records;

// ---- entries
// The number in a text: 26,048; 1e-5; for a probability also 52 %, and 52 for 52 %. NaN if there is none.
function numberIn(text, share) {
  const [, digits, percent] = text.trim().match(/^(.*?)\s*(%?)$/), plain = digits.replaceAll(/(?<=\d),(?=\d{3}(?!\d))/g, "");
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) || (percent && !share)) return NaN;
  const value = Number(plain);
  return percent || (share && value > 1 && value <= 100) ? Number((value / 100).toPrecision(15)) : value;
}

const grouped = (value) => value.toLocaleString("en", { maximumSignificantDigits: 15 });
const sentence = (text) => text[0].toUpperCase() + text.slice(1);

// What a field may hold, in words.
function allowed({ low, above, high, whole, share }) {
  if (share) return `a probability from 0 to 1, or a percentage such as 52 %`;
  return `a ${whole ? "whole " : ""}number ${low === undefined ? `greater than ${above} and at most` : `from ${grouped(low)} to`} ${grouped(high)}`;
}

// What is wrong with one entry; "" if nothing is.
function wrong(value, text, field) {
  const { low = -Infinity, above = -Infinity, high, below = Infinity, whole } = field;
  if (value >= low && value > above && value <= high && value < below && (!whole || Number.isInteger(value))) return "";
  return `${sentence(field.label)} must be ${field.words ?? allowed(field)}, got ${text.trim() === "" ? "nothing" : `“${text.trim()}”`}.`;
}

// What is wrong with a setting as a whole: [field, sentence], with the field that was changed last if it takes part.
function conflict(setting, last) {
  const at = (...fields) => (fields.includes(last) ? last : fields.find((name) => name !== setting.solve));
  const known = (...fields) => !fields.includes(setting.solve);
  const beyond = (what, [low, high], value) => `On this page the ${what} must be from ${low} to ${high.toLocaleString("en")}, got ${Number(value.toPrecision(4))}. Run \`${commandOf(setting)}\`.`;
  if (known("batch", "records") && setting.batch > setting.records) return [at("batch", "records"), `The batch size must be at most the number of training records, got ${grouped(setting.batch)} > ${grouped(setting.records)}.`];
  if (known("batch", "records") && rateOf(setting) < COMPUTED.rate[0]) return [at("records", "batch"), beyond("sampling rate", COMPUTED.rate, rateOf(setting))];
  if (known("batch", "records", "epochs") && stepsOf(setting) > COMPUTED.steps[1]) return [at("epochs", "records", "batch"), beyond("number of steps", COMPUTED.steps, stepsOf(setting))];
  const guessing = Math.max(setting.prior, 1 - setting.prior);
  if (setting.solve && setting.target === "success" && setting.limit <= guessing) return ["limit", `At most ${percentOf(setting.limit)} right guesses are impossible: guessing alone is right ${percentOf(guessing)} of the time.`];
  if (setting.solve && setting.target === "tpr" && setting.limit <= setting.fpr) return ["limit", `A TPR of at most ${setting.limit} is impossible: guessing alone has the TPR ${setting.fpr}.`];
  return null;
}
const percentOf = (share) => `${Number((100 * share).toPrecision(10))} %`;

const limitField = ({ label, share }) => ({ label: `the limit of ${label}`, ...(share ? { share, above: 0, high: 1, below: 1, words: "a probability between 0 and 1, or a percentage, such as 0.52 or 52 %" } : { low: 0, high: 1e6 }) });

// The setting that the fields describe, and what is wrong with them: { setting, problems: { field: sentence } }. texts: of the fields.
function readEntries(state, texts, last) {
  const setting = { ...state, pins: state.pins }, problems = {};
  const fields = Object.entries(KNOBS).filter(([name, { only }]) => name !== state.solve && (!only || only === state.threat));
  if (state.solve) fields.push(["limit", limitField(TARGETS[state.target])]);
  for (const [name, field] of fields) {
    setting[name] = numberIn(texts[name], field.share);
    const said = wrong(setting[name], texts[name], field);
    // Python takes any noise; the page only what it was compared for.
    if (said) problems[name] = said + (field.farther && setting[name] > 0 ? ` For this one run \`${commandOf(setting)}\`.` : "");
  }
  const [name, said] = (Object.keys(problems).length === 0 && conflict(setting, last)) || [];
  if (name) problems[name] = said;
  return { setting, problems };
}

// ---- the command and the Python code
const plain = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value));
const targetOf = (setting) => {
  const { sign, at } = TARGETS[setting.target];
  return `${setting.target}${sign}${setting.limit}${at ? `@${at}=${plain(givenOf(setting, setting.target))}` : ""}`;
};

// calibrate if a parameter is sought, else analyze.
function commandOf(setting) {
  const words = ["betastar", setting.solve ? "calibrate" : "analyze"];
  if (setting.solve) words.push("--target", `"${targetOf(setting)}"`);
  for (const name of ["noise", "batch", "records", "epochs"]) if (name !== setting.solve) words.push(`--${name}`, plain(setting[name]));
  if (setting.threat !== "membership") words.push("--threat", setting.threat);
  if (setting.sampling !== "poisson") words.push("--sampling", setting.sampling);
  if (setting.threat === "attribute") words.push("--distance", plain(setting.distance));
  if (setting.trials !== 1) words.push("--trials", plain(setting.trials));
  if (setting.prior !== KNOBS.prior.start) words.push("--prior", plain(setting.prior));
  words.push("--fpr", plain(setting.fpr));
  return words.join(" ");
}

// What a person copies has the method of the page, too, where it is Python's.
const copiedCommand = (setting) => commandOf(setting) + (setting.threat === "attribute" || setting.sampling !== "poisson" ? "" : " --method exact");

// The same in Python, and what the page shows beside it.
function pythonOf(setting) {
  const { solve, target, threat, sampling, distance, prior, fpr, trials } = setting, { at } = TARGETS[target];
  const given = ["noise", "batch", "records", "epochs"].filter((name) => name !== solve).map((name) => `${KNOBS[name].api}=${plain(setting[name])}`);
  if (sampling !== "poisson") given.push(`sampling="${sampling}"`);
  const several = trials === 1 ? "" : `, trials=${plain(trials)}`, done = trials === 1 ? "run" : `bs.best_of(run${several})`;
  const method = threat === "attribute" ? ', method="certified"' : "", goal = `${target}=${plain(setting.limit)}${at ? `, ${at}=${plain(givenOf(setting, target))}` : ""}`;
  return [
    "import betastar as bs", "", `threat = ${THREATS[threat].python.replace("{distance}", plain(distance))}`,
    solve ? `run = bs.calibrate(bs.Target(${goal}), ${given.join(", ")}${several}, threat=threat${method})` : `run = bs.DPSGD.from_epochs(${given.join(", ")})`,
    `risk = bs.analyze(${done}, threat${method})`,
    ...(solve ? ["print(run)"] : []),
    `print(risk.bayes_security, risk.success(${plain(prior)}), risk.tpr(${plain(fpr)}), risk.epsilon(${plain(DELTA)}))`,
  ].join("\n");
}

// ---- the address
const NUMBERS = [...Object.keys(KNOBS), "limit", "strong", "moderate"];
const CHOICES = { solve: ["", ...FOUND], target: Object.keys(TARGETS), threat: Object.keys(THREATS), sampling: Object.keys(SAMPLINGS) };

function readParameters(parameters, state) {
  for (const name of NUMBERS) {
    const value = numberIn(parameters.get(name) ?? "", false);
    if (Number.isFinite(value)) state[name] = value;
  }
  for (const [name, choices] of Object.entries(CHOICES)) if (choices.includes(parameters.get(name))) state[name] = parameters.get(name);
  return state;
}

function fromAddress() {
  const parameters = new URLSearchParams(location.search), state = readParameters(parameters, fresh());
  state.log = parameters.get("log") === "1";
  state.pins = parameters.getAll("pin").slice(0, 4).map((text) => ({ setting: readParameters(new URLSearchParams(text), fresh()) }));
  return state;
}

function writtenParameters(state, names) {
  const start = fresh(), parameters = new URLSearchParams();
  for (const name of names) if (FOUND.includes(name) || state[name] !== start[name]) parameters.set(name, state[name]);
  return parameters;
}

function toAddress(state) {
  const parameters = writtenParameters(state, [...NUMBERS, ...Object.keys(CHOICES)]);
  if (state.log) parameters.set("log", "1");
  for (const pin of state.pins) parameters.append("pin", writtenParameters(pin.setting, [...Object.keys(KNOBS), "threat", "sampling"]));
  return `${location.pathname}?${parameters}`;
}

// ---- sliders go from 0 to 1000
function placeOf({ log, min, max }, value) {
  const [low, high, at] = log ? [min, max, value].map(Math.log) : [min, max, value];
  return Math.round((1000 * (at - low)) / (high - low));
}

function valueAt({ log, min, max, whole, slidesWhole }, place) {
  const value = Number((log ? min * (max / min) ** (place / 1000) : min + (place / 1000) * (max - min)).toPrecision(3));
  return whole || slidesWhole ? Math.max(1, Math.round(value)) : value;
}
