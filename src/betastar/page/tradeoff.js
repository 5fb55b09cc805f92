// What an attacker reaches against `steps` steps of DP-SGD: β*, the hockey-stick divergence, TPR at an FPR, ε at a δ.
import { erfc, below, logBelow } from "./normal.js";
import { Composition } from "./contour.js";
import { densityOf, glued, line } from "./transform.js";

const HALVINGS = 60, LARGEST_TAU = 700, LARGEST_EPSILON = 1e12;
// Error of a closed form, relative to its parts.
const ROUNDING = 1e-14;
// A true-positive rate lies between the lowest tangent and this share less.
const SEARCH = 1e-8;

// P = (1-p)N(0,σ²) + pN(1,σ²), Q = (1-p)N(0,σ²) + pN(1-R,σ²): a single step has closed forms (betastar/scenario/step.py).
class OneStep {
  constructor(p, sigma, distance, reverse) { Object.assign(this, { p, sigma, distance, reverse }); }

  loss(x) {
    const { p, sigma, distance } = this, b = 1 - distance, variance = sigma * sigma;
    const mixture = (u) => (p >= 1 ? u : u > 600 ? u + Math.log(p) : Math.log1p(p * Math.expm1(u)));
    return mixture((x - 0.5) / variance) - mixture((b * x - 0.5 * b * b) / variance);
  }

  at(tau) {
    const { p, sigma, distance, reverse } = this, b = 1 - distance, middle = 1 - 0.5 * distance, reach = 38 * sigma;
    let [low, high] = reverse ? [Math.min(0, b) - reach, middle] : [middle, 1 + reach];
    for (let i = 0; i < HALVINGS; i += 1) {
      const x = 0.5 * (low + high), less = reverse ? -this.loss(x) > tau : this.loss(x) <= tau;
      if (less) low = x; else high = x;
    }
    const x = high, flip = b + 1 > 2 * x, small = (flip ? x - 1 : b - x) / sigma, large = (flip ? x - b : 1 - x) / sigma;
    const gain = p * Math.exp(logBelow(large)) * -Math.expm1(logBelow(small) - logBelow(large));
    const mass = reverse ? (1 - p) * below(x / sigma) + p * below((x - 1) / sigma) : (1 - p) * below(-x / sigma) + p * below((b - x) / sigma);
    const stick = Math.max(gain - (mass > 0 ? Math.expm1(tau) * mass : 0), 0);
    return { stick, hit: mass > 0 ? Math.exp(tau) * mass : 0, error: ROUNDING * gain };
  }
}

// Without sampling the worlds are N(0, 1) and N(μ, 1).
class Gaussian {
  constructor(mu) { this.mu = mu; }

  at(tau) {
    const first = logBelow(0.5 * this.mu - tau / this.mu), second = tau + logBelow(-0.5 * this.mu - tau / this.mu);
    const stick = Math.exp(first) * -Math.expm1(Math.min(second - first, 0));
    return { stick, hit: Math.exp(second), error: ROUNDING * Math.exp(first) * (1 + tau / this.mu) ** 2 };
  }
}

// A number, bounded: `error` on both sides, within limits.
const bound = (estimate, error, least = 0, most = 1) => {
  const inside = (x) => Math.min(Math.max(x, least), most);
  return { lower: inside(estimate - error), estimate: inside(estimate), upper: inside(estimate + error) };
};

// Answers are {lower, estimate, upper}: lower and upper are the numerical error, estimated as by the method exact.
export class TradeoffCurve {
  // glue: the curve above every pair of gradients at this distance, instead of the pair on a line.
  constructor({ noise, rate, steps, distance, glue = false, reverse = false }) {
    Object.assign(this, { noise, rate, steps, distance, glue, symmetric: glue || distance === 2, known: new Map() });
    this.law = this.lawOf(reverse);
    // A record that is added leaves log P/Q ≥ log(1-p) at each step; one that is removed, log P/Q ≤ -log(1-p).
    this.most = reverse && distance === 1 && !glue && rate < 1 ? -steps * Math.log1p(-rate) : Infinity;
    if (this.symmetric) this.reversed = this;
    else if (!reverse) {
      this.reversed = new TradeoffCurve({ noise, rate, steps, distance, glue, reverse: true });
      this.reversed.reversed = this;
    }
  }

  lawOf(reverse) {
    const { noise, rate, steps, distance, glue } = this;
    if (steps === 1) return new OneStep(rate, noise, distance, reverse);
    if (rate === 1) return new Gaussian((Math.sqrt(steps) * distance) / noise);
    return new Composition((wide) => {
      const one = (glue ? glued : line)(rate, noise, distance, wide, densityOf(rate, noise, steps, wide));
      return reverse ? one.reversed() : one;
    }, steps);
  }

  // β* = E[min(P, Q)].
  bayesSecurity() {
    const { noise, rate, steps, distance } = this;
    if (steps === 1) return bound(1 - rate + rate * erfc(distance / (2 * Math.SQRT2 * noise)), ROUNDING);
    if (rate === 1) return bound(erfc((Math.sqrt(steps) * distance) / (2 * Math.SQRT2 * noise)), ROUNDING);
    const { overlap, error } = this.law.at(0);
    return bound(overlap, error);
  }

  // At any threshold τ: H = H_{e^τ}(P‖Q), its error, Q(L > τ) and e^τ Q(L > τ). Negative thresholds are the reversed curve's.
  at(tau) {
    if (tau >= this.most) return { stick: 0, error: 0, mass: 0, hit: 0 };
    if (!this.known.has(tau)) this.known.set(tau, tau >= 0 ? this.ahead(tau) : this.behind(tau));
    return this.known.get(tau);
  }

  ahead(tau) {
    const { stick, error, hit } = this.law.at(tau);
    return { stick, error, hit, mass: Math.exp(-tau) * hit };
  }

  behind(tau) {
    const other = this.reversed.at(-tau), mass = Math.min(Math.max(1 - other.stick - other.hit, 0), 1), grown = Math.exp(tau);
    return { stick: -Math.expm1(tau) + grown * other.stick, error: grown * other.error, mass, hit: grown * mass };
  }

  // Success of the best guess, if the positive world has this probability: 1 - π + π·H at e^τ = (1-π)/π.
  success(prior) {
    if (prior <= 0 || prior >= 1) return bound(1, 0);
    const { stick, error } = this.at(Math.log((1 - prior) / prior));
    return bound(1 - prior + prior * stick, prior * error, Math.max(prior, 1 - prior));
  }

  // Every tangent of the curve lies above it, so TPR = min over τ of H + e^τ·FPR: where Q(L > τ) passes the FPR.
  tpr(fpr) {
    if (fpr <= 0 || fpr >= 1) return bound(fpr, 0);
    let low = -1, high = 1, estimate = 1, upper = 1;
    const above = (tau) => {
      const { stick, error, mass } = this.at(tau), tangent = stick + Math.exp(tau) * fpr;
      estimate = Math.min(estimate, tangent);
      upper = Math.min(upper, tangent + error);
      return mass > fpr;
    };
    while (low > -LARGEST_TAU && !above(low)) low *= 2;
    while (high < LARGEST_TAU && above(high)) high *= 2;
    for (let i = 0; i < HALVINGS && high - low > 1e-7 * Math.max(Math.abs(low), Math.abs(high)); i += 1) {
      const middle = 0.5 * (low + high);
      if (above(middle)) low = middle; else high = middle;
    }
    return bound(estimate, upper - estimate + SEARCH * estimate, fpr);
  }

  // ε ≥ 0 with H = δ, the larger one of both directions.
  epsilon(delta) {
    const ends = [-1, 0, 1].map((side) => Math.max(...new Set([this, this.reversed].map((curve) => curve.epsilonAhead(delta, side)))));
    return { lower: ends[0], estimate: ends[1], upper: ends[2] };
  }

  // The same in one direction; side: with H lowered by its error, as it is, or raised.
  epsilonAhead(delta, side) {
    const exceeds = (tau) => {
      const { stick, error } = this.at(tau);
      return stick + side * error > delta;
    };
    if (!exceeds(0)) return 0;
    let low = 0, high = 1;
    while (exceeds(high)) {
      [low, high] = [high, 2 * high];
      if (high > LARGEST_EPSILON) return Infinity;
    }
    for (let i = 0; i < HALVINGS && high - low > 1e-10 * high; i += 1) {
      const middle = 0.5 * (low + high);
      if (exceeds(middle)) low = middle; else high = middle;
    }
    return side < 0 ? low : high;
  }
}
