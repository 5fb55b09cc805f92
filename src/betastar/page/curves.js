// The mathematics of the page: what an attacker reaches against DP-SGD. betastar/exact has the same integrals in Python, with the reasons.
"use strict";

// ---- the normal distribution
// To rounding.

const SERIES_UNTIL = 2.5, FRACTIONS = 80;

// erf(x) = 2/√π e^{-x²} Σ 2ⁿ x^{2n+1} / (1·3·5…(2n+1)): terms of one sign.
function erfSeries(x) {
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-18 * Math.abs(sum); n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

// e^{x²} erfc(x) for x ≥ SERIES_UNTIL: the continued fraction of Laplace, from its end.
function scaledErfc(x) {
  let below = x;
  for (let n = FRACTIONS; n > 0; n -= 1) below = x + (0.5 * n) / below;
  return 1 / (Math.sqrt(Math.PI) * below);
}

const erf = (x) => (Math.abs(x) < SERIES_UNTIL ? erfSeries(x) : Math.sign(x) * (1 - erfc(Math.abs(x))));

function erfc(x) {
  if (x < SERIES_UNTIL) return x > -SERIES_UNTIL ? 1 - erfSeries(x) : 2 - erfc(-x);
  return Math.exp(-x * x) * scaledErfc(x);
}

// Pr[N(0, 1) ≤ x], and its logarithm.
const below = (x) => 0.5 * erfc(-x * Math.SQRT1_2);

function logBelow(x) {
  const at = -x * Math.SQRT1_2;
  return at < SERIES_UNTIL ? Math.log(0.5 * erfc(at)) : Math.log(0.5 * scaledErfc(at)) - at * at;
}

// ---- one step
// The transform M(z) = ∫ P^z Q^(1-z) of one step, as weights w and losses L on a path in the complex plane:
// M(z) - 1 = Σ w (e^{zL} - 1). betastar/steps/poisson.py has the reasons for the path and its nodes.

// Step of the trapezoidal rule as a share of the distance to the nearest singularity; the same for much noise and many steps.
const DENSITY = 0.19, COARSE_DENSITY = 0.34, COARSE_NOISE = 1.5, COARSE_COUNT = 100, FAR_BRANCH = 6.5;
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
function log1p(a, b) {
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

class Transform {
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

function densityOf(p, sigma, count, wide) {
  const many = sigma >= COARSE_NOISE && count >= COARSE_COUNT;
  return many && !(wide && p < 0.5 && 0.5 / sigma + sigma * logOdds(p) <= FAR_BRANCH) ? COARSE_DENSITY : DENSITY;
}

// The pair of membership: means 1 and -1 (substitution, distance 2) or 1 and 0 (add or remove, distance 1); 0 < p < 1.
function line(p, sigma, distance, wide, density) {
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
function glued(p, sigma, distance, wide, density) {
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

// ---- many steps
// Inversion of the composed transform M(z)^T (betastar/exact/inversion.py has the formulas):
//   (1/2πi) ∫ M^T e^{(1-z)τ} / (z(z-1)) dz = H on Re z = θ > 1, H - 1 for 0 < θ < 1;   (1/2πi) ∫ M^T e^{(1-z)τ} / z dz = e^τ Q(L > τ)
// with H = H_{e^τ}(P‖Q), the hockey-stick divergence at the threshold τ of the total privacy loss L.

const EPS = 2 ** -52;
// What two steps of the trapezoidal rule must agree to; what the nodes of M may have wrong, of log M: bulk, and wide.
const TOLERANCE = 1e-10, NODES = 1e-11, WIDE_NODES = 2e-9;
// First steps in v of ζ = iw·sinh(v), on straight paths and on those that lean, and the finest.
const STEP = 0.1, LEANING_STEP = 0.05, FINEST_STEP = 2 ** -9;
// A path ends where its integrand has fallen to this share, or where ζ is beyond this.
const DEAD = 1e-16, FAR = 1e16;
// A modulus of M that counts as a plateau.
const PLATEAU = 1e-9;
// An error of H with which another path is tried.
const DOUBTFUL = 1e-7;

const even = (from, to, count) => Array.from({ length: count }, (_, i) => from + ((to - from) * i) / (count - 1));

function interpolate(x, xs, ys) {
  const last = xs.length - 1;
  if (!(x > xs[0])) return ys[0];
  if (x >= xs[last]) return ys[last];
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
}

// What is said where nothing could be computed: anything is possible.
const UNKNOWN = { stick: 1, overlap: 0, hit: 0.5, error: 1, hitError: 1, rough: true };
const doubtOf = ({ error, hitError }) => error + 1e-3 * hitError;
const better = (one, other) => (doubtOf(other) < doubtOf(one) ? other : one);

// Saddle points on one side of the pole at 1: where log M(θ) + (1-θ)τ - log|θ(1-θ)| is least, for any τ.
class Strip {
  constructor(terms, thetas, beyond) {
    Object.assign(this, { terms, beyond, lines: new Map() });
    const points = [];
    for (const theta of thetas) {
      const known = terms.cumulants(theta);
      if (known === null) break;
      points.push({ theta, ...known });
    }
    this.thetas = points.map((point) => point.theta);
    this.bends = points.map((point) => point.bend);
    this.levels = points.map(({ theta, value }) => value - Math.log(Math.abs(theta * (1 - theta))));
    let most = -Infinity, arc = 0;
    this.taus = points.map(({ theta, slope }) => (most = Math.max(most, slope - 1 / theta + 1 / (1 - theta))));
    const roots = points.map(({ theta, bend }) => Math.sqrt(bend + theta ** -2 + (1 - theta) ** -2));
    this.arcs = points.map(({ theta }, i) => (arc += i ? 0.5 * (roots[i] + roots[i - 1]) * (theta - this.thetas[i - 1]) : 0));
  }

  get known() { return this.thetas.length > 0; }

  // Logarithm of the size of the integrand at its saddle point.
  height(tau) {
    if (!this.known) return Infinity;
    const theta = interpolate(tau, this.taus, this.thetas);
    return interpolate(theta, this.thetas, this.levels) + (1 - theta) * tau;
  }

  // Thresholds whose saddle points are less than a deviation apart share a line.
  at(tau) {
    if (!this.known) return UNKNOWN;
    const number = Math.round(interpolate(tau, this.taus, this.arcs));
    if (!this.lines.has(number)) this.lines.set(number, new Line(this, interpolate(number, this.arcs, this.thetas), interpolate(number, this.arcs, this.bends)));
    return this.lines.get(number).at(tau);
  }
}

class Line {
  constructor(strip, theta, bend) {
    Object.assign(this, { terms: strip.terms, beyond: strip.beyond, theta, bend, paths: new Map() });
    this.width = Math.min(2 / Math.sqrt(bend), theta, Math.abs(1 - theta));
  }

  at(tau) {
    const past = tau - this.terms.rest, sign = Math.sign(past), straight = () => this.path(0).at(tau, past === 0 ? FINEST_STEP : STEP / 2);
    const leaning = () => {
      const lean = sign && 0.5 * sign * this.terms.wide.sector(sign);
      return lean ? this.path(lean).at(tau, FINEST_STEP) : UNKNOWN;
    };
    let best = UNKNOWN;
    for (const follow of [...(this.terms.plateau ? [leaning, straight] : [straight, leaning]), () => this.path(0).at(tau, FINEST_STEP)]) {
      const answer = follow();
      best = better(best, answer);
      if (!answer.rough) break;
    }
    return best;
  }

  path(lean) {
    if (!this.paths.has(lean)) this.paths.set(lean, new Path(this, lean));
    return this.paths.get(lean);
  }
}

// Offsets ζ = iw·sinh(v - i·lean), moved to start at 0, and the composed transform on them, refined when it is needed.
class Path {
  constructor(line, lean) {
    const { terms, theta } = line, wide = line.beyond || lean !== 0, one = wide ? terms.wide : terms.bulk;
    Object.assign(this, { line, lean, one, step: lean ? LEANING_STEP : STEP, levels: [] });
    this.origin = lean ? one.rest : 0;
    this.shifted = one.tilted(theta, this.origin);
    this.start = terms.count * Math.log1p(one.moments(theta)?.value ?? NaN);
    this.doubt = (wide ? WIDE_NODES : NODES) * (1 + Math.abs(this.start)) + EPS * (8 + Math.sqrt(terms.count));
    this.kept = Math.exp(terms.logAtom - this.start);
  }

  node(v) {
    const { width, theta, terms } = this.line, across = width * Math.sin(this.lean), along = width * Math.cos(this.lean);
    const x = across * (Math.cosh(v) - 1), y = along * Math.sinh(v), speed = [across * Math.sinh(v), along * Math.cosh(v)];
    const [size, turn] = log1p(...this.shifted(x, y)), mass = Math.exp(Math.min(terms.count * size - this.start, 300));
    const angle = terms.count * turn, re = mass * Math.cos(angle) - this.kept, im = mass * Math.sin(angle);
    // The integrands but for e^{-ζτ}: of H, and of e^τ Q(L > τ).
    const z = [theta + x, y], over = (a, b, c, d) => [(a * c + b * d) / (c * c + d * d), (b * c - a * d) / (c * c + d * d)];
    const product = [(speed[0] * re - speed[1] * im) / Math.PI, (speed[0] * im + speed[1] * re) / Math.PI];
    const hit = over(...product, ...z), stick = over(...hit, z[0] - 1, z[1]);
    return { x, y, stick, hit, size: Math.hypot(...stick), hitSize: Math.hypot(...hit) };
  }

  // Level 0 has step h, level k the nodes that halving it for the k-th time adds.
  level(number) {
    while (this.levels.length <= number) {
      const nodes = [];
      if (this.levels.length === 0) {
        const far = Math.asinh(FAR / this.line.width);
        let peak = 0, dead = 0;
        for (let v = 0; dead < 8 && v < far; v += this.step) {
          const node = this.node(v);
          nodes.push(node);
          peak = Math.max(peak, node.size);
          dead = node.size <= DEAD * peak ? dead + 1 : 0;
        }
        if (nodes.length % 2) nodes.push(this.node(nodes.length * this.step));
        for (const part of [nodes[0].stick, nodes[0].hit]) { part[0] *= 0.5; part[1] *= 0.5; }
        this.length = nodes.length * this.step;
      } else {
        const step = this.step * 0.5 ** (this.levels.length - 1);
        for (let v = 0.5 * step; v < this.length; v += step) nodes.push(this.node(v));
      }
      this.levels.push(nodes);
    }
    return this.levels[number];
  }

  sums(number, past) {
    const sums = { stick: 0, hit: 0, size: 0, hitSize: 0, halfStick: 0, halfHit: 0 };
    this.level(number).forEach(({ x, y, stick, hit, size, hitSize }, i) => {
      const decay = Math.exp(-x * past), c = decay * Math.cos(y * past), d = -decay * Math.sin(y * past);
      const one = stick[0] * d + stick[1] * c, other = hit[0] * d + hit[1] * c;
      sums.stick += one;
      sums.hit += other;
      sums.size += decay * size;
      sums.hitSize += decay * hitSize;
      if (i % 2 === 0) { sums.halfStick += one; sums.halfHit += other; }
    });
    return sums;
  }

  // The answers at a threshold, and whether two steps of the rule disagree even after all halvings that are allowed.
  at(tau, finest) {
    if (Number.isNaN(this.start)) return UNKNOWN;
    const { terms, theta, beyond } = this.line, past = tau - (this.lean ? terms.rest : 0), whole = this.sums(0, past);
    let step = this.step, level = 0;
    let wrong = step * Math.abs(whole.stick - 2 * whole.halfStick), hitWrong = step * Math.abs(whole.hit - 2 * whole.halfHit);
    const rough = () => !(wrong <= TOLERANCE * step * whole.size) || !(hitWrong <= 1e3 * TOLERANCE * step * whole.hitSize);
    while (rough() && step > finest) {
      const more = this.sums((level += 1), past);
      step *= 0.5;
      wrong = step * Math.abs(whole.stick - more.stick);
      hitWrong = step * Math.abs(whole.hit - more.hit);
      for (const name of ["stick", "hit", "size", "hitSize"]) whole[name] += more[name];
    }
    const scale = Math.exp(this.start + (1 - theta) * tau), value = scale * step * whole.stick;
    const stick = beyond ? value : 1 + value - Math.exp(terms.logAtom), overlap = beyond ? 1 - value : Math.exp(terms.logAtom) - value;
    if (!Number.isFinite(value)) return UNKNOWN;
    return {
      stick: Math.max(stick, 0), overlap, hit: Math.max(scale * step * whole.hit, 0), rough: rough(),
      error: scale * (wrong + this.doubt * step * whole.size), hitError: scale * (hitWrong + this.doubt * step * whole.hitSize),
    };
  }
}

// `count` equal steps; `build(wide)` makes the transform of one.
class Composition {
  constructor(build, count) {
    this.bulk = build(false);
    this.wide = build(true);
    this.count = count;
    this.rest = count * this.bulk.rest;
    this.logAtom = this.bulk.atom > 0 ? count * Math.log(this.bulk.atom) : -Infinity;
    const inside = this.terms(this.bulk), beyond = this.terms(this.wide);
    const middle = inside.cumulants(0.5);
    this.plateau = middle !== null && this.modulus(Math.min(8 / Math.sqrt(middle.bend), 1e15)) > PLATEAU;
    this.inside = new Strip(inside, even(-6, 6, 25).map((s) => 1 / (1 + Math.exp(-s))), false);
    const spread = Math.sqrt(beyond.cumulants(1)?.bend ?? 1), near = 0.03 * Math.min(1, 1 / spread), far = Math.max(80 / Math.min(spread, 1e8), 100 * near);
    this.beyond = new Strip(beyond, even(Math.log(near), Math.log(far), 48).map((s) => 1 + Math.exp(s)), true);
  }

  // log M^T and its first two derivatives at a real θ; null where the nodes do not reach.
  terms(one) {
    const { count, bulk, wide, rest, logAtom } = this;
    const cumulants = (theta) => {
      const known = one.moments(theta);
      if (known === null || !(known.value > -1)) return null;
      const size = 1 + known.value, slope = known.slope / size;
      return { value: count * Math.log1p(known.value), slope: count * slope, bend: Math.max(count * (known.bend / size - slope * slope), 1e-300) };
    };
    const composition = this;
    return { count, bulk, wide, rest, logAtom, cumulants, get plateau() { return composition.plateau; } };
  }

  modulus(u) {
    return Math.exp(this.count * log1p(...this.bulk.tilted(0.5, 0)(0, u))[0]);
  }

  // H, 1 - H, e^τ Q(L > τ) and their errors at a threshold τ ≥ 0. H falls with τ: what is not known is at most what is known before.
  at(tau) {
    let answer = this.onEitherSide(tau);
    for (let before = 0.8 * tau; answer.error > DOUBTFUL && before > 0.01 * tau; before *= 0.8) {
      const { stick, hit, error, hitError } = this.onEitherSide(before), most = stick + error, grown = Math.exp(tau - before);
      if (most < answer.stick + answer.error) answer = { stick: Math.min(stick, answer.stick), overlap: 1 - Math.min(stick, answer.stick), hit: Math.min(grown * hit, answer.hit), error: most, hitError: grown * (hit + hitError) };
    }
    return answer;
  }

  // The side of the pole with the smaller integrand is the more accurate one.
  onEitherSide(tau) {
    const inside = this.inside.height(tau), beyond = this.beyond.height(tau), lead = this.plateau ? 0 : Math.log(WIDE_NODES / NODES);
    const first = beyond + lead < inside ? this.beyond : this.inside, second = first === this.inside ? this.beyond : this.inside;
    const answer = first.at(tau);
    if (answer.error <= (first === this.inside && beyond < inside ? 1e-7 * answer.stick : DOUBTFUL)) return answer;
    return better(answer, second.at(tau));
  }
}

// ---- what an attacker reaches
// What an attacker reaches against `steps` steps of DP-SGD: β*, the hockey-stick divergence, TPR at an FPR, ε at a δ.

const HALVINGS = 60, LARGEST_TAU = 700, LARGEST_EPSILON = 1e12;
// Error of a closed form, relative to its parts.
const ROUNDING = 1e-14;
// A true-positive rate lies between the lowest tangent and this share less.
const SEARCH = 1e-8;

// P = (1-p)N(0,σ²) + pN(1,σ²), Q = (1-p)N(0,σ²) + pN(1-R,σ²): a single step has closed forms (betastar/steps/poisson.py).
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
class TradeoffCurve {
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

// ---- the best of several models
// Theorem 13 of the theory page: advantage = ∫ (1 - (1-t(s))^K)·½sech²(s/2) ds, t(s) = Pr[|L| > s] = H + (1 + e^s)·Q(L > s) of the worse
// direction. Step of the trapezoidal rule in log s, and where it begins (as a share of the advantage of one model) and ends.
const LOG_STEP = 0.1, FIRST_SHARE = 1e-10, LAST_LOSS = 80, UNSEEN = 1e-25;

class BestOf {
  // One run, and all runs one after another, of which everything is seen.
  constructor(one, all, trials) { Object.assign(this, { one, all, trials, glue: one.glue, exact: one.symmetric && !one.glue, known: null }); }

  tail(s) {
    const [first, second] = [this.one, this.one.reversed].map((curve) => curve.at(s)), worse = second.stick > first.stick ? second : first;
    return [Math.min(Math.max(worse.stick + worse.hit + worse.mass, 0), 1), worse.error];
  }

  // The advantage, exact for a symmetric pair and otherwise from above, and its numerical error.
  advantage() {
    if (this.known) return this.known;
    const alone = 1 - this.one.bayesSecurity().lower;
    if (alone <= 0) return (this.known = bound(0, 0));
    const first = Math.log(FIRST_SHARE * alone), count = 2 * Math.ceil((Math.log(LAST_LOSS) - first) / (2 * LOG_STEP));
    let sum = 0, half = 0, doubt = 0, start = 0;
    for (let j = 0; j <= count; j += 1) {
      const s = Math.exp(first + j * LOG_STEP), [t, error] = this.tail(s), some = -Math.expm1(this.trials * Math.log1p(-Math.min(t, 1 - EPS)));
      if (j === 0) start = some * Math.tanh(0.5 * s); // what lies before it, nearly
      const term = (some * 0.5 * s) / Math.cosh(0.5 * s) ** 2, share = j === 0 || j === count ? 0.5 : 1;
      sum += share * term;
      if (j % 2 === 0) half += 2 * share * term;
      doubt = Math.max(doubt, error);
      if (t < UNSEEN) break;
    }
    const estimate = LOG_STEP * sum + start;
    return (this.known = bound(estimate, LOG_STEP * Math.abs(sum - half) + 10 * this.trials * doubt));
  }

  bayesSecurity() {
    const { lower, estimate, upper } = this.advantage();
    return { lower: 1 - upper, estimate: 1 - estimate, upper: 1 - lower };
  }

  // Bounds from above: the lesser of what composition gives and of what follows from H ≤ H at τ = 0.
  success(prior) {
    const { lower, estimate, upper } = this.all.success(prior), most = prior < 0.5 ? 1 - prior + prior * this.advantage().upper : prior + (1 - prior) * this.advantage().upper;
    return { lower: Math.min(lower, most), estimate: Math.min(estimate, most), upper: Math.min(upper, most) };
  }

  tpr(fpr) {
    const { lower, estimate, upper } = this.all.tpr(fpr), most = Math.min(1, fpr + this.advantage().upper);
    return { lower: Math.min(lower, most), estimate: Math.min(estimate, most), upper: Math.min(upper, most) };
  }

  epsilon(delta) { return this.advantage().upper <= delta ? { lower: 0, estimate: 0, upper: 0 } : this.all.epsilon(delta); }
}
