import { drawEpochs, drawTradeoff } from "./charts.js";
import { KNOBS, DIALS, limitOf, isSlow, takes, SOMETIMES, shortOf, titleOf, fromAddress, toAddress, question, targetOf, place, valueAt, problemsOf } from "./state.js";
import { down, up, percent } from "./rounding.js";
import { get, loadPlotly, SOURCE } from "./answers.js";
import { Latest } from "./asking.js";
import { Pins } from "./pins.js";
import { offerToTake } from "./taking.js";
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const state = fromAddress();
const shown = { answer: null, epochs: null, tradeoff: null, others: null }; // what was answered last
// The number and its sentence need these metrics, which are quick; the trade-off curve has the next two; others wait until no slider moves.
const QUICK_METRICS = ["bayes_security", "advantage", "success"], OF_CURVE = ["tpr", "epsilon"];
const OTHERS = Object.keys(WORDS.metrics).filter((name) => ![...QUICK_METRICS, ...OF_CURVE, ...SOURCE.lacks.metrics].includes(name));
let version = 0; // grows with every change
let oldest = 0; // answers to changes before this one are not shown: something was not allowed since
const ROUGH = 0.1; // tolerance of an answer that is there at once
// Milliseconds: no slider has moved; a number that is not renewed looks old; between curves, so that the number comes first.
const REST = 300, LATE = 300, PAUSE = 50;

const inWords = (text) => Object.entries(KNOBS).reduce((said, [name, knob]) => said.replaceAll(knob.api, name), text);

// ---- asking: one question of each kind at a time, the newest next. Every answer is shown: it is newer than the one before.
// The method that was chosen; otherwise exact, except for a target that would take long: the API chooses its method.
function ask(asked, metrics) {
  const query = question(asked);
  if (asked.solve) query.set("target", targetOf(asked));
  const slow = isSlow(asked) && asked.solve && !QUICK_METRICS.includes(asked.target);
  if (asked.method || !slow) query.set("method", asked.method || "exact");
  for (const metric of metrics) query.append("metric", metric);
  return [asked.solve ? "calibrate" : "analyze", query];
}

// A bound that takes milliseconds, where the real answer takes long: valid, too, but wider.
const isRough = (asked) => SOURCE.rough && isSlow(asked) && !asked.method;

const number = new Latest(async (now, asked) => {
  const [path, query] = ask(asked, QUICK_METRICS);
  if (isRough(asked)) query.set("tolerance", ROUGH);
  showAnswer(now, asked, await get(path, query), isRough(asked));
}, complain);

async function drawCurves(now, asked, rest) {
  const query = question(asked);
  if (rest) query.set("rest", "true");
  // Both at once: one is computed while the other is drawn.
  await Promise.all([["epochs", showEpochs], ["tradeoff", showTradeoff]].map(async ([kind, draw]) => {
    const chart = $(`${kind}-chart`);
    // What is drawn already is of a later change, or of this one and finer.
    const late = () => now < Number(chart.dataset.version) || (!rest && chart.dataset.rest === "true" && now === Number(chart.dataset.version));
    try {
      const data = await get(kind, query);
      if (now < oldest || late()) return;
      shown[kind] = data;
      await loadPlotly();
      draw();
    } catch (problem) { // the number stands without its curves
      if (now !== version || now < oldest || late()) return;
      empty(kind, inWords(problem.message));
    }
    chart.dataset.version = now;
    chart.dataset.rest = rest;
    renewed(chart.id);
  }));
}
const curves = new Latest((now, asked) => drawCurves(now, asked, false), complain, PAUSE);
const leisure = new Latest(async (now, asked) => {
  if (isRough(asked)) {
    const [path, query] = ask(asked, QUICK_METRICS);
    query.set("rest", "true");
    try { showAnswer(now, asked, await get(path, query), false); } catch { /* too slow: the rough answer stands, and says so */ }
  }
  const found = { ...asked, solve: "", ...(asked.solve && { [asked.solve]: state[asked.solve] }) };
  if (now === version) await drawCurves(now, found, true);
  if (now === version) await showOthers(now, found);
}, complain);

// By the method that was chosen, or by the API's own choice.
async function showOthers(now, asked) {
  if (!OTHERS.length) return;
  const query = question(asked);
  if (asked.method) query.set("method", asked.method);
  query.set("rest", "true");
  for (const metric of OTHERS) query.append("metric", metric);
  try {
    const answer = await get("analyze", query);
    if (now === version) shown.others = answer;
  } catch { return; } // too slow: the rows stay away
  showMetrics();
}

// ---- showing
// A text, in which what stands between backticks is code.
function write(id, text) {
  $(id).replaceChildren(...text.split("`").map((part, i) => (i % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part)));
}

// What was answered before does not belong to a setting that is not allowed, or has no answer: nothing of it stays.
function complain(now, text) {
  if (now !== version) return;
  oldest = now + 1;
  Object.assign(shown, { answer: null, epochs: null, tradeoff: null, others: null });
  write("problem", inWords(text));
  $("problem").hidden = false;
  $("beta").textContent = "–";
  for (const id of ["sentence", "heuristic", "band", "certainty"]) $(id).textContent = "";
  for (const id of ["assumptions", "metrics"]) $(id).replaceChildren();
  for (const kind of ["epochs", "tradeoff"]) empty(kind, "");
}

function empty(kind, note) {
  shown[kind] = null;
  $(`${kind}-chart`).classList.add("void");
  $(`${kind}-note`).textContent = note;
}

// What is not renewed in time looks old.
let aging = 0;
function age() {
  aging ||= setTimeout(() => {
    aging = 0;
    const of = { beta: "beta", sentence: "beta", "epochs-chart": "epochs-chart", "tradeoff-chart": "tradeoff-chart" };
    for (const [id, dated] of Object.entries(of)) $(id).classList.toggle("late", version >= oldest && $(dated).dataset.version !== String(version));
  }, LATE);
}
function renewed(...ids) {
  clearTimeout(aging);
  aging = 0;
  for (const id of ids) $(id).classList.remove("late");
  age();
}

function showAnswer(now, asked, answer, rough) {
  const { version: newest = 0, rough: unfinished } = $("beta").dataset;
  if (now < oldest || now < Number(newest) || (now === Number(newest) && rough && unfinished === "false")) return;
  shown.answer = answer;
  if (answer.found && asked.solve === state.solve) {
    const [api, value] = Object.entries(answer.found)[0];
    const name = Object.keys(KNOBS).find((name) => KNOBS[name].api === api);
    state[name] = value;
    fillKnob(name);
    if (now === version) askCurves(now, { ...asked, [name]: value }); // they need what was found
  }
  $("problem").hidden = true;
  const beta = answer.bayes_security.lower;
  $("beta").textContent = (rough || answer.at_least ? "≥ " : "") + down(beta);
  $("beta").dataset.version = now;
  $("beta").dataset.rough = rough;
  renewed("beta", "sentence");
  $("sentence").textContent = answer.sentence;
  $("heuristic").hidden = !answer.final_model;
  $("heuristic").textContent = answer.final_model ? answer.final_model.sentence : "";
  write("certainty", answer.certainty);
  $("assumptions").replaceChildren(...answer.assumptions.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  showBand();
  showMetrics();
}

function showBand() {
  const beta = shown.answer?.bayes_security.lower, bad = ["strong", "moderate"].find((id) => !(state[id] >= 0 && state[id] <= 1));
  if (beta === undefined) return;
  if (bad || state.moderate > state.strong) {
    $("band").className = "";
    $("band").textContent = bad ? `no band: “${bad}” must start at a number from 0 to 1` : "no band: “moderate” must start below “strong”";
    return;
  }
  const word = beta >= state.strong ? "strong" : beta >= state.moderate ? "moderate" : "weak";
  $("band").className = word;
  $("band").textContent = `${word} (example: ${{ strong: `≥ ${state.strong}`, moderate: `${state.moderate} – ${state.strong}`, weak: `< ${state.moderate}` }[word]})`;
}

function showMetrics() {
  const rows = [];
  if (shown.answer) {
    const { parameters, advantage } = shown.answer;
    rows.push([titleOf("advantage", state), up(advantage.upper)]);
    rows.push([WORDS.parameters.steps.label, parameters.steps.toLocaleString("en")], [WORDS.parameters.sample_rate.label, Number(parameters.sample_rate.toPrecision(3))]);
  }
  if (shown.tradeoff) {
    rows.splice(1, 0, [shortOf("tpr", state), percent(shown.tradeoff.tpr[0].upper, 2)], [shortOf("epsilon", state), up(shown.tradeoff.epsilon[0].upper)]);
  }
  for (const metric of shown.others ? OTHERS : []) rows.push([titleOf(metric, state), reliedOn(metric, shown.others[metric])]);
  $("metrics").replaceChildren(...rows.map(([term, value]) => {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), { textContent: term }), Object.assign(document.createElement("dd"), { textContent: value }));
    return row;
  }));
}

// The number to rely on, rounded to the safe side.
function reliedOn(metric, answer) {
  const { end, share } = WORDS.metrics[metric], value = (Array.isArray(answer) ? answer[0] : answer)[end];
  if (value === null) return up(value);
  return end === "lower" ? down(value) : share ? percent(value, 2) : up(value);
}

function showEpochs() {
  if (!shown.epochs || !window.Plotly) return;
  $("epochs-chart").classList.remove("void");
  drawEpochs($("epochs-chart"), shown.epochs, state);
  const { exact, band, at_least: bound } = shown.epochs, words = exact.length ? [bound ? "Line: β* is at least this" : "Line: exact"] : [];
  if (band) words.push(band.method === "certified" ? "shaded: certified, proved from both sides" : "shaded: proved by a closed form, wide");
  if (shown.epochs.paper.length) words.push("dotted: the paper's closed form");
  $("epochs-note").textContent = [...words, "dashed: the limits of the bands"].join("; ") + ".";
}

function showTradeoff() {
  if (!shown.tradeoff || !window.Plotly) return;
  $("tradeoff-chart").classList.remove("void");
  drawTradeoff($("tradeoff-chart"), shown.tradeoff, state);
  showMetrics();
  const { tpr: [point], method = "certified" } = shown.tradeoff, sure = { certified: "Certified", exact: "Exact", bound: "A bound" }[method];
  $("tradeoff-note").textContent = `${sure}: with ${Number((100 * point.fpr).toPrecision(3))} % false alarms, at most ${percent(point.upper, 2)} of the true cases are found. Dotted: guessing.`;
}

// ---- asking after a change
let resting = 0, addressing = 0;
function changed() {
  version += 1;
  shown.others = null;
  document.body.dataset.version = version;
  const problems = problemsOf(state);
  if (problems.length) return complain(version, problems.join(" "));
  const now = version, asked = { ...state };
  age();
  number.push(now, asked);
  if (!asked.solve) askCurves(now, asked);
  clearTimeout(addressing);
  addressing = setTimeout(() => history.replaceState(null, "", toAddress(state)), 150);
}

function askCurves(now, asked) {
  curves.push(now, { ...asked, solve: "" });
  clearTimeout(resting);
  resting = setTimeout(() => { if (now === version && now >= oldest) leisure.push(now, asked); }, REST);
}

// ---- controls
function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function fillKnob(name) {
  const dial = { ...KNOBS, ...DIALS }[name], field = $(name), slider = $(`${name}-slider`);
  if (!Number.isFinite(Number(state[name]))) return; // what stands in the field is no number
  if (document.activeElement !== field) field.value = dial.whole ? state[name] : state.solve === name ? up(Number(state[name]), 6) : String(Number(state[name]));
  slider.value = place(dial, state[name]);
  slider.setAttribute("aria-valuetext", field.value);
}

// NaN for a field that holds no number.
const numberIn = (field) => (field.value === "" ? NaN : Number(field.value));

// A “?” beside the label of a control, which shows what words.js says of it.
function offerHelp(name, text) {
  const help = Object.assign(document.createElement("span"), { id: `${name}-help`, className: "hint help", hidden: true, textContent: text });
  const button = element(`<button type="button" class="ask" aria-expanded="false" aria-controls="${name}-help">?</button>`);
  button.setAttribute("aria-label", `What is ${document.querySelector(`label[for="${name}"]`).textContent}?`);
  button.addEventListener("click", () => { help.hidden = !help.hidden; button.setAttribute("aria-expanded", !help.hidden); });
  $(name).setAttribute("aria-describedby", help.id);
  const label = document.querySelector(`label[for="${name}"]`);
  label.after(button);
  ($(`${name}-knob`) ?? { append: (one) => button.after(one) }).append(help);
}

function makeKnob(name, dial, parent, solvable) {
  const knob = element(`<div class="knob" id="${name}-knob"><span class="named"><label for="${name}">${dial.label}</label></span>
    <input id="${name}" type="number" step="any" min="0" inputmode="decimal">
    ${solvable ? `<button type="button" aria-pressed="false" aria-label="Find ${dial.label} from a target" id="${name}-find">find</button>` : "<span></span>"}
    <input id="${name}-slider" type="range" min="0" max="1000" aria-label="${dial.label}"></div>`);
  parent.append(knob);
  offerHelp(name, dial.help);
  $(name).addEventListener("input", () => {
    state[name] = numberIn($(name));
    if (state[name] > 0) $(`${name}-slider`).value = place(dial, state[name]);
    changed();
  });
  $(name).addEventListener("blur", () => fillKnob(name));
  $(`${name}-slider`).addEventListener("input", () => {
    state[name] = valueAt(dial, Number($(`${name}-slider`).value));
    fillKnob(name);
    changed();
  });
  if (solvable) $(`${name}-find`).addEventListener("click", () => { state.solve = state.solve === name ? "" : name; fillAll(); changed(); });
}

function fillAll() {
  for (const name of [...Object.keys(KNOBS), ...Object.keys(DIALS)]) fillKnob(name);
  for (const name of Object.keys(KNOBS)) {
    const solved = state.solve === name;
    $(`${name}-find`).setAttribute("aria-pressed", solved);
    $(name).readOnly = solved;
    $(`${name}-slider`).disabled = solved;
    $(`${name}-knob`).classList.toggle("solved", solved);
  }
  $("goal").hidden = !state.solve;
  for (const name of SOMETIMES) {
    const knob = $(`${name}-knob`), shown = takes(state, DIALS[name].api) && !SOURCE.lacks.parameters.includes(DIALS[name].api);
    knob.hidden = !shown;
    knob.style.display = shown ? "" : "none";
  }
  for (const option of $("target").options) option.textContent = `${shortOf(option.value, state)} ${WORDS.metrics[option.value].sign === ">=" ? "≥" : "≤"}`;
  for (const id of ["threat", "method", "sampling", "sees", "target", "limit", "strong", "moderate"]) $(id).value = state[id];
  $("log").checked = state.log;
  for (const [id, words] of [["method", WORDS.methods], ["sampling", WORDS.samplings]]) $(`${id}-summary`).textContent = words.find(({ name }) => name === state[id])?.summary ?? "";
}

function choices(id, pairs) {
  $(id).append(...pairs.map(([value, textContent]) => Object.assign(document.createElement("option"), { value, textContent })));
}
choices("threat", WORDS.threats.map(({ name, question }) => [name, question]));
choices("sampling", WORDS.samplings.map(({ name }) => [name, name]));
choices("sees", WORDS.sees.map(({ name, summary }) => [name, summary]));
choices("method", [["", "the usual method"], ...WORDS.methods.map(({ name }) => [name, name])]);
choices("target", Object.keys(WORDS.metrics).map((name) => [name, name]));
const { threats, samplings, sees, methods, metrics } = SOURCE.lacks;
for (const [id, lacked] of Object.entries({ threat: threats, sampling: samplings, sees, method: methods, target: metrics })) {
  for (const value of lacked) $(id).querySelector(`[value="${value}"]`).disabled = true;
}
for (const [name, help] of Object.entries(WORDS.selectors)) offerHelp(name, help);
$("caption").textContent = titleOf("bayes_security", state);
$("meaning").textContent = WORDS.metrics.bayes_security.meaning;
write("lacks", SOURCE.lacks.sentence);
$("origin").innerHTML = SOURCE.origin;
for (const [name, knob] of Object.entries(KNOBS)) makeKnob(name, knob, $("training"), true);
for (const [name, dial] of Object.entries(DIALS)) makeKnob(name, dial, $(dial.api === "max_batch_size" ? "training" : "attack"), false);
$("training").append($("sampling-choice"), $(`${SOMETIMES[0]}-knob`)); // below the sliders
for (const id of ["sampling", "sees"]) $(id).addEventListener("change", () => { state[id] = $(id).value; fillAll(); changed(); });
$("threat").addEventListener("change", () => { state.threat = $("threat").value; fillAll(); changed(); });
$("method").addEventListener("change", () => { state.method = $("method").value; fillAll(); changed(); });
$("target").addEventListener("change", () => { state.target = $("target").value; state.limit = limitOf(state.target); fillAll(); changed(); });
$("limit").addEventListener("input", () => { state.limit = numberIn($("limit")); changed(); });
for (const id of ["strong", "moderate"]) $(id).addEventListener("input", () => {
  state[id] = numberIn($(id));
  showBand(); showEpochs();
  history.replaceState(null, "", toAddress(state));
});
$("log").addEventListener("change", () => { state.log = $("log").checked; showTradeoff(); history.replaceState(null, "", toAddress(state)); });

const pins = new Pins(state, shown, ask, () => { showEpochs(); showTradeoff(); });
offerToTake(shown, () => new URL(toAddress(state), location.href).href);

// ---- light and dark
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  document.documentElement.style.colorScheme = name;
  showEpochs(); showTradeoff(); pins.show();
}
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));

theme(dark.matches ? "dark" : "light");
fillAll();
changed();
loadPlotly().then(() => { showEpochs(); showTradeoff(); });
for (const pin of state.pins) pins.fill(pin);
