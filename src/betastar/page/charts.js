// The two charts. Colours are those of the page, read when a chart is drawn.
"use strict";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const pinColour = (i) => colour(`pin${(i % 4) + 1}`);
const CONFIG = { displayModeBar: false, responsive: true };

function layoutOf(x, y, extra = {}) {
  const axis = { gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, ticks: "", automargin: true, fixedrange: true };
  return {
    margin: { l: 48, r: 12, t: 8, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("soft") },
    xaxis: { ...axis, ...x, title: { text: x.title } }, yaxis: { ...axis, ...y, title: { text: y.title } },
    hovermode: "x unified", hoverlabel: { bgcolor: colour("card"), font: { color: colour("ink") } },
    ...extra,
  };
}

function trace(points, x, y, name, style) {
  const { color, dash = "solid", width = 2, ...more } = style;
  return { x: points.map((p) => p[x]), y: points.map((p) => p[y]), name, mode: "lines", line: { color, dash, width }, ...more };
}

function drawEpochs(element, data, state) {
  const main = colour("accent"), paper = colour("other"), traces = [];
  traces.push(trace(data.exact, "at", "lower", data.at_least ? "β* is at least" : "exact", { color: main, width: 2.5, hovertemplate: "%{y:.5f}" }));
  traces.push(trace(data.paper, "at", "estimate", "paper's closed form", { color: paper, dash: "dot", hovertemplate: "%{y:.5f}" }));
  state.pins.forEach((pin, i) => {
    if (pin.epochs) traces.push(trace(pin.epochs.exact, "at", "lower", pin.name, { color: pinColour(i), width: 1.5, hovertemplate: "%{y:.5f}" }));
  });
  const low = Math.min(...traces.flatMap((trace) => trace.y));
  const from = Math.max(0, low - 0.08 * (1.002 - low));
  const shapes = [state.strong, state.moderate].filter((at) => at > from).map((at) => (
    { type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, line: { color: colour("soft"), width: 1, dash: "dash" } }));
  return Plotly.react(element, traces, layoutOf({ title: "epochs", rangemode: "tozero" }, { title: "β*", range: [from, 1 + 0.02 * (1 - from)] }, { shapes, showlegend: false }), CONFIG);
}

function drawTradeoff(element, data, state) {
  const main = colour("accent"), log = state.log, traces = [];
  const known = data.curve.some((p) => p.lower !== null);
  if (known) traces.push(trace(data.curve, "fpr", "lower", "an attack that exists", { color: main, width: 1, dash: "dash", hovertemplate: "%{y:.4g}" }));
  traces.push(trace(data.curve, "fpr", "upper", "no attack above", { color: main, width: 2.5, hovertemplate: "%{y:.4g}" }));
  traces.push(trace(data.curve, "fpr", "fpr", "guessing", { color: colour("soft"), dash: "dot", width: 1, hoverinfo: "skip" }));
  state.pins.forEach((pin, i) => {
    if (pin.tradeoff) traces.push(trace(pin.tradeoff.curve, "fpr", "upper", pin.name, { color: pinColour(i), width: 1.5, hovertemplate: "%{y:.4g}" }));
  });
  traces.push({ x: [data.tpr.fpr], y: [data.tpr.upper], mode: "markers", name: "at the chosen FPR", hoverinfo: "skip", marker: { size: 9, color: main, line: { color: colour("card"), width: 2 } } });
  const scale = log ? { type: "log", range: [-6, 0], dtick: 1, exponentformat: "power" } : { type: "linear", range: [0, 1] };
  return Plotly.react(element, traces, layoutOf({ ...scale, title: "false-positive rate" }, { ...scale, title: "true-positive rate" }, { showlegend: false }), CONFIG);
}

function csv(kind, data) {
  const rows = kind === "epochs"
    ? [["epochs", "method", "lower", "estimate", "upper"],
      ...data.exact.map((p) => [p.at, data.at_least ? "at least" : "exact", p.lower, "", ""]),
      ...data.paper.map((p) => [p.at, "paper", p.lower, p.estimate, p.upper])]
    : [["fpr", "tpr_lower", "tpr_estimate", "tpr_upper"], ...data.curve.map((p) => [p.fpr, p.lower ?? "", p.estimate ?? "", p.upper])];
  return rows.map((row) => row.join(",")).join("\n") + "\n";
}

const svg = (element, name) => Plotly.downloadImage(element, { format: "svg", filename: name, width: 900, height: 520 });
