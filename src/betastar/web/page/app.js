import { drawEpochs, drawTradeoff, csv, svg, pinColour } from "./charts.js";
import { KNOBS, DIALS, limitOf, isSlow, takes, takesDistance, SOMETIMES, shortOf, titleOf, fromAddress, toAddress, question, targetOf, place, valueAt } from "./state.js";
import { down, up, percent } from "./rounding.js";
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const state = fromAddress();
const shown = { answer: null, epochs: null, tradeoff: null, others: null }; // what the server said last
// The number and its sentence need these metrics, which are quick; the certified curve has the next two; others wait until no slider moves.
const QUICK_METRICS = ["bayes_security", "advantage", "success"], OF_CURVE = ["tpr", "epsilon"];
const OTHERS = Object.keys(WORDS.metrics).filter((name) => ![...QUICK_METRICS, ...OF_CURVE].includes(name));
let version = 0; // grows with every change; answers to older ones are not shown
const ROUGH = 0.01; // tolerance of an answer that is there at once
const QUICK = 60, REST = 300; // milliseconds: wait for the real answer before showing a rough one; no slider has moved

// ---- asking: one question at a time and kind, the newest next
class Latest {
  constructor(work) { this.work = work; this.busy = false; this.next = null; }
  push(...job) {
    this.next = job;
    if (!this.busy) this.run();
  }
  async run() {
    this.busy = true;
    while (this.next) {
      const job = this.next;
      this.next = null;
      try { await this.work(...job); } catch (problem) { complain(problem.message); }
    }
    this.busy = false;
  }
}

// A server with too many questions refuses, and says when to ask again.
async function get(path, query, tries = 5) {
  const response = await fetch(`api/${path}?${query}`);
  if (response.status === 503 && tries > 1) {
    await new Promise((later) => setTimeout(later, 1000 * response.headers.get("Retry-After")));
    return get(path, query, tries - 1);
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

const inWords = (text) => Object.entries(KNOBS).reduce((said, [name, knob]) => said.replaceAll(knob.api, name), text);

function complain(text) {
  $("problem").textContent = inWords(text);
  $("problem").hidden = false;
  for (const id of ["beta", "sentence", "epochs-chart", "tradeoff-chart"]) $(id).classList.add("late");
}

// The method that was chosen; otherwise exact, except for a target that would take long: the API chooses its method.
function ask(asked, metrics) {
  const query = question(asked);
  if (asked.solve) query.set("target", targetOf(asked));
  const slow = isSlow(asked) && asked.solve && !QUICK_METRICS.includes(asked.target);
  if (asked.method || !slow) query.set("method", asked.method || "exact");
  for (const metric of metrics) query.append("metric", metric);
  return [asked.solve ? "calibrate" : "analyze", query];
}

const number = new Latest(async (now, asked) => {
  const [path, query] = ask(asked, QUICK_METRICS);
  let done = false;
  if (isSlow(asked) && !asked.method) {
    // On a coarse grid: valid, too, and there at once, but wider.
    const rough = new URLSearchParams(query), since = performance.now();
    rough.set("tolerance", ROUGH);
    get(path, rough).then((answer) => setTimeout(() => {
      if (!done && now === version) showAnswer(now, answer, true);
    }, QUICK - (performance.now() - since)), () => {});
  }
  try {
    const answer = await get(path, query);
    if (now === version) showAnswer(now, answer, false);
  } finally { done = true; }
});

async function drawCurves(now, asked, rest) {
  const query = question(asked);
  if (rest) query.set("rest", "true");
  // Both at once: one is computed while the other is drawn.
  await Promise.all([["epochs", showEpochs], ["tradeoff", showTradeoff]].map(async ([kind, draw]) => {
    const chart = $(`${kind}-chart`);
    try {
      const data = await get(kind, query);
      if (now !== version) return;
      shown[kind] = data;
      draw();
    } catch (problem) { // the number stands without its curves
      if (now !== version) return;
      chart.classList.add("late");
      $(`${kind}-note`).textContent = inWords(problem.message);
    }
    chart.dataset.version = now;
    chart.dataset.rest = rest;
  }));
}
const curves = new Latest((now, asked) => drawCurves(now, asked, false));
const leisure = new Latest(async (now, asked) => {
  await drawCurves(now, asked, true);
  if (now === version) await showOthers(now, asked);
});

// By the method that was chosen, or by the API's own choice.
async function showOthers(now, asked) {
  const query = question(asked);
  if (asked.method) query.set("method", asked.method);
  for (const metric of OTHERS) query.append("metric", metric);
  try {
    const answer = await get("analyze", query);
    if (now === version) shown.others = answer;
  } catch { return; } // too slow: the rows stay away
  showMetrics();
}

// ---- showing
function showAnswer(now, answer, rough) {
  shown.answer = answer;
  if (answer.found) {
    const [api, value] = Object.entries(answer.found)[0];
    const name = Object.keys(KNOBS).find((name) => KNOBS[name].api === api);
    state[name] = value;
    fillKnob(name);
    if (!rough) askCurves(now); // they need what was found
  }
  $("problem").hidden = true;
  for (const id of ["beta", "sentence"]) $(id).classList.remove("late");
  const beta = answer.bayes_security.lower;
  $("beta").textContent = (rough ? "≥ " : "") + down(beta);
  $("beta").dataset.version = now;
  $("beta").dataset.rough = rough;
  $("sentence").textContent = answer.sentence;
  $("heuristic").hidden = !answer.final_model;
  $("heuristic").textContent = answer.final_model ? answer.final_model.sentence : "";
  $("certainty").textContent = answer.certainty;
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
  if (!shown.epochs) return;
  $("epochs-chart").classList.remove("late");
  drawEpochs($("epochs-chart"), shown.epochs, state);
  const words = shown.epochs.exact.length ? ["Line: exact"] : [];
  const band = shown.epochs.band;
  if (band) words.push(band.method === "certified" ? "shaded: certified, proved from both sides" : "shaded: proved by a closed form, wide");
  if (shown.epochs.paper.length) words.push("dotted: the paper's closed form");
  $("epochs-note").textContent = [...words, "dashed: the limits of the bands"].join("; ") + ".";
}

function showTradeoff() {
  if (!shown.tradeoff) return;
  $("tradeoff-chart").classList.remove("late");
  drawTradeoff($("tradeoff-chart"), shown.tradeoff, state);
  showMetrics();
  const point = shown.tradeoff.tpr[0];
  $("tradeoff-note").textContent = `Certified: with ${Number((100 * point.fpr).toPrecision(3))} % false alarms, at most ${percent(point.upper, 2)} of the true cases are found. Dotted: guessing.`;
}

// ---- asking after a change
let resting = 0, addressing = 0;
function changed() {
  version += 1;
  shown.others = null;
  document.body.dataset.version = version;
  const now = version, asked = { ...state };
  number.push(now, asked);
  if (!asked.solve) askCurves(now);
  clearTimeout(addressing);
  addressing = setTimeout(() => history.replaceState(null, "", toAddress(state)), 150);
}

function askCurves(now) {
  const asked = { ...state, solve: "" };
  curves.push(now, asked);
  clearTimeout(resting);
  resting = setTimeout(() => { if (now === version) leisure.push(now, asked); }, REST);
}

// ---- controls
function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function fillKnob(name) {
  const dial = { ...KNOBS, ...DIALS }[name], field = $(name), slider = $(`${name}-slider`);
  if (document.activeElement !== field) field.value = dial.whole ? state[name] : state.solve === name ? up(Number(state[name]), 6) : String(Number(state[name]));
  slider.value = place(dial, state[name]);
  slider.setAttribute("aria-valuetext", field.value);
}

function makeKnob(name, dial, parent, solvable) {
  const knob = element(`<div class="knob" id="${name}-knob"><label for="${name}">${dial.label}</label>
    <input id="${name}" type="number" step="any" min="0" inputmode="decimal">
    ${solvable ? `<button type="button" aria-pressed="false" aria-label="Find ${dial.label} from a target" id="${name}-find">find</button>` : "<span></span>"}
    <input id="${name}-slider" type="range" min="0" max="1000" aria-label="${dial.label}"></div>`);
  parent.append(knob);
  $(name).addEventListener("input", () => {
    const value = Number($(name).value);
    if ($(name).value === "" || !Number.isFinite(value)) return;
    state[name] = value;
    $(`${name}-slider`).value = place(dial, value);
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
    const knob = $(`${name}-knob`), shown = takes(state, DIALS[name].api);
    knob.hidden = !shown;
    knob.style.display = shown ? "" : "none";
  }
  for (const option of $("target").options) option.textContent = `${shortOf(option.value, state)} ${WORDS.metrics[option.value].sign === ">=" ? "≥" : "≤"}`;
  for (const id of ["threat", "method", "sampling", "sees", "target", "limit", "strong", "moderate"]) $(id).value = state[id];
  $("log").checked = state.log;
}

function choices(id, pairs) {
  $(id).append(...pairs.map(([value, textContent]) => Object.assign(document.createElement("option"), { value, textContent })));
}
choices("threat", WORDS.threats.map(({ name, question }) => [name, question]));
choices("sampling", WORDS.samplings.map(({ name, summary }) => [name, `${name}: ${summary}`]));
choices("sees", WORDS.sees.map(({ name, summary }) => [name, summary]));
choices("method", [["", "the usual method"], ...WORDS.methods.map(({ name, summary }) => [name, `${name}: ${summary}`])]);
choices("target", Object.keys(WORDS.metrics).map((name) => [name, name]));
$("caption").textContent = titleOf("bayes_security", state);
for (const metric of ["bayes_security", "success", ...OF_CURVE]) $("pins").querySelector("thead tr").lastElementChild.before(Object.assign(document.createElement("th"), { textContent: WORDS.metrics[metric].short.split(" at ")[0] }));
for (const [name, knob] of Object.entries(KNOBS)) makeKnob(name, knob, $("training"), true);
for (const [name, dial] of Object.entries(DIALS)) makeKnob(name, dial, $(dial.api === "max_batch_size" ? "training" : "attack"), false);
$("training").append($("sampling").previousElementSibling, $("sampling"), $(`${SOMETIMES[0]}-knob`)); // below the sliders
for (const id of ["sampling", "sees"]) $(id).addEventListener("change", () => { state[id] = $(id).value; fillAll(); changed(); });
$("threat").addEventListener("change", () => { state.threat = $("threat").value; fillAll(); changed(); });
$("method").addEventListener("change", () => { state.method = $("method").value; changed(); });
$("target").addEventListener("change", () => { state.target = $("target").value; state.limit = limitOf(state.target); fillAll(); changed(); });
$("limit").addEventListener("input", () => { if ($("limit").value !== "") { state.limit = Number($("limit").value); changed(); } });
for (const id of ["strong", "moderate"]) $(id).addEventListener("input", () => {
  if ($(id).value === "") return;
  state[id] = Number($(id).value);
  showBand(); showEpochs();
  history.replaceState(null, "", toAddress(state));
});
$("log").addEventListener("change", () => { state.log = $("log").checked; showTradeoff(); history.replaceState(null, "", toAddress(state)); });

// ---- pins
function nameOf(setting) {
  const attack = setting.threat === WORDS.threats[0].name ? "" : `, ${setting.threat}`, distance = takesDistance(setting) ? `, distance ${setting.distance}` : "";
  const method = (setting.sampling === WORDS.samplings[0].name ? "" : `, ${setting.sampling}`) + (setting.method && `, ${setting.method}`);
  return `noise ${Number(Number(setting.noise).toPrecision(4))}, batch ${setting.batch}, ${setting.epochs} epochs, ${setting.records} records${attack}${distance}${method}`;
}

function showPins() {
  $("pins").hidden = !state.pins.length;
  $("pins").querySelector("tbody").replaceChildren(...state.pins.map((pin, i) => {
    const row = document.createElement("tr");
    row.style.setProperty("--dot", pinColour(i));
    const { answer, tradeoff } = pin;
    const cells = [pin.name, answer ? down(answer.bayes_security.lower) : "…", answer ? percent(answer.success.upper, 2) : "…",
      tradeoff ? `${percent(tradeoff.tpr[0].upper, 2)} at ${tradeoff.tpr[0].fpr}` : "…", tradeoff ? up(tradeoff.epsilon[0].upper) : "…"];
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
    const last = row.insertCell(), button = element(`<button type="button">remove</button>`);
    button.setAttribute("aria-label", `Remove ${pin.name}`);
    button.addEventListener("click", () => { state.pins.splice(i, 1); showPins(); showEpochs(); showTradeoff(); history.replaceState(null, "", toAddress(state)); });
    last.append(button);
    return row;
  }));
}

async function fillPin(pin) {
  pin.name = nameOf(pin.setting);
  const query = question({ ...pin.setting, solve: "" });
  try {
    pin.answer = await get(...ask({ ...pin.setting, solve: "" }, ["bayes_security", "success"]));
    pin.epochs = await get("epochs", query);
    pin.tradeoff = await get("tradeoff", query);
  } catch (problem) { pin.name += ` (${problem.message})`; }
  showPins(); showEpochs(); showTradeoff();
}

$("pin").addEventListener("click", () => {
  const { pins, ...setting } = state;
  if (pins.length === 4) pins.shift();
  const pin = { setting: { ...setting, solve: "" } };
  pins.push(pin);
  history.replaceState(null, "", toAddress(state));
  fillPin(pin);
});

// ---- taking it along
async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    $("done").textContent = `${what} copied.`;
  } catch {
    window.prompt("Copy it from here:", text);
  }
  setTimeout(() => { $("done").textContent = ""; }, 3000);
}
$("share").addEventListener("click", () => copy(new URL(toAddress(state), location.href).href, "Link"));
for (const id of ["python", "command"]) $(id).addEventListener("click", () => {
  if (!shown.answer) return;
  // The page asks for a few metrics only; whoever repeats it wants all.
  copy(shown.answer[id].replaceAll(/ --metric \w+/g, ""), id === "python" ? "Python" : "Command");
});
for (const button of document.querySelectorAll("[data-svg]")) button.addEventListener("click", () => svg($(`${button.dataset.svg}-chart`), `betastar-${button.dataset.svg}`));
for (const button of document.querySelectorAll("[data-csv]")) button.addEventListener("click", () => {
  const kind = button.dataset.csv;
  if (!shown[kind]) return;
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([csv(kind, shown[kind])], { type: "text/csv" })), download: `betastar-${kind}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

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
changed();
state.pins.forEach(fillPin);
