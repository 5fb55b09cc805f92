// Settings that were pinned, to compare them: a row of the table and a line of each chart.
import { get } from "./answers.js";
import { pinColour } from "./charts.js";
import { down, percent, up } from "./rounding.js";
import { question, takesDistance, toAddress } from "./state.js";
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const MOST = 4;

function nameOf(setting) {
  const attack = setting.threat === WORDS.threats[0].name ? "" : `, ${setting.threat}`, distance = takesDistance(setting) ? `, distance ${setting.distance}` : "";
  const method = (setting.sampling === WORDS.samplings[0].name ? "" : `, ${setting.sampling}`) + (setting.method && `, ${setting.method}`);
  return `noise ${Number(Number(setting.noise).toPrecision(4))}, batch ${setting.batch}, ${setting.epochs} epochs, ${setting.records} records${attack}${distance}${method}`;
}

// state: has the pins; shown: the answers that the page shows; ask: makes the question for a number; redraw: draws the charts again.
export class Pins {
  constructor(state, shown, ask, redraw) {
    Object.assign(this, { state, ask, redraw });
    const last = $("pins").querySelector("thead tr").lastElementChild;
    for (const metric of ["bayes_security", "success", "tpr", "epsilon"]) last.before(Object.assign(document.createElement("th"), { textContent: WORDS.metrics[metric].short.split(" at ")[0] }));
    $("pin").addEventListener("click", () => shown.answer && this.add());
  }

  add() {
    const { pins, ...setting } = this.state, pin = { setting: { ...setting, solve: "" } };
    if (pins.length === MOST) pins.shift();
    pins.push(pin);
    history.replaceState(null, "", toAddress(this.state));
    this.fill(pin);
  }

  remove(i) {
    this.state.pins.splice(i, 1);
    history.replaceState(null, "", toAddress(this.state));
    this.show();
    this.redraw();
  }

  async fill(pin) {
    pin.name = nameOf(pin.setting);
    const query = question(pin.setting);
    try {
      pin.answer = await get(...this.ask(pin.setting, ["bayes_security", "success"]));
      pin.epochs = await get("epochs", query);
      pin.tradeoff = await get("tradeoff", query);
    } catch (problem) { pin.name += ` (${problem.message})`; }
    this.show();
    this.redraw();
  }

  show() {
    $("pins").hidden = !this.state.pins.length;
    $("pins").querySelector("tbody").replaceChildren(...this.state.pins.map((pin, i) => this.row(pin, i)));
  }

  row({ name, answer, tradeoff }, i) {
    const row = document.createElement("tr");
    row.style.setProperty("--dot", pinColour(i));
    const cells = [name, answer ? down(answer.bayes_security.lower) : "…", answer ? percent(answer.success.upper, 2) : "…",
      tradeoff ? `${percent(tradeoff.tpr[0].upper, 2)} at ${tradeoff.tpr[0].fpr}` : "…", tradeoff ? up(tradeoff.epsilon[0].upper) : "…"];
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "remove", ariaLabel: `Remove ${name}` });
    button.addEventListener("click", () => this.remove(i));
    row.insertCell().append(button);
    return row;
  }
}
