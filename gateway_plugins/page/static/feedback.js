// Whether an answer is right: a button on each, if the service logs predictions and takes feedback (GET /models).

import { withKey } from "./key.js";

let wanted = false;

/** Show the buttons from now on. */
export const takeFeedback = (takes) => (wanted = takes);

/** The button that reports an answer's best label as wrong; null where there is nothing to report. */
export function wrongButton(answer) {
  if (!wanted || !answer.best || !answer.requestId) return null;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "wrong";
  const show = (text, done) => {
    button.textContent = text;
    button.disabled = done;
  };
  show(answer.reported ? "Reported as wrong" : "Wrong?", Boolean(answer.reported));
  button.title = `Report that “${answer.best.label}” is wrong; the service logs it.`;
  button.addEventListener("click", async () => {
    show("Reporting…", true);
    answer.reported = await report(answer);
    show(answer.reported ? "Reported as wrong" : "Not reported. Again?", answer.reported);
  });
  return button;
}

async function report({ requestId, result, model }) {
  try {
    const body = JSON.stringify({ request_id: requestId, index: result.index, model: model.name, wrong: true });
    const headers = { ...withKey(), "Content-Type": "application/json" };
    return (await fetch("feedback", { method: "POST", headers, body })).ok;
  } catch {
    return false;
  }
}
