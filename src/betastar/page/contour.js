// Inversion of the composed transform M(z)^T (betastar/bounds/contour.py has the formulas):
//   (1/2πi) ∫ M^T e^{(1-z)τ} / (z(z-1)) dz = H on Re z = θ > 1, H - 1 for 0 < θ < 1;   (1/2πi) ∫ M^T e^{(1-z)τ} / z dz = e^τ Q(L > τ)
// with H = H_{e^τ}(P‖Q), the hockey-stick divergence at the threshold τ of the total privacy loss L.
import { log1p } from "./transform.js";

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
export class Composition {
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
