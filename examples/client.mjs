// A client of `plmu serve`, in JavaScript: the same in a browser, and in Node 22 or newer.
//
//     plmu serve runs/mackey-glass-plmu-seed0
//     node examples/client.mjs
//
// It sends a sine, one sample after the other, and prints what the model predicts.

const url = globalThis.process?.argv[2] ?? "ws://127.0.0.1:8000/ws"; // with a token: …/ws?token=TOKEN
const count = 100;
const socket = new WebSocket(url);
let step = 0;

function send() {
  socket.send(JSON.stringify({ sample: 0.3 * Math.sin(step / 6), id: step }));
}

socket.onmessage = (event) => {
  const answer = JSON.parse(event.data);
  if (answer.error) throw new Error(answer.error);
  if (answer.session) { // the first message: the name of this session, and how many samples it has taken
    send();
    return;
  }
  console.log(answer.step, answer.output);
  step += 1;
  if (step < count) send();
  else socket.close(1000);
};
socket.onerror = () => console.error(`cannot connect to ${url}`);
