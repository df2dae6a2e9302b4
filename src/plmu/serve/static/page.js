"use strict";
const LENGTH = 300; // steps that the upper chart shows
const HISTORY = 2500; // steps from which a new memory is filled
const LATENCIES = 200; // of which the median is shown
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");

const state = {
  signal: [], // the last samples
  predicted: [], // the output for each of them, or null
  total: 0, // samples so far
  sent: new Map(), // the time at which the sample of each id was sent
  latencies: [],
  memory: null, // {order, theta, A, B, C, delays}
  m: [],
  model: null,
  next: SIGNALS["mackey-glass"](),
  paused: false,
};

function address(path, scheme) {
  const url = new URL(path, location.href);
  url.hash = "";
  if (scheme) url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  if (token) url.searchParams.set("token", token);
  return url;
}

async function get(path) {
  const response = await fetch(address(path));
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  return content;
}

function showStatus(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

// ---------------------------------------------------------------- the model on the server

let socket = null;

function connect() {
  socket = new WebSocket(address("ws", true));
  let greeted = false;
  socket.onmessage = (event) => {
    const answer = JSON.parse(event.data);
    if (greeted) { handlers.answer(answer); return; }
    greeted = true;
    showStatus("connected");
    handlers.connected();
  };
  socket.onclose = () => {
    socket = null;
    state.sent.clear();
    showStatus("no connection; trying again…", true);
    setTimeout(connect, 1000);
  };
}

function takesNumbers() { return state.model && state.model.features === 1; }

function catchUp() {
  // The model gets the last samples in one message, so that its state is as if it had seen them arrive.
  const samples = state.signal.slice(-LENGTH);
  if (takesNumbers() && samples.length) socket.send(JSON.stringify({ samples, id: state.total - samples.length }));
}

function receive(answer) {
  const sent = state.sent.get(answer.id);
  state.sent.delete(answer.id);
  if (answer.error) { showStatus(answer.error, true); return; }
  if (sent !== undefined) {
    state.latencies.push(performance.now() - sent);
    if (state.latencies.length > LATENCIES) state.latencies.shift();
  }
  const place = answer.id - (state.total - state.signal.length);
  (answer.outputs || [answer.output]).forEach((output, i) => {
    if (output && place + i >= 0 && place + i < state.predicted.length) state.predicted[place + i] = output[0];
  });
  changed = true;
  if (answer.label) $("answer").textContent = `${answer.label} (${(100 * answer.probability).toFixed(1)} %)`;
}

// ---------------------------------------------------------------- the memory

function stepMemory(u) {
  const { A, B } = state.memory;
  state.m = A.map((row, i) => row.reduce((sum, a, j) => sum + a * state.m[j], B[i] * u));
}

async function newMemory() {
  const order = $("order").value, theta = $("theta").value;
  try {
    const memory = await get(`memory?order=${order}&theta=${theta}`);
    if (order !== $("order").value || theta !== $("theta").value) return; // a slider has moved since
    state.memory = memory;
    state.m = new Array(memory.order).fill(0);
    state.signal.forEach(stepMemory);
    $("numbers").textContent = memory.order;
    changed = true;
  } catch (error) { showStatus(error.message, true); }
}

function signalBefore(delay) {
  // Sample k lasts from k to k + 1 steps ago: interpolate between the middles.
  const place = Math.max(0, delay - 0.5), k = Math.floor(place), last = state.signal.length - 1;
  if (last - k < 1) return null;
  return state.signal[last - k] + (place - k) * (state.signal[last - k - 1] - state.signal[last - k]);
}

// ---------------------------------------------------------------- one sample after another

let changed = false;

function sample() {
  const u = state.next();
  state.signal.push(u);
  state.predicted.push(null);
  state.total += 1;
  if (state.signal.length > HISTORY) { state.signal.shift(); state.predicted.shift(); }
  if (state.memory) stepMemory(u);
  if (takesNumbers() && socket && socket.readyState === WebSocket.OPEN && state.sent.size < 50) {
    state.sent.set(state.total - 1, performance.now());
    socket.send(JSON.stringify({ sample: u, id: state.total - 1 }));
  }
  changed = true;
}

let due = performance.now();

function run() {
  const now = performance.now(), gap = 1000 / $("rate").value;
  if (state.paused || now - due > 500) due = now;
  while (due <= now && !state.paused) { handlers.sample(); due += gap; }
  setTimeout(run, Math.min(gap, 30));
}

// ---------------------------------------------------------------- charts

const charts = {};

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function makeChart(id, names, label) {
  const box = $(id);
  if (charts[id]) charts[id].destroy();
  const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const lines = names.map((name) => ({
    stroke: color(`--${name}`), width: name === "signal" ? 5 : 1.75, points: { show: false }, // the lines overlap
  }));
  charts[id] = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis, label, labelSize: 18, size: 34, labelFont: "13px system-ui" }, { ...axis, size: 48 }],
    series: [{}, ...lines],
  }, [[], ...names.map(() => [])], box);
}

function makeCharts() {
  makeChart("stream-chart", ["signal", "prediction"], "step");
  makeChart("window-chart", ["signal", "memory"], "steps ago (θ′)");
  changed = true;
}

function relativeError(pairs) {
  const present = pairs.filter(([a, b]) => a !== null && b !== null && a !== undefined && b !== undefined);
  if (present.length < 10) return "–";
  const power = present.reduce((sum, [a]) => sum + a * a, 0);
  const error = present.reduce((sum, [a, b]) => sum + (a - b) ** 2, 0);
  return `${(100 * Math.sqrt(error / (power || 1))).toFixed(1)} %`;
}

function drawStream() {
  const ahead = state.model ? state.model.ahead : 0, predicts = state.model && state.model.kind === "numbers";
  const count = Math.min(LENGTH, state.signal.length), start = state.signal.length - count;
  const first = state.total - count, x = [], signal = [], predicted = [];
  for (let i = 0; i < count + ahead; i++) {
    x.push(first + i);
    signal.push(i < count ? state.signal[start + i] : null);
    const place = start + i - ahead;
    predicted.push(predicts && place >= 0 ? state.predicted[place] ?? null : null);
  }
  charts["stream-chart"].setData([x, signal, predicted]);
  $("prediction-error").textContent = relativeError(signal.map((value, i) => [value, predicted[i]]));
}

function drawWindow() {
  if (!state.memory) return;
  const { delays, C } = state.memory;
  const actual = delays.map(signalBefore);
  const decoded = C.map((row) => row.reduce((sum, c, j) => sum + c * state.m[j], 0));
  charts["window-chart"].setData([delays, actual, decoded]);
  $("memory-error").textContent = relativeError(actual.map((value, i) => [value, decoded[i]]));
}

function draw() {
  if (changed) {
    changed = false;
    handlers.draw();
    const sorted = [...state.latencies].sort((a, b) => a - b);
    if (sorted.length) {
      $("latency").textContent = `${sorted[sorted.length >> 1].toFixed(1)} ms`;
      $("latency99").textContent = `${sorted[Math.floor(sorted.length * 0.99)].toFixed(1)} ms`;
    }
    $("samples").textContent = state.total.toLocaleString("en");
  }
  requestAnimationFrame(draw);
}

// ---------------------------------------------------------------- start

// What a page for another kind of model does in its own way: see anomalies.js.
const handlers = {
  answer: receive, connected: catchUp, sample, charts: makeCharts, draw: () => { drawStream(); drawWindow(); },
};

function showPause() { $("pause").textContent = state.paused ? "resume" : "pause"; }

function showSettings() {
  for (const id of ["order", "theta", "rate"]) $(`${id}-value`).textContent = $(id).value;
}

async function start() {
  try {
    state.model = await get("model");
  } catch (error) { showStatus(error.message, true); }
  const model = state.model;
  if (model && model.kind === "anomalies") { startAnomalies(model); return; }
  makeCharts();
  if (model) {
    $("model").textContent = model.experiment || "your own model";
    if (model.ahead) $("ahead").textContent = `, ${model.ahead} steps ahead`;
    if (model.memory) { $("order").value = model.memory.order; $("theta").value = Math.round(model.memory.theta); }
    $("prediction-legend").hidden = model.kind !== "numbers" || model.features !== 1;
    if (model.features !== 1) $("answer").textContent = "This model does not take one number per step, so only the memory is shown.";
  }
  showSettings();
  for (let i = 0; i < LENGTH; i++) { // fill the charts
    state.signal.push(state.next());
    state.predicted.push(null);
    state.total += 1;
  }
  if (model) connect();
  await newMemory();
  run();
  draw();
}

for (const id of ["order", "theta"]) $(id).addEventListener("input", () => { showSettings(); newMemory(); });
$("rate").addEventListener("input", showSettings);
$("signal").addEventListener("change", () => { state.next = SIGNALS[$("signal").value](); });
$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  showPause();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => handlers.charts());
new ResizeObserver(() => {
  for (const [id, chart] of Object.entries(charts)) chart.setSize({ width: $(id).clientWidth, height: $(id).clientHeight });
}).observe(document.body);
start();
