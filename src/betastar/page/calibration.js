// The parameter that is left out, so that a target is just met: the least noise, the largest batch, the fewest records, the most
// epochs. The risk grows with batch and epochs and falls with noise and records, so that halving finds it.
import { WORDS } from "./words.js";
import { up } from "./rounding.js";
import { commandOf, readRun } from "./setting.js";

// Where a search begins and ends, and whether less of the parameter is less risk.
const SEARCHED = {
  noise_multiplier: { least: 0.3, most: 1000, whole: false, risky: false },
  batch_size: { least: 1, most: 1e6, whole: true, risky: true },
  dataset_size: { least: 1, most: 1e9, whole: true, risky: false },
  epochs: { least: 1, most: 1e5, whole: true, risky: true },
};
const RELATIVE = 1e-9, DIGITS = 9, MOST_STEPS = 1e10, LEAST_RATE = 1e-9;

// A metric of a curve to rely on, as the target compares it.
const READ = {
  bayes_security: (curve) => curve.bayesSecurity().lower,
  advantage: (curve) => 1 - curve.bayesSecurity().lower,
  success: (curve, given) => curve.success(given).upper,
  tpr: (curve, given) => curve.tpr(given).upper,
  epsilon: (curve, given) => curve.epsilon(given).upper,
};

export async function calibrated(query, curveOf, pause) {
  const [, metric, sign, limit, given] = query.get("target").match(/^(\w+)(>=|<=)([^@]+)(?:@\w+=(.+))?$/);
  const name = Object.keys(SEARCHED).find((one) => !query.has(one)), { whole, risky, ...ends } = SEARCHED[name];
  const [batch, records, epochs] = ["batch_size", "dataset_size", "epochs"].map((one) => Number(query.get(one)));
  const least = { dataset_size: batch, batch_size: Math.ceil((records * epochs) / MOST_STEPS) }[name] || ends.least;
  const most = Math.min(ends.most, {
    batch_size: records, dataset_size: Math.floor(Math.min(batch / LEAST_RATE, (batch * MOST_STEPS) / (2 * epochs))),
    epochs: Math.floor(MOST_STEPS / Math.ceil(records / batch)), noise_multiplier: Infinity,
  }[name]);
  const met = async (value) => {
    await pause();
    const full = new URLSearchParams(query);
    full.set(name, value);
    const reached = READ[metric](curveOf(readRun(full)), Number(given ?? WORDS.metrics[metric].given));
    return sign === ">=" ? reached >= Number(limit) : reached <= Number(limit);
  };
  // From an end with little risk to one with much: the last value that meets the target.
  let [safe, bad] = risky ? [least, most] : [most, least];
  if (!(await met(safe))) {
    throw new Error(`No ${WORDS.parameters[name].label} from ${least} to ${most.toLocaleString("en")} meets the target. The command searches farther: \`${commandOf(query, "calibrate")}\`.`);
  }
  if (await met(bad)) return { [name]: bad };
  while (Math.abs(safe - bad) > (whole ? 1 : RELATIVE * bad)) {
    const middle = whole ? Math.round(Math.sqrt(safe * bad)) : Math.sqrt(safe * bad);
    const next = whole && (middle === safe || middle === bad) ? Math.round(0.5 * (safe + bad)) : middle;
    if (await met(next)) safe = next; else bad = next;
  }
  return { [name]: whole ? safe : Number(up(safe, DIGITS)) };
}
