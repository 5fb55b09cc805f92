// Where the answers come from in the page as one file: they are computed in the browser. It exports what the module of the same
// name for the page of a server exports, and answers in the same form; numbers agree with the method exact of betastar.
import { calibrated } from "./calibration.js";
import { WORDS } from "./words.js";
import { commandOf, pythonOf, OTHER_NUMBERS, readRun, THREATS } from "./setting.js";
import { TradeoffCurve } from "./tradeoff.js";
import { erfc } from "./normal.js";
import { percent, up } from "./rounding.js";

// Points over the epochs, and of the trade-off curve: while a slider moves, and at rest.
const EPOCHS = [13, 25], RATES = [31, 61], SMALLEST_RATE = 1e-6;
// Milliseconds after which a computation lets the page move on.
const BREATH = 8;

export const SOURCE = {
  lacks: {
    threats: WORDS.threats.map(({ name }) => name).filter((name) => !(name in THREATS)),
    samplings: WORDS.samplings.slice(1).map(({ name }) => name),
    sees: WORDS.sees.slice(1).map(({ name }) => name),
    parameters: OTHER_NUMBERS,
    methods: WORDS.methods.map(({ name }) => name).filter((name) => name !== "exact"),
    metrics: Object.keys(WORDS.metrics).filter((name) => !["bayes_security", "advantage", "success", "tpr", "epsilon"].includes(name)),
    sentence: "This file computes the method exact, for Poisson sampling and an attacker with one record who sees every update. Everything else, proofs among it: `betastar analyze`.",
  },
  rough: false,
  origin: "This file computes in your browser: it asks no server, and nothing leaves this machine. <code>betastar explore</code> serves the page with every method and metric.",
};

const curves = new Map(); // of the settings that were asked last
const FEW = 40;

// The curve of a setting. For an attribute it is the glued one, above every attack at this distance.
function curveOf({ noise, rate, steps, threat, distance }) {
  const key = [noise, rate, steps, threat, distance].join();
  if (!curves.has(key)) {
    if (curves.size >= FEW) curves.delete(curves.keys().next().value);
    curves.set(key, new TradeoffCurve({ noise, rate, steps, distance: THREATS[threat] ?? distance, glue: THREATS[threat] === null }));
  }
  return curves.get(key);
}

const pause = () => new Promise((later) => setTimeout(later));

// The values of a function at each of a list; the page moves in between.
async function atEach(list, value) {
  const values = [];
  let since = performance.now();
  for (const one of list) {
    values.push(value(one));
    if (performance.now() - since < BREATH) continue;
    await pause();
    since = performance.now();
  }
  return values;
}

function analyzed(query, run) {
  const curve = curveOf(run), beta = curve.bayesSecurity(), success = curve.success(run.prior), word = WORDS.threats.find(({ name }) => name === run.threat);
  const advantage = { lower: 1 - beta.upper, estimate: 1 - beta.estimate, upper: 1 - beta.lower }, idle = Math.max(run.prior, 1 - run.prior);
  const said = { attacker: word.attacker, about: "at most", share: percentAbove(success.upper, idle), idle: String(Number((100 * idle).toPrecision(10))) };
  return {
    bayes_security: beta,
    advantage,
    success: { prior: run.prior, ...success },
    sentence: WORDS.sentence.replaceAll(/\{(\w+)\}/g, (_, name) => said[name]),
    at_least: curve.glue,
    certainty: curve.glue
      ? `A bound: no attack on an attribute with this distance does better, and the true β* is larger. For the proved figure, which is nearer to it, run \`${commandOf(query)}\`.`
      : `Exact: an integral, computed in this browser, whose numerical error (${up(Math.max(beta.upper - beta.lower, 1e-16), 1)} here) is estimated but not proved. For a proof, run \`${commandOf(query)} --method certified\`.`,
    assumptions: word.assumptions.map((text) => text.replace("{distance}", run.distance)),
    parameters: { steps: run.steps, sample_rate: run.rate },
    python: pythonOf(query, word),
    command: commandOf(query) + (curve.glue ? "" : " --method exact"),
  };
}

// Two decimals of a percentage, and more where these hide the excess over guessing.
function percentAbove(value, idle) {
  let digits = 2;
  while (digits < 6 && value > idle && 100 * (value - idle) < 10 ** -digits) digits += 1;
  return percent(value, digits);
}

async function overEpochs(query, run) {
  const number = EPOCHS[Number(query.get("rest") === "true")], unit = run.steps / run.epochs;
  const counts = [...new Set(Array.from({ length: number }, (_, i) => Math.max(1, Math.round((run.steps * (i + 1)) / number))))];
  const betas = await atEach(counts, (steps) => curveOf({ ...run, steps }).bayesSecurity());
  const distance = curveOf(run).distance;
  const paper = (steps) => erfc((Math.sqrt(steps) * run.rate * distance) / (2 * Math.SQRT2 * run.noise));
  const doubt = (steps) => Math.sqrt(steps * run.rate * (1 - run.rate)) / run.noise;
  return {
    unit: "epochs", band: null, at_least: curveOf(run).glue,
    exact: counts.map((steps, i) => ({ at: steps / unit, lower: betas[i].lower })),
    paper: counts.map((steps) => ({ at: steps / unit, lower: Math.max(0, paper(steps) - doubt(steps)), estimate: paper(steps), upper: Math.min(1, paper(steps) + doubt(steps)) })),
  };
}

async function tradeoff(query, run) {
  const curve = curveOf(run), number = RATES[Number(query.get("rest") === "true")], many = Math.floor((2 * number) / 3), few = Math.floor(number / 3);
  const rates = Array.from({ length: many }, (_, i) => SMALLEST_RATE * (0.5 / SMALLEST_RATE) ** (i / (many - 1)));
  for (let i = 1; i < few; i += 1) rates.push(0.5 + (0.5 * i) / (few - 1));
  const point = (fpr) => {
    const { lower, estimate, upper } = curve.tpr(fpr);
    return { fpr, lower: curve.glue ? null : lower, estimate, upper };
  };
  const delta = WORDS.metrics.epsilon.given, epsilon = curve.epsilon(delta).upper;
  return {
    method: curve.glue ? "bound" : "exact",
    curve: await atEach(rates, point), tpr: [point(run.fpr)], epsilon: [{ delta, upper: Number.isFinite(epsilon) ? epsilon : null }],
  };
}

export async function get(path, query) {
  if (path === "calibrate") {
    const found = await calibrated(query, curveOf, pause), full = new URLSearchParams(query);
    for (const [name, value] of Object.entries(found)) full.set(name, value);
    const command = commandOf(query, "calibrate"), python = pythonOf(full, WORDS.threats.find(({ name }) => name === query.get("threat")));
    return { target: query.get("target"), found, ...analyzed(full, readRun(full)), command, python };
  }
  const run = readRun(query);
  if (path === "epochs") return overEpochs(query, run);
  if (path === "tradeoff") return tradeoff(query, run);
  return analyzed(query, run);
}

// The script is part of this file, as text: the first number does not wait for it.
let plotly = null;
const parsed = () => new Promise((done) => (document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", done) : done()));
export const loadPlotly = () => (plotly ??= pause().then(parsed).then(pause).then(() => {
  document.head.append(Object.assign(document.createElement("script"), { textContent: document.getElementById("plotly").textContent }));
}));
