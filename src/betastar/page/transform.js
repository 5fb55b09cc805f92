// The transform M(z) = ∫ P^z Q^(1-z) of one step, as weights w and losses L on a path in the complex plane:
// M(z) - 1 = Σ w (e^{zL} - 1). betastar/bounds/transform.py has the reasons for the path and its nodes.
import { erf } from "./normal.js";

// Step of the trapezoidal rule as a share of the distance to the nearest singularity; the same for much noise and many steps.
const DENSITY = 0.19, COARSE_DENSITY = 0.34, COARSE_NOISE = 1.5, COARSE_COUNT = 100, LATE = 6.5;
// Standard deviations that the nodes cover: for β*, and for tails and paths that lean.
const REACH = 9, WIDE_REACH = 18;
// Logarithm of the finest scale at which the end point of the glued law is seen.
const FINEST = -16;
// How real M'' must come out for M to be known.
const REAL = 1e-9;
const NOTHING = 45; // e^{-45} is 0 beside 1

const logOdds = (p) => Math.log((1 - p) / p);
const pathHeight = (sigma) => Math.min(0.5 * Math.PI * sigma, 1.2);

// A path that is flat before `start` and climbs with `slope` after it, and its derivative.
function climb(t, start, slope, scale) {
  const root = Math.hypot(t - start, scale);
  return [0.5 * slope * (root + (t - start)), 0.5 * slope * (1 + (t - start) / root)];
}

// Logarithm of 1 + (a + bi), without cancellation near 0.
export function log1p(a, b) {
  const square = 2 * a + a * a + b * b;
  const size = Math.abs(square) < 0.5 ? 0.5 * Math.log1p(square) : Math.log(Math.max(Math.hypot(1 + a, b), 1e-150));
  return [size, Math.atan2(b, 1 + a)];
}

// exp(re + i·im) - 1 without cancellation near 0.
function expm1(re, im) {
  if (re < -NOTHING) return [-1, 0];
  const gain = Math.expm1(re), tangent = Math.tan(0.5 * im), square = tangent * tangent, share = (2 * (gain + 1)) / (1 + square);
  return [gain - share * square, share * tangent];
}

// log A/B and B, for A = 1 - p + p·e^upper, B = 1 - p + p·e^lower and gap = upper - lower.
function lossOf(p, upper, lower, gap) {
  const size = p * Math.exp(lower[0]), grown = [size * Math.cos(lower[1]), size * Math.sin(lower[1])];
  const under = [1 - p + grown[0], grown[1]], squared = under[0] ** 2 + under[1] ** 2;
  const over = (x, y) => [(x * under[0] + y * under[1]) / squared, (y * under[0] - x * under[1]) / squared];
  const higher = p * Math.exp(upper[0]), raised = [higher * Math.cos(upper[1]), higher * Math.sin(upper[1])];
  let [x, y] = [raised[0] - grown[0], raised[1] - grown[1]];
  if (gap[0] <= 30) {
    const [c, d] = expm1(gap[0], gap[1]);
    [x, y] = [grown[0] * c - grown[1] * d, grown[0] * d + grown[1] * c];
  }
  const [re, im] = over(x, y);
  if (re > -0.5 && Math.hypot(re, im) < 1e8) return [log1p(re, im), under];
  const ratio = over(1 - p + raised[0], raised[1]);
  return [[Math.log(Math.hypot(...ratio)), Math.atan2(ratio[1], ratio[0])], under];
}

// Weights and losses at nodes z = t + iy with dz = speed·(1 + i·slope)·dt; a and b are the means under P and Q.
function onPath(p, sigma, a, b, nodes, gapAt) {
  const weight = { re: new Float64Array(nodes.length), im: new Float64Array(nodes.length) };
  const loss = { re: new Float64Array(nodes.length), im: new Float64Array(nodes.length) };
  nodes.forEach(({ t, y, slope, speed }, j) => {
    const exponent = (mean) => [(mean * t - (0.5 * mean * mean) / sigma) / sigma, (mean * y) / sigma];
    const [[re, im], under] = lossOf(p, exponent(a), exponent(b), gapAt(j));
    [loss.re[j], loss.im[j]] = [re, im];
    const size = (speed * Math.exp(0.5 * (y * y - t * t))) / Math.sqrt(2 * Math.PI), turn = [Math.cos(t * y), -Math.sin(t * y)];
    const mass = [size * (turn[0] - slope * turn[1]), size * (turn[1] + slope * turn[0])];
    weight.re[j] = mass[0] * under[0] - mass[1] * under[1];
    weight.im[j] = mass[0] * under[1] + mass[1] * under[0];
  });
  return { weight, loss };
}

// Continue the logarithm along the path, outwards from a node where its principal value is right.
function followBranch(im, start) {
  for (const [way, end] of [[1, im.length], [-1, -1]]) {
    for (let j = start + way; way * j < way * end; j += way) im[j] -= 2 * Math.PI * Math.round((im[j] - im[j - way]) / (2 * Math.PI));
  }
}

export class Transform {
  // mirrored: the nodes are the half of a symmetric law with positive loss. atom: mass at loss 0 that no node carries.
  // rest: loss of a step whose output is 0, where little noise piles mass up.
  constructor({ weight, loss }, { mirrored = false, atom = 0, rest = 0 }) {
    Object.assign(this, { weight, loss, mirrored, atom, rest, size: loss.re.length });
    this.gain = mirrored ? this.sum(weight, 1, 0, 0)[0] : 0;
  }

  // Σ w (e^{z(L - origin)} - 1) at z = x + iy.
  sum(weight, x, y, origin) {
    const { re: a, im: b } = this.loss;
    let re = 0, im = 0;
    for (let j = 0; j < this.size; j += 1) {
      const left = a[j] - origin, growth = Math.min(x * left - y * b[j], 300);
      let c = -1, d = 0;
      if (growth > -NOTHING) {
        const gain = Math.expm1(growth), tangent = Math.tan(0.5 * (x * b[j] + y * left)), square = tangent * tangent;
        const share = (2 * (gain + 1)) / (1 + square);
        c = gain - share * square;
        d = share * tangent;
      }
      re += weight.re[j] * c - weight.im[j] * d;
      im += weight.re[j] * d + weight.im[j] * c;
    }
    return [re, im];
  }

  // w e^{θL}.
  tiltedWeight(theta) {
    const re = new Float64Array(this.size), im = new Float64Array(this.size);
    for (let j = 0; j < this.size; j += 1) {
      const size = Math.exp(theta * this.loss.re[j]), c = size * Math.cos(theta * this.loss.im[j]), d = size * Math.sin(theta * this.loss.im[j]);
      re[j] = this.weight.re[j] * c - this.weight.im[j] * d;
      im[j] = this.weight.re[j] * d + this.weight.im[j] * c;
    }
    return { re, im };
  }

  // A function of offsets ζ = x + iy: M(θ + ζ)·e^{-ζ·origin} - 1. A mirrored law has its plateau at 0, and no origin.
  tilted(theta, origin) {
    const start = this.moments(theta)?.value ?? NaN, ahead = this.tiltedWeight(theta);
    if (!this.mirrored) return (x, y) => {
      const [re, im] = this.sum(ahead, x, y, origin);
      return [start + re, im];
    };
    const behind = theta === 0.5 ? ahead : this.tiltedWeight(1 - theta);
    return (x, y) => {
      const [re, im] = this.sum(ahead, x, y, 0);
      const [more, other] = theta === 0.5 && x === 0 ? [re, im] : this.sum(behind, -x, y, 0);
      return [start + re + more, im - other];
    };
  }

  // M(θ) - 1, M'(θ) and M''(θ) at a real θ; null where the nodes do not resolve M.
  moments(theta) {
    const one = this.halfMoments(theta);
    if (this.mirrored) {
      const other = theta === 0.5 ? { ...one } : this.halfMoments(1 - theta);
      one.value += other.value - this.gain;
      one.slope -= other.slope;
      one.bend += other.bend;
      one.unreal -= other.unreal;
    }
    const limit = REAL * one.bend + 1e-12 * one.size;
    return Math.abs(one.unreal) <= limit && limit < Infinity && Number.isFinite(one.value) ? one : null;
  }

  halfMoments(theta) {
    const { weight: { re: wr, im: wi }, loss: { re: a, im: b } } = this;
    let value = 0, slope = 0, bend = 0, unreal = 0, size = 0;
    for (let j = 0; j < this.size; j += 1) {
      const [c, d] = expm1(theta * a[j], theta * b[j]), grown = c + 1;
      value += wr[j] * c - wi[j] * d;
      const first = [wr[j] * a[j] - wi[j] * b[j], wr[j] * b[j] + wi[j] * a[j]];
      const second = [first[0] * a[j] - first[1] * b[j], first[0] * b[j] + first[1] * a[j]];
      slope += first[0] * grown - first[1] * d;
      bend += second[0] * grown - second[1] * d;
      unreal += second[0] * d + second[1] * grown;
      size += Math.hypot(grown, d) * Math.hypot(...second);
    }
    return { value, slope, bend, unreal, size };
  }

  // The transform of (Q, P).
  reversed() {
    if (this.mirrored) return this;
    const grown = this.tiltedWeight(1), flip = (array) => array.map((x) => -x);
    return new Transform({ weight: { re: grown.re, im: flip(grown.im) }, loss: { re: flip(this.loss.re), im: this.loss.im } }, { rest: -this.rest });
  }

  // Largest angle by which z may lean towards `sign` from the vertical with every e^{z(L - rest)} decaying.
  sector(sign) {
    let angle = Math.PI / 4;
    for (let j = 0; j < this.size; j += 1) {
      if (Math.hypot(this.weight.re[j], this.weight.im[j]) * (1 + Math.exp(this.loss.re[j])) <= 1e-17) continue;
      const sides = this.mirrored ? [this.loss.re[j], -this.loss.re[j]] : [this.loss.re[j] - this.rest];
      for (const side of sides) if (sign * side > 1e-9) angle = Math.min(angle, Math.atan2(this.loss.im[j], Math.abs(side)));
    }
    return Math.max(angle, 0);
  }
}

export function densityOf(p, sigma, count, wide) {
  const many = sigma >= COARSE_NOISE && count >= COARSE_COUNT;
  return many && !(wide && p < 0.5 && 0.5 / sigma + sigma * logOdds(p) <= LATE) ? COARSE_DENSITY : DENSITY;
}

// The pair of membership: means 1 and -1 (substitution, distance 2) or 1 and 0 (add or remove, distance 1); 0 < p < 1.
export function line(p, sigma, distance, wide, density) {
  const a = 1, b = 1 - distance, symmetric = distance === 2, height = pathHeight(sigma), step = density * height;
  const reach = wide ? WIDE_REACH : REACH;
  const right = Math.ceil((a / sigma + reach) / step), left = symmetric ? 0 : Math.ceil((reach - b / sigma) / step);
  const nodes = Array.from({ length: left + right }, (_, j) => {
    const t = step * (j - left + 0.5);
    let y = height, slope = 0;
    // Branch points of log A lie at Re t = 1/(2σ) + σ·odds, of log B (b < 0) at the left: climb beyond them.
    for (const [mean, side] of wide && p < 0.5 ? [[a, 1], [b, -1]] : []) {
      if (mean * side <= 0) continue;
      const start = 0.5 / sigma + sigma * logOdds(p), rise = Math.min(0.4, 1.5 / Math.max(1 / sigma - start, 1e-9));
      const [lift, lifted] = climb(side * t, start, rise, Math.min(sigma, 1));
      y += lift;
      slope += side * lifted;
    }
    return { t, y, slope, speed: step };
  });
  const middle = (1 - 0.5 * distance) / sigma;
  const list = onPath(p, sigma, a, b, nodes, (j) => [(distance * (nodes[j].t - middle)) / sigma, (distance * nodes[j].y) / sigma]);
  if (wide) followBranch(list.loss.im, left);
  const rest = symmetric ? 0 : Math.log1p(p * Math.expm1(-0.5 / sigma ** 2)) - Math.log1p(p * Math.expm1(-0.5 * (b / sigma) ** 2));
  return new Transform(list, { mirrored: symmetric, rest });
}

// The glued law, which dominates every pair of gradients at this distance: no attack on an attribute does better.
export function glued(p, sigma, distance, wide, density) {
  if (distance === 2 && p < 1) return line(p, sigma, distance, wide, density);
  const height = p < 1 ? pathHeight(sigma) : 1.2, step = density * Math.min(height, 0.8), start = (1 - 0.5 * distance) / sigma;
  const reach = wide ? WIDE_REACH : REACH, length = Math.ceil((1 / sigma - start + reach + step - FINEST) / step);
  const branch = 0.5 / sigma + sigma * logOdds(p), climbs = wide && p < 0.5 && branch > start;
  const rise = climbs ? Math.min(0.4, 1.5 / Math.max(1 / sigma - branch, 1e-9)) : 0, scale = Math.min(sigma, 1);
  const offsets = [];
  const nodes = Array.from({ length }, (_, j) => {
    const s = FINEST + j * step, q = s > 30 ? s : Math.log1p(Math.exp(s)), share = height / (height + q);
    let y = q * share, slope = share * share;
    if (climbs) {
      const [lift, lifted] = climb(q, branch - start, rise, scale), [base] = climb(0, branch - start, rise, scale);
      y += lift - base;
      slope += lifted;
    }
    offsets.push([q, y]);
    return { t: start + q, y, slope, speed: step / (1 + Math.exp(-s)) };
  });
  const list = onPath(p, sigma, 1, 1 - distance, nodes, (j) => offsets[j].map((part) => (distance * part) / sigma));
  if (wide) followBranch(list.loss.im, 0);
  return new Transform(list, { mirrored: true, atom: (1 - p) * erf(start * Math.SQRT1_2) });
}
