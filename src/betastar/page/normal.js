// The normal distribution, to rounding.

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

export const erf = (x) => (Math.abs(x) < SERIES_UNTIL ? erfSeries(x) : Math.sign(x) * (1 - erfc(Math.abs(x))));

export function erfc(x) {
  if (x < SERIES_UNTIL) return x > -SERIES_UNTIL ? 1 - erfSeries(x) : 2 - erfc(-x);
  return Math.exp(-x * x) * scaledErfc(x);
}

// Pr[N(0, 1) ≤ x], and its logarithm.
export const below = (x) => 0.5 * erfc(-x * Math.SQRT1_2);

export function logBelow(x) {
  const at = -x * Math.SQRT1_2;
  return at < SERIES_UNTIL ? Math.log(0.5 * erfc(at)) : Math.log(0.5 * scaledErfc(at)) - at * at;
}
