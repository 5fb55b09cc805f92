// What an attacker reaches against `steps` steps of DP-SGD: β*, the hockey-stick divergence, TPR at an FPR, ε at a δ.
import { erf, erfc, below, logBelow } from "./normal.js";
import { Composition } from "./contour.js";
import { densityOf, glued, line } from "./transform.js";

const HALVINGS = 60, LARGEST_TAU = 700, LARGEST_EPSILON = 1e12;

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
    return { stick, overlap: 1 - stick, hit: mass > 0 ? Math.exp(tau) * mass : 0 };
  }
}

// Without sampling the worlds are N(0, 1) and N(μ, 1).
class Gaussian {
  constructor(mu) { this.mu = mu; }

  at(tau) {
    const first = logBelow(0.5 * this.mu - tau / this.mu), second = tau + logBelow(-0.5 * this.mu - tau / this.mu);
    const stick = Math.exp(first) * -Math.expm1(Math.min(second - first, 0));
    return { stick, overlap: 1 - stick, hit: Math.exp(second) };
  }
}

export class TradeoffCurve {
  // glue: the curve above every pair of gradients at this distance, instead of the pair on a line.
  constructor({ noise, rate, steps, distance, glue = false, reverse = false }) {
    Object.assign(this, { noise, rate, steps, distance, glue, symmetric: glue || distance === 2 });
    const known = new Map();
    const inner = this.law(reverse);
    this.forward = (tau) => {
      if (!known.has(tau)) known.set(tau, inner.at(tau));
      return known.get(tau);
    };
    // A record that is added leaves log P/Q ≥ log(1-p) at each step; one that is removed, log P/Q ≤ -log(1-p).
    this.most = reverse && distance === 1 && !glue && rate < 1 ? -steps * Math.log1p(-rate) : Infinity;
    if (!reverse) this.reversed = this.symmetric ? this : new TradeoffCurve({ noise, rate, steps, distance, glue, reverse: true });
  }

  law(reverse) {
    const { noise, rate, steps, distance, glue } = this;
    if (steps === 1) return new OneStep(rate, noise, distance, reverse && !this.symmetric);
    if (rate === 1) return new Gaussian((Math.sqrt(steps) * distance) / noise);
    return new Composition((wide) => {
      const one = (glue ? glued : line)(rate, noise, distance, wide, densityOf(rate, noise, steps, wide));
      return reverse ? one.reversed() : one;
    }, steps);
  }

  // β* = E[min(P, Q)].
  get bayesSecurity() {
    const { noise, rate, steps, distance } = this;
    if (steps === 1) return 1 - rate + rate * erfc(distance / (2 * Math.SQRT2 * noise));
    if (rate === 1) return erfc((Math.sqrt(steps) * distance) / (2 * Math.SQRT2 * noise));
    return this.forward(0).overlap;
  }

  // At any threshold τ: H = H_{e^τ}(P‖Q), Q(L > τ) and e^τ Q(L > τ). Negative thresholds are the reversed curve's.
  at(tau) {
    if (tau >= this.most) return { stick: 0, mass: 0, hit: 0 };
    if (tau >= 0) {
      const { stick, hit } = this.forward(tau);
      return { stick, hit, mass: Math.exp(-tau) * hit };
    }
    const other = this.reversed.at(-tau), mass = Math.min(Math.max(1 - other.stick - other.hit, 0), 1);
    return { stick: -Math.expm1(tau) + Math.exp(tau) * other.stick, mass, hit: Math.exp(tau) * mass };
  }

  // Success of the best guess, if the positive world has this probability.
  success(prior) {
    if (prior <= 0 || prior >= 1) return 1;
    const guess = (curve) => 1 - prior + prior * curve.at(Math.log((1 - prior) / prior)).stick;
    return Math.min(1, Math.max(prior, 1 - prior, guess(this)));
  }

  // Every tangent of the curve lies above it: the lowest of them, min over τ of H + e^τ·FPR.
  tpr(fpr) {
    if (fpr <= 0 || fpr >= 1) return Math.min(Math.max(fpr, 0), 1);
    let low = -1, high = 1;
    while (low > -LARGEST_TAU && this.at(low).mass < fpr) low *= 2;
    while (high < LARGEST_TAU && this.at(high).mass > fpr) high *= 2;
    let best = Math.min(1, this.tangent(low, fpr), this.tangent(high, fpr));
    for (let i = 0; i < HALVINGS && high - low > 1e-7 * (1 + Math.abs(low)); i += 1) {
      const middle = 0.5 * (low + high);
      best = Math.min(best, this.tangent(middle, fpr));
      if (this.at(middle).mass > fpr) low = middle; else high = middle;
    }
    return Math.max(best, fpr);
  }

  tangent(tau, fpr) { return this.at(tau).stick + Math.exp(tau) * fpr; }

  // ε ≥ 0 with H = δ, the larger one of both directions.
  epsilon(delta) {
    return Math.max(this.epsilonAhead(delta), this.symmetric ? 0 : this.reversed.epsilonAhead(delta));
  }

  epsilonAhead(delta) {
    const value = (tau) => (tau >= this.most ? 0 : this.forward(tau).stick);
    if (value(0) <= delta) return 0;
    let low = 0, high = 1;
    while (value(high) > delta) {
      [low, high] = [high, 2 * high];
      if (high > LARGEST_EPSILON) return Infinity;
    }
    for (let i = 0; i < HALVINGS && high - low > 1e-10 * high; i += 1) {
      const middle = 0.5 * (low + high);
      if (value(middle) > delta) low = middle; else high = middle;
    }
    return high;
  }
}

// The advantage of one step, which bounds that of many by their number times it.
export const oneStepAdvantage = (rate, noise, distance) => rate * erf(distance / (2 * Math.SQRT2 * noise));
