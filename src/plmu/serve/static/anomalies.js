"use strict";
// The page for a detector of anomalies: the series with its expected interval, alarms, and a list of these.

const SHOWN_ALARMS = 50;
const DEVIATIONS = 4; // standard deviations of noise in half of an interval
const SIZE = 10; // of an anomaly that is added, in halves of an interval

const watch = {
  samples: [], // the last samples, each a list with a number or null for each column
  outputs: [], // the output for each of them, or null
  names: [], // of the columns
  centre: null, // of the interval in which the next value of each column is expected, and half of its width
  half: null,
  rows: null, // of a file that is played
  place: 0,
  unusual: false, // whether the next sample gets an anomaly
  alarms: 0,
};

function startAnomalies(model) {
  watch.names = model.columns.length ? model.columns : Array.from({ length: model.features }, (_, i) => `value ${i + 1}`);
  $("model").textContent = model.experiment || "anomalies";
  for (const id of ["anomaly-legend", "alarms-section", "alarm-figure", "anomaly-note"]) $(id).hidden = false;
  for (const id of ["window-section", "prediction-legend"]) $(id).hidden = true;
  for (const element of document.querySelectorAll(".of-memory")) element.hidden = true;
  $("stream-chart").setAttribute("aria-label", "The series, the interval in which it is expected, and alarms");
  $("threshold").textContent = model.threshold;
  $("column").replaceChildren(...watch.names.map((name, i) => new Option(name, i)));
  SIGNALS.expected = () => normal;
  $("signal").prepend(new Option("as expected, with noise", "expected"));
  $("signal").value = "expected";
  state.next = SIGNALS.expected();
  Object.assign(handlers, {
    answer: receiveScore, connected: askInterval, sample: nextSample, charts: makeAnomalyChart, draw: drawAnomalies,
  });
  $("column").addEventListener("change", makeAnomalyChart);
  $("unusual").addEventListener("click", () => { watch.unusual = true; });
  $("file").addEventListener("change", () => { playFile($("file").files[0]); });
  makeAnomalyChart();
  showSettings();
  connect();
  run();
  draw();
}

function askInterval() {
  // A sample without values: the answer says where values are expected.
  watch.centre = null;
  socket.send(JSON.stringify({ sample: watch.names.map(() => null), id: -1 }));
}

// ---------------------------------------------------------------- samples

function normal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

function nextSample() {
  if (!watch.centre || !socket || socket.readyState !== WebSocket.OPEN || state.sent.size > 50) return;
  if (!watch.rows && $("signal").value === "expected" && state.sent.size) return; // what is expected next is not known
  let sample;
  if (watch.rows) {
    if (watch.place >= watch.rows.length) { showStatus("the file has ended"); watch.rows = null; state.paused = true; showPause(); return; }
    sample = [...watch.rows[watch.place++]];
  } else if ($("signal").value === "expected") {
    const last = watch.outputs.findLast((output) => output);
    sample = watch.centre.map((centre, i) => (last ? last.parts[i].expected : centre) + watch.half[i] * state.next() / DEVIATIONS);
  } else sample = watch.centre.map((centre, i) => centre + watch.half[i] * state.next());
  if (watch.unusual) {
    const column = Number($("column").value);
    const last = watch.outputs.findLast((output) => output), part = last && last.parts[column];
    const half = part ? (part.upper - part.lower) / 2 : watch.half[column];
    sample[column] = (sample[column] ?? watch.centre[column]) + SIZE * half;
    watch.unusual = false;
  }
  watch.samples.push(sample);
  watch.outputs.push(null);
  state.total += 1;
  if (watch.samples.length > LENGTH) { watch.samples.shift(); watch.outputs.shift(); }
  state.sent.set(state.total - 1, performance.now());
  socket.send(JSON.stringify({ sample, id: state.total - 1 }));
  changed = true;
}

function receiveScore(answer) {
  if (answer.error) { showStatus(answer.error, true); state.sent.delete(answer.id); return; }
  const parts = watch.names.map((name) => answer.channels[name]);
  if (answer.id < 0) {
    watch.centre = parts.map((part) => part.expected ?? 0);
    watch.half = parts.map((part) => (part.upper - part.lower) / 2 || 1);
    return;
  }
  const sent = state.sent.get(answer.id);
  state.sent.delete(answer.id);
  if (sent !== undefined) {
    state.latencies.push(performance.now() - sent);
    if (state.latencies.length > LATENCIES) state.latencies.shift();
  }
  const place = answer.id - (state.total - watch.samples.length);
  if (place < 0 || place >= watch.outputs.length) return;
  watch.outputs[place] = { parts, alarm: answer.alarm, channel: watch.names.indexOf(answer.channel) };
  if (answer.alarm) showAlarm(answer, watch.samples[place]);
  changed = true;
}

function showAlarm(answer, sample) {
  const part = answer.channels[answer.channel], value = sample[watch.names.indexOf(answer.channel)];
  const item = document.createElement("li"), name = document.createElement("b");
  name.textContent = answer.channel;
  const between = `expected ${short(part.lower)} to ${short(part.upper)}`;
  item.append(`${answer.time}: `, name, ` ${value === null ? "missing" : short(value)}, ${between}, score ${answer.score.toFixed(5)}`);
  $("alarms").prepend(item);
  if ($("alarms").children.length > SHOWN_ALARMS) $("alarms").lastChild.remove();
  watch.alarms += 1;
  $("alarms").setAttribute("start", watch.alarms);
  $("alarm-count").textContent = watch.alarms.toLocaleString("en");
  $("no-alarms").hidden = true;
}

function short(value) { return Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "–"; }

// ---------------------------------------------------------------- a file

async function playFile(file) {
  if (!file) return;
  const lines = (await file.text()).replace(/^\ufeff/, "").split(/\r?\n/).filter((line) => line.trim());
  const mark = [";", "\t", ","].find((mark) => lines[0].includes(mark)) || ",";
  const cells = (line) => line.split(mark).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1"));
  const header = cells(lines[0]), columns = watch.names.map((name) => header.indexOf(name));
  const absent = watch.names.filter((_, i) => columns[i] < 0);
  if (absent.length) { showStatus(`${file.name} has no column ${absent.join(", ")}`, true); return; }
  const number = (cell) => {
    const value = Number(mark === "," ? cell : cell.replace(",", "."));
    return cell === "" || !Number.isFinite(value) ? null : value;
  };
  watch.rows = lines.slice(1).map((line) => { const row = cells(line); return columns.map((i) => number(row[i] ?? "")); });
  watch.place = 0;
  state.paused = false;
  showPause();
  showStatus(`playing ${watch.rows.length.toLocaleString("en")} rows of ${file.name}`);
}

// ---------------------------------------------------------------- the chart

function makeAnomalyChart() {
  const box = $("stream-chart"), id = "stream-chart";
  if (charts[id]) charts[id].destroy();
  const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const edge = { stroke: "transparent", points: { show: false } };
  charts[id] = new uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis, label: "step", labelSize: 18, size: 34, labelFont: "13px system-ui" }, { ...axis, size: 56 }],
    bands: [{ series: [2, 1], fill: color("--band") }],
    series: [
      {}, edge, edge,
      { stroke: color("--signal"), width: 1.75, points: { show: false } },
      { stroke: "transparent", points: { show: true, size: 8, fill: color("--bad"), stroke: color("--bad") } },
    ],
  }, [[], [], [], [], []], box);
  changed = true;
}

function drawAnomalies() {
  const column = Number($("column").value), first = state.total - watch.samples.length;
  const x = [], lower = [], upper = [], values = [], alarms = [];
  watch.samples.forEach((sample, i) => {
    const output = watch.outputs[i], part = output && output.parts[column];
    x.push(first + i);
    lower.push(part ? part.lower : null);
    upper.push(part ? part.upper : null);
    values.push(sample[column]);
    alarms.push(output && output.alarm && output.channel === column ? sample[column] ?? part.expected : null);
  });
  charts["stream-chart"].setData([x, lower, upper, values, alarms]);
}
