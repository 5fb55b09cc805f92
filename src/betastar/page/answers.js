// Answers to settings, computed in the browser. Membership: the method exact of betastar. Attributes: the glued curve, which no attack exceeds.
"use strict";

// Points over the epochs, and of the trade-off curve: while a slider moves, and at rest.
const POINTS = { epochs: [13, 25], rates: [31, 61] }, SMALLEST_RATE = 1e-6;
// Milliseconds after which a computation lets the page move on.
const BREATH = 8;
const KEPT = 40, curves = new Map(); // the curves of the last settings

function curveOf(setting, steps = stepsOf(setting)) {
  const { noise, threat, trials } = setting, given = THREATS[threat].distance, rate = rateOf(setting), distance = given ?? setting.distance;
  const key = [noise, rate, steps, threat, distance, trials].join();
  if (!curves.has(key)) {
    if (curves.size >= KEPT) curves.delete(curves.keys().next().value);
    const of = (count) => new TradeoffCurve({ noise, rate, steps: count, distance, glue: given === null });
    curves.set(key, trials === 1 ? of(steps) : new BestOf(of(steps), of(trials * steps), trials));
  }
  return curves.get(key);
}

// What is assumed of several models.
const TRIED = "models that are trained independently, with the same settings or settings drawn at random for each; their number is decided before; only the winner is released; the score does not see the records at stake";

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

// The page computes Poisson sampling only.
function checkComputed(setting) {
  if (setting.sampling !== "poisson") throw new Error(`This page computes Poisson sampling only. For ${setting.sampling} sampling run \`${commandOf(setting)}\`.`);
}

function analyzed(setting) {
  checkComputed(setting);
  const curve = curveOf(setting), beta = curve.bayesSecurity(), success = curve.success(setting.prior), { attacker, assumed } = THREATS[setting.threat];
  const guessing = Math.max(setting.prior, 1 - setting.prior), command = commandOf({ ...setting, solve: "" }), best = setting.trials > 1;
  return {
    bayes_security: beta,
    advantage: { lower: 1 - beta.upper, estimate: 1 - beta.estimate, upper: 1 - beta.lower },
    success,
    sentence: `${best ? `Best of ${setting.trials}: ` : ""}${attacker} is right at most ${percentAbove(success.upper, guessing)} of the time, against ${percentOf(guessing)} without the model.`,
    at_least: best ? !curve.exact : curve.glue,
    certainty: best
      ? `${curve.exact ? "β* and right guesses at even odds are exact" : "All figures are proved"} up to numerical error, the others bounds by the composition of all ${setting.trials} models. For tighter ones run \`${command}\`.`
      : curve.glue
      ? `Proved up to numerical error: no attack on an attribute with this distance does better. The true β* is larger; for the tighter figure run \`${command}\`.`
      : `Exact: an integral, computed in this browser, whose numerical error (${up(Math.max(beta.upper - beta.lower, 1e-16), 1)} here) is estimated but not proved. For a proof run \`${command} --method certified\`.`,
    assumptions: [...(best ? [TRIED] : []), assumed.replace("{distance}", setting.distance), ...ASSUMED],
  };
}

// Two decimals of a percentage, and more where these hide the excess over guessing.
function percentAbove(value, guessing) {
  let digits = 2;
  while (digits < 6 && value > guessing && 100 * (value - guessing) < 10 ** -digits) digits += 1;
  return percent(value, digits);
}

async function overEpochs(setting, rest) {
  checkComputed(setting);
  const number = POINTS.epochs[Number(rest)], total = stepsOf(setting), unit = total / setting.epochs, rate = rateOf(setting), { distance, glue, exact } = curveOf(setting), one = setting.trials === 1;
  const counts = [...new Set(Array.from({ length: number }, (_, i) => Math.max(1, Math.round((total * (i + 1)) / number))))];
  const betas = await atEach(counts, (steps) => curveOf(setting, steps).bayesSecurity());
  // The paper's closed form and its error term.
  const paper = (steps) => erfc((Math.sqrt(steps) * rate * distance) / (2 * Math.SQRT2 * setting.noise));
  const doubt = (steps) => Math.sqrt(steps * rate * (1 - rate)) / setting.noise;
  return {
    at_least: one ? glue : !exact,
    exact: counts.map((steps, i) => ({ at: steps / unit, lower: betas[i].lower })),
    paper: (one ? counts : []).map((steps) => ({ at: steps / unit, lower: Math.max(0, paper(steps) - doubt(steps)), estimate: paper(steps), upper: Math.min(1, paper(steps) + doubt(steps)) })),
  };
}

async function tradeoffOf(setting, rest) {
  checkComputed(setting);
  const curve = curveOf(setting), bounded = curve.glue || setting.trials > 1, number = POINTS.rates[Number(rest)], many = Math.floor((2 * number) / 3), few = Math.floor(number / 3);
  const rates = Array.from({ length: many }, (_, i) => SMALLEST_RATE * (0.5 / SMALLEST_RATE) ** (i / (many - 1)));
  for (let i = 1; i < few; i += 1) rates.push(0.5 + (0.5 * i) / (few - 1));
  const point = (fpr) => {
    const { lower, estimate, upper } = curve.tpr(fpr);
    return { fpr, lower: bounded ? null : lower, estimate, upper };
  };
  const epsilon = curve.epsilon(DELTA).upper;
  return { at_least: bounded, curve: await atEach(rates, point), tpr: point(setting.fpr), epsilon: Number.isFinite(epsilon) ? epsilon : null };
}

// ---- the parameter that just meets a target
// The least noise, the largest batch, the fewest records, the most epochs. The risk grows with batch and epochs and falls with noise and
// records, so that halving finds it. Steps of an epoch are rounded to a whole number, so with large batches several values of batch or
// records can just meet a target; the one found here may then differ from Python's. Where a search begins and ends, and whether more of
// the parameter is more risk:
const SEARCHED = {
  noise: { least: KNOBS.noise.low, most: KNOBS.noise.high, whole: false, risky: false },
  batch: { least: 1, most: 1e6, whole: true, risky: true },
  records: { least: 1, most: 1e9, whole: true, risky: false },
  epochs: { least: 1, most: 1e5, whole: true, risky: true },
};
const RELATIVE = 1e-9, DIGITS = 9;

// A metric of a curve to rely on, as the target compares it.
const READ = {
  bayes_security: (curve) => curve.bayesSecurity().lower,
  advantage: (curve) => 1 - curve.bayesSecurity().lower,
  success: (curve, given) => curve.success(given).upper,
  tpr: (curve, given) => curve.tpr(given).upper,
  epsilon: (curve, given) => curve.epsilon(given).upper,
};

async function calibrated(setting) {
  checkComputed(setting);
  const { solve: name, batch, records, epochs, target, limit } = setting, { whole, risky, ...ends } = SEARCHED[name], [leastRate] = COMPUTED.rate, [, mostSteps] = COMPUTED.steps;
  const least = { records: batch, batch: Math.ceil((records * epochs) / mostSteps) }[name] || ends.least;
  const most = Math.min(ends.most, {
    batch: records, records: Math.floor(Math.min(batch / leastRate, (batch * mostSteps) / (2 * epochs))),
    epochs: Math.floor(mostSteps / Math.ceil(records / batch)), noise: Infinity,
  }[name]);
  const met = async (value) => {
    await pause();
    const reached = READ[target](curveOf({ ...setting, [name]: value }), givenOf(setting, target));
    return TARGETS[target].sign === ">=" ? reached >= limit : reached <= limit;
  };
  // From an end with little risk to one with much: the last value that meets the target.
  let [safe, bad] = risky ? [least, most] : [most, least];
  if (!(await met(safe))) throw new Error(`No ${KNOBS[name].label} from ${grouped(least)} to ${grouped(most)} meets the target. The command searches farther: \`${commandOf(setting)}\`.`);
  if (await met(bad)) return bad;
  while (Math.abs(safe - bad) > (whole ? 1 : RELATIVE * bad)) {
    const middle = whole ? Math.round(Math.sqrt(safe * bad)) : Math.sqrt(safe * bad);
    const next = whole && (middle === safe || middle === bad) ? Math.round(0.5 * (safe + bad)) : middle;
    if (await met(next)) safe = next; else bad = next;
  }
  return whole ? safe : Number(up(safe, DIGITS));
}
