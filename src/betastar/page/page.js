// What the page shows, and what happens when somebody moves a slider or writes into a field.
"use strict";

const $ = (id) => document.getElementById(id);
const state = fromAddress();
const shown = { answer: null, epochs: null, tradeoff: null }; // what was answered last
let version = 0; // grows with every change
let oldest = 0; // answers to changes before this one are not shown: the setting has had no answer since
// Milliseconds: no slider has moved; a number that is not renewed looks old; between curves, so that the number comes first.
const REST = 300, LATE = 300, PAUSE = 50;

// One computation at a time: meanwhile only the newest of the others is kept, and done next. So a slider that moves fast asks no more than
// can be answered, and each answer is newer than the one before.
class Latest {
  // work: computes and shows, given (version, …); failed: is given (version, what was wrong, …); pause: milliseconds in between.
  constructor(work, failed, pause = 0) { Object.assign(this, { work, failed, pause, busy: false, next: null }); }

  push(...job) {
    this.next = job;
    if (!this.busy) this.run();
  }

  async run() {
    this.busy = true;
    while (this.next) {
      const [now, ...job] = this.next;
      this.next = null;
      try { await this.work(now, ...job); } catch (problem) { this.failed(now, problem.message, ...job); }
      if (this.pause) await new Promise((later) => setTimeout(later, this.pause));
    }
    this.busy = false;
  }
}

// ---- the number and the curves
const number = new Latest(async (now, asked) => {
  if (!asked.solve) return showAnswer(now, analyzed(asked));
  const found = { ...asked, [asked.solve]: await calibrated(asked) };
  if (asked.solve !== state.solve) return undefined;
  state[asked.solve] = found[asked.solve];
  fillKnob(asked.solve);
  showAnswer(now, analyzed(found));
  if (now === version) askCurves(now, found); // they need what was found
  return undefined;
}, (now, text, asked) => {
  if (now !== version) return;
  if (asked.sampling !== "poisson") noAnswer(now, text);
  else showProblems({ limit: text }); // a target that nothing meets: what was shown stays
});

async function drawCurves(now, asked, rest) {
  await Promise.all([["epochs", overEpochs, showEpochs], ["tradeoff", tradeoffOf, showTradeoff]].map(async ([kind, compute, draw]) => {
    const chart = $(`${kind}-chart`);
    // What is drawn already is of a later change, or of this one and finer.
    const late = () => now < Number(chart.dataset.version) || (!rest && chart.dataset.rest === "true" && now === Number(chart.dataset.version));
    const data = await compute(asked, rest);
    if (now < oldest || late()) return;
    shown[kind] = data;
    await loadPlotly();
    draw();
    chart.dataset.version = now;
    chart.dataset.rest = rest;
    renewed(chart.id);
  }));
}
const curvesNow = new Latest((now, asked) => drawCurves(now, asked, false), () => {}, PAUSE);
const curvesAtRest = new Latest((now, asked) => drawCurves(now, asked, true), () => {});

// The script is part of this file, as text: the first number does not wait for it.
let plotly = null;
const parsed = () => new Promise((done) => (document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", done) : done()));
const loadPlotly = () => (plotly ??= pause().then(parsed).then(pause).then(() => {
  document.head.append(Object.assign(document.createElement("script"), { textContent: $("plotly").textContent }));
}));

// ---- showing
// A text, in which what stands between backticks is code.
function write(id, text) {
  $(id).replaceChildren(...text.split("`").map((part, i) => (i % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part)));
}

// The page does not compute this setting: nothing of another one stays.
function noAnswer(now, text) {
  oldest = now + 1;
  Object.assign(shown, { answer: null, epochs: null, tradeoff: null });
  write("problem", text);
  $("problem").hidden = false;
  $("beta").textContent = "–";
  for (const id of ["sentence", "band", "certainty"]) $(id).textContent = "";
  for (const id of ["assumptions", "metrics"]) $(id).replaceChildren();
  $("answer").classList.add("void");
}

// What is not renewed in time looks old.
let aging = 0;
function age() {
  aging ||= setTimeout(() => {
    aging = 0;
    const of = { beta: "beta", sentence: "beta", "epochs-chart": "epochs-chart", "tradeoff-chart": "tradeoff-chart" };
    for (const [id, dated] of Object.entries(of)) $(id).classList.toggle("late", version >= oldest && !hasProblems() && $(dated).dataset.version !== String(version));
  }, LATE);
}
function renewed(...ids) {
  clearTimeout(aging);
  aging = 0;
  for (const id of ids) $(id).classList.remove("late");
  age();
}

function showAnswer(now, answer) {
  if (now < oldest || now < Number($("beta").dataset.version ?? 0)) return;
  shown.answer = answer;
  $("problem").hidden = true;
  $("answer").classList.remove("void");
  $("beta").textContent = (answer.at_least ? "≥ " : "") + down(answer.bayes_security.lower);
  $("beta").dataset.version = now;
  renewed("beta", "sentence");
  $("sentence").textContent = answer.sentence;
  write("certainty", answer.certainty);
  $("assumptions").replaceChildren(...answer.assumptions.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  showBand();
  showMetrics();
}

function showBand() {
  const beta = shown.answer?.bayes_security.lower;
  if (beta === undefined) return;
  const word = beta >= state.strong ? "strong" : beta >= state.moderate ? "moderate" : "weak";
  $("band").className = word;
  $("band").textContent = `${word} (example: ${{ strong: `≥ ${state.strong}`, moderate: `${state.moderate} – ${state.strong}`, weak: `< ${state.moderate}` }[word]})`;
}

function showMetrics() {
  const rows = [];
  if (shown.answer) rows.push(["advantage", up(shown.answer.advantage.upper)]);
  if (shown.tradeoff) rows.push([`TPR at FPR ${plain(shown.tradeoff.tpr.fpr)}`, percent(shown.tradeoff.tpr.upper, 2)], [`ε at δ ${plain(DELTA)}`, up(shown.tradeoff.epsilon)]);
  if (shown.answer) rows.push(["steps", stepsOf(state).toLocaleString("en")], ["sampling rate", Number(rateOf(state).toPrecision(3))]);
  $("metrics").replaceChildren(...rows.map(([term, value]) => {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), { textContent: term }), Object.assign(document.createElement("dd"), { textContent: value }));
    return row;
  }));
}

function showEpochs() {
  if (!shown.epochs || !window.Plotly) return;
  drawEpochs($("epochs-chart"), shown.epochs, state);
  $("epochs-note").textContent = `Line: ${shown.epochs.at_least ? "β* is at least this" : "exact"}; ${shown.epochs.paper.length ? "dotted: the paper's closed form; " : ""}dashed: the limits of the bands.`;
}

function showTradeoff() {
  if (!shown.tradeoff || !window.Plotly) return;
  drawTradeoff($("tradeoff-chart"), shown.tradeoff, state);
  showMetrics();
  const { tpr, at_least: bound } = shown.tradeoff;
  $("tradeoff-note").textContent = `${bound ? "A bound" : "Exact"}: with ${percentOf(Number(tpr.fpr.toPrecision(3)))} false alarms, at most ${percent(tpr.upper, 2)} of the true cases are found. Dotted: guessing.`;
}

// ---- after a change
let resting = 0, addressing = 0;
function changed() {
  version += 1;
  document.body.dataset.version = version;
  const now = version, asked = { ...state };
  age();
  number.push(now, asked);
  if (!asked.solve) askCurves(now, asked);
  clearTimeout(addressing);
  addressing = setTimeout(() => history.replaceState(null, "", toAddress(state)), 150);
}

function askCurves(now, asked) {
  if (asked.sampling !== "poisson") return;
  curvesNow.push(now, asked);
  clearTimeout(resting);
  resting = setTimeout(() => { if (now === version && now >= oldest) curvesAtRest.push(now, asked); }, REST);
}

const FIELDS = [...Object.keys(KNOBS), "limit"];
const hasProblems = () => document.querySelector("[aria-invalid=true]") !== null;

// Beside each field what is wrong with it.
function showProblems(problems) {
  for (const name of FIELDS) {
    write(`${name}-problem`, problems[name] ?? "");
    $(name).setAttribute("aria-invalid", name in problems);
  }
  $("stale").hidden = Object.keys(problems).length === 0;
}

// Take over what the fields hold; if one holds something wrong, everything stays as it was.
function entered(last) {
  const { setting, problems } = readEntries(state, Object.fromEntries(FIELDS.map((name) => [name, $(name).value])), last);
  showProblems(problems);
  if (hasProblems()) return;
  Object.assign(state, setting);
  changed();
}

// ---- controls
function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function fillKnob(name) {
  const knob = KNOBS[name], field = $(name), slider = $(`${name}-slider`);
  if (document.activeElement !== field && field.getAttribute("aria-invalid") !== "true") field.value = state.solve === name && !knob.whole ? up(state[name], 6) : String(state[name]);
  slider.value = placeOf(knob, state[name]);
  slider.setAttribute("aria-valuetext", state[name]);
}

function makeKnob(name, knob) {
  $(knob.find || name === "trials" ? "training" : "attack").append(element(`<div class="knob" id="${name}-knob"><span class="named"><label for="${name}">${knob.label}</label><button type="button" class="ask" aria-expanded="false" aria-controls="${name}-help" aria-label="What is ${knob.label}?">?</button></span>
    <input id="${name}" type="text" inputmode="decimal" aria-describedby="${name}-help ${name}-problem">
    ${knob.find ? `<button type="button" aria-pressed="false" aria-label="Find ${knob.label} from a target" id="${name}-find">find</button>` : "<span></span>"}
    <input id="${name}-slider" type="range" min="0" max="1000" aria-label="${knob.label}">
    <p class="wrong" id="${name}-problem" role="alert"></p><span id="${name}-help" class="hint help" hidden>${knob.help}</span></div>`));
  $(name).addEventListener("input", () => { entered(name); if (!hasProblems()) $(`${name}-slider`).value = placeOf(knob, state[name]); });
  $(name).addEventListener("blur", () => fillKnob(name));
  $(`${name}-slider`).addEventListener("input", () => {
    const value = valueAt(knob, Number($(`${name}-slider`).value));
    $(name).value = value;
    $(`${name}-slider`).setAttribute("aria-valuetext", value);
    entered(name);
  });
  if (knob.find) $(`${name}-find`).addEventListener("click", () => { state.solve = state.solve === name ? "" : name; chosen(); });
}

function fillAll() {
  for (const [name, knob] of Object.entries(KNOBS)) {
    fillKnob(name);
    $(`${name}-knob`).hidden = Boolean(knob.only) && knob.only !== state.threat;
    if (!knob.find) continue;
    const solved = state.solve === name;
    $(`${name}-find`).setAttribute("aria-pressed", solved);
    $(name).readOnly = solved;
    $(`${name}-slider`).disabled = solved;
    $(`${name}-knob`).classList.toggle("solved", solved);
  }
  $("goal").hidden = !state.solve;
  for (const option of $("target").options) {
    const { label, sign, at } = TARGETS[option.value];
    option.textContent = `${label}${at && at !== "prior" ? ` at ${{ fpr: "FPR", delta: "δ" }[at]} ${plain(givenOf(state, option.value))}` : ""} ${sign === ">=" ? "≥" : "≤"}`;
  }
  for (const id of ["threat", "sampling", "target", "strong", "moderate"]) $(id).value = state[id];
  if ($("limit").getAttribute("aria-invalid") !== "true") $("limit").value = state.limit;
  $("log").checked = state.log;
  $("sampling-summary").textContent = SAMPLINGS[state.sampling];
}

// After a choice that no entry can make wrong: fields that it hides or fills are no longer wrong.
function chosen() {
  showProblems({});
  fillAll();
  entered();
}

for (const [name, knob] of Object.entries(KNOBS)) makeKnob(name, knob);
for (const button of document.querySelectorAll("button.ask")) button.addEventListener("click", () => {
  const help = $(button.getAttribute("aria-controls"));
  help.hidden = !help.hidden;
  button.setAttribute("aria-expanded", !help.hidden);
});
$("training").append($("sampling-choice")); // below the sliders
for (const id of ["sampling", "threat"]) $(id).addEventListener("change", () => { state[id] = $(id).value; chosen(); });
$("target").addEventListener("change", () => { state.target = $("target").value; state.limit = TARGETS[state.target].limit; chosen(); });
$("limit").addEventListener("input", () => entered("limit"));
$("limit").addEventListener("blur", fillAll);
for (const id of ["strong", "moderate"]) $(id).addEventListener("input", () => {
  const [strong, moderate] = ["strong", "moderate"].map((one) => numberIn($(one).value, true));
  const good = moderate >= 0 && strong <= 1 && moderate <= strong;
  $("bands-problem").textContent = good ? "" : "The bands must start at probabilities from 0 to 1, such as 0.9 or 90 %, moderate not above strong.";
  if (!good) return;
  Object.assign(state, { strong, moderate });
  showBand(); showEpochs();
  history.replaceState(null, "", toAddress(state));
});
$("log").addEventListener("change", () => { state.log = $("log").checked; showTradeoff(); history.replaceState(null, "", toAddress(state)); });

// ---- pins: settings to compare, each a row of the table and a line of each chart
const MOST_PINS = 4;

function nameOf({ threat, distance, noise, batch, epochs, records, trials }) {
  const attack = threat === "membership" ? "" : `, ${threat}`;
  return `noise ${Number(noise.toPrecision(4))}, batch ${batch}, ${epochs} epochs, ${records} records${trials === 1 ? "" : `, best of ${trials}`}${attack}${threat === "attribute" ? `, distance ${distance}` : ""}`;
}

function showPins() {
  $("pins").hidden = !state.pins.length;
  $("pins").querySelector("tbody").replaceChildren(...state.pins.map((pin, i) => {
    const { name, answer, tradeoff } = pin, row = document.createElement("tr");
    row.style.setProperty("--dot", pinColour(i));
    const cells = [name, answer ? down(answer.bayes_security.lower) : "…", answer ? percent(answer.success.upper, 2) : "…",
      tradeoff ? `${percent(tradeoff.tpr.upper, 2)} at ${tradeoff.tpr.fpr}` : "…", tradeoff ? up(tradeoff.epsilon) : "…"];
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "×", ariaLabel: `Remove ${name}` });
    button.addEventListener("click", () => {
      state.pins.splice(state.pins.indexOf(pin), 1);
      history.replaceState(null, "", toAddress(state));
      showPins(); showEpochs(); showTradeoff();
    });
    row.insertCell().append(button);
    return row;
  }));
}

async function fillPin(pin) {
  pin.name = nameOf(pin.setting);
  try {
    pin.answer = analyzed(pin.setting);
    pin.epochs = await overEpochs(pin.setting, false);
    pin.tradeoff = await tradeoffOf(pin.setting, false);
  } catch (problem) { pin.name += ` (${problem.message})`; }
  showPins(); showEpochs(); showTradeoff();
}

$("pin").addEventListener("click", () => {
  if (!shown.answer) return;
  const { pins, ...setting } = state, pin = { setting: { ...setting, solve: "" } };
  if (pins.length === MOST_PINS) pins.shift();
  pins.push(pin);
  history.replaceState(null, "", toAddress(state));
  fillPin(pin);
});

// ---- what a person takes along: a link, Python code, a command, and the curves as CSV and SVG
function say(text) {
  $("done").textContent = text;
  setTimeout(() => { $("done").textContent = ""; }, 3000);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied.`);
  } catch {
    window.prompt("Copy it from here:", text);
  }
}

$("share").addEventListener("click", () => copy(new URL(toAddress(state), location.href).href, "Link"));
$("python").addEventListener("click", () => copy(pythonOf(state), "Python"));
$("command").addEventListener("click", () => copy(copiedCommand(state), "Command"));
for (const kind of ["epochs", "tradeoff"]) {
  $(`${kind}-svg`).addEventListener("click", () => (shown[kind] ? svg($(`${kind}-chart`), `betastar-${kind}`) : say("There is no curve to save.")));
  $(`${kind}-csv`).addEventListener("click", () => {
    if (!shown[kind]) return say("There is no curve to save.");
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([csv(kind, shown[kind])], { type: "text/csv" })), download: `betastar-${kind}.csv` });
    link.click();
    return setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

// ---- light and dark
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  document.documentElement.style.colorScheme = name;
  showEpochs(); showTradeoff(); showPins();
}
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));

theme(dark.matches ? "dark" : "light");
fillAll();
entered();
loadPlotly().then(() => { showEpochs(); showTradeoff(); });
for (const pin of state.pins) fillPin(pin);
