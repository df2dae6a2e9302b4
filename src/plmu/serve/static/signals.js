"use strict";
// Signals that the page makes. Each function returns a function that returns the next sample.

function mackeyGlass() {
  // tanh(x − 1) of the Mackey-Glass equation with τ = 17, ten Euler steps per sample, as in the experiment.
  const delay = 170;
  const past = Array.from({ length: delay }, () => 1.2 + 0.2 * (Math.random() - 0.5));
  let x = 1.2, place = 0;
  function next() {
    for (let i = 0; i < 10; i++) {
      const delayed = past[place];
      past[place] = x;
      x += (0.2 * delayed / (1 + delayed ** 10) - 0.1 * x) / 10;
      place = (place + 1) % delay;
    }
    return Math.tanh(x - 1);
  }
  for (let i = 0; i < 200; i++) next();
  let mean = 0;
  for (let i = 0; i < 3000; i++) mean += next() / 3000;
  return () => next() - mean;
}

function sines() {
  let t = 0;
  return () => { t += 1; return 0.25 * Math.sin(t / 6) + 0.15 * Math.sin(t / 17 + 1); };
}

function square() {
  let t = 0;
  return () => { t += 1; return Math.floor(t / 20) % 2 ? 0.3 : -0.3; };
}

function noise() {
  let a = 0, b = 0;
  return () => { a = 0.9 * a + 0.1 * (Math.random() * 2 - 1); b = 0.8 * b + 0.2 * a; return 2 * b; };
}

const SIGNALS = { "mackey-glass": mackeyGlass, sines, square, noise };
