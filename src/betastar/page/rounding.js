"use strict";
// To the safe side: β* down, what an attacker can do up.
// Numbers keep their order when they are read again: what is shown is never on the unsafe side of the number.
function fixed(value, digits, upwards, times = 1) {
  const near = (value * times).toFixed(digits), unsafe = upwards ? Number(near) / times < value : Number(near) / times > value;
  return unsafe ? (Number(near) + (upwards ? 1 : -1) * 10 ** -digits).toFixed(digits) : near;
}
const down = (value, digits = 4) => fixed(value, digits, false);
const percent = (value, digits = 1) => `${fixed(value, digits, true, 100)} %`;
function up(value, digits = 3) {
  if (value === null || value === undefined) return "no bound";
  const near = value.toPrecision(digits);
  if (Number(near) >= value) return String(Number(near));
  const unit = 10 ** (Number(value.toExponential(digits - 1).split("e")[1]) - digits + 1);
  return String(Number((Number(near) + unit).toPrecision(digits)));
}
