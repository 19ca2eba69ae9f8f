// One WebSocket to /stream: it sends frames, and receives a message for each. docs/guides/streams.md describes messages and codes.

import { askForKey, keyProtocols, keyRefused, UNAUTHORIZED, withKey } from "./key.js";

const GOING_DOWN = 1012;
const TOO_BIG = 1009;
const LOST = 1006;
const OWN_CODES = 4000;
/** Status of a plain request if a WebSocket could be opened. */
const OPENS = 426;
// A frame that has no result after this time was dropped, and so were those after it.
const FORGOTTEN_MS = 10_000;
const PASSING = new Set([408, 429, 500, 502, 503, 504]);

const WORDS = {
  [LOST]: "The connection to the gateway was lost.",
  [GOING_DOWN]: "The gateway is stopping.",
  [TOO_BIG]: "A frame is larger than the gateway accepts. Choose a smaller frame size, then start again.",
  1011: "The gateway failed; its log says why.",
};

/** Why a stream ended. `passing`: another attempt may succeed. `code`: the gateway's error code, if any. */
export class StreamFault extends Error {
  constructor(message, { passing = false, code = "" } = {}) {
    super(message);
    Object.assign(this, { passing, code });
  }
}

/** `onMessage` gets each message and the milliseconds since its frame was captured, `onEnd` a StreamFault. */
export class Stream {
  #socket;
  #opened = false;
  #error = null;
  #number = 0;
  /** When each frame without a result was captured, by its number. */
  #unanswered = new Map();
  #onMessage;
  #onEnd;

  constructor(query, { onMessage, onEnd }) {
    [this.#onMessage, this.#onEnd] = [onMessage, onEnd];
    const address = new URL(`stream?${query}`, document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    try {
      this.#socket = new WebSocket(address, ["gateway-stream", ...keyProtocols()]);
    } catch {
      // A subprotocol must be a token (RFC 9110, 5.6.2), as every key that the gateway makes.
      const fault = new StreamFault(keyRefused(), { code: UNAUTHORIZED });
      queueMicrotask(() => this.#onEnd(fault));
      return;
    }
    this.#socket.onopen = () => (this.#opened = true);
    this.#socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.#socket.onclose = async ({ code, reason }) => {
      const fault = this.#opened ? this.#closed(code, reason) : await refusal(query);
      this.#onEnd(fault);
    };
  }

  get open() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /**
   * Whether a frame may be sent: no earlier one is still buffered, and fewer than `most`, the frames of a second, have no
   * result yet.
   */
  hasCapacity(most) {
    const since = performance.now() - FORGOTTEN_MS;
    const waiting = [...this.#unanswered.values()].filter((taken) => taken > since).length;
    return this.open && this.#socket.bufferedAmount === 0 && waiting < most;
  }

  /** Send a frame that was taken at a time of performance.now(). */
  send(blob, taken) {
    if (!this.open) return;
    this.#unanswered.set(this.#number, taken);
    this.#number += 1;
    this.#socket.send(blob);
  }

  close() {
    this.#onEnd = () => {};
    this.#onMessage = () => {};
    this.#socket?.close();
  }

  #receive(message) {
    if (message.type === "error") this.#error = message.error;
    if (message.type !== "frame") {
      this.#onMessage(message, 0);
      return;
    }
    const milliseconds = performance.now() - this.#unanswered.get(message.frame);
    // Earlier frames without a result were dropped.
    for (const number of this.#unanswered.keys()) if (number <= message.frame) this.#unanswered.delete(number);
    this.#onMessage(message, milliseconds);
  }

  #closed(code, reason) {
    if (code > OWN_CODES) {
      const { message, code: name } = this.#error ?? { message: `The gateway closed the stream: ${reason}.`, code: reason };
      return new StreamFault(message, { passing: PASSING.has(code - OWN_CODES), code: name });
    }
    const words = WORDS[code] ?? `The gateway closed the stream: ${reason || `code ${code}`}.`;
    return new StreamFault(words, { passing: code !== TOO_BIG && code in WORDS });
  }
}

/** Why a stream was not opened: browsers hide that from pages, so a plain request to the same URL finds out. */
async function refusal(query) {
  const response = await fetch(`stream?${query}`, { headers: withKey(), cache: "no-store" }).catch(() => null);
  if (!response) return new StreamFault("The gateway does not answer.", { passing: true });
  askForKey(response);
  const { status } = response;
  if (status === OPENS) return new StreamFault(noUpgrade(), { passing: true });
  const { code = "", detail } = await response.json().catch(() => ({}));
  if (code === UNAUTHORIZED) return new StreamFault(keyRefused(), { code });
  return new StreamFault(detail ?? `The gateway answered ${status}.`, { passing: PASSING.has(status), code });
}

const noUpgrade = () =>
  "The gateway answers, but no WebSocket can be opened. A proxy in between must pass on upgrades of /stream and keep the " +
  `Host header, or GATEWAY_CORS_ORIGINS must list ${location.origin}.`;
