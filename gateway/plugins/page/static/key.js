// The API key, if the gateway requires one: requested after the first refusal, and kept until the page is closed.

import { $ } from "./dom.js";

let key = "";

/** Headers with the key, if there is one. */
export function withKey(headers = {}) {
  return key ? { ...headers, "X-API-Key": key } : headers;
}

/** The key as a subprotocol of a WebSocket, since pages cannot add headers to a handshake. */
export const keyProtocols = () => (key ? [`gateway-key.${key}`] : []);

export const UNAUTHORIZED = "unauthorized";

/** The gateway's messages about keys are for programs; these are for users of the page. */
export const keyRefused = () => `${key ? "The gateway does not know this API key: enter another one" : "The gateway needs an API key: enter it"} under “API key”.`;

/** Show the field for the key if a response requires one. */
export function askForKey({ status }) {
  if (status !== 401) return;
  if ($("key-field").hidden) {
    $("key-field").hidden = false;
    $("key-field").dispatchEvent(new Event("shown"));
  }
  $("key-field").open = true;
  $("key-facts").textContent = key ? "not accepted" : "required";
  $("key").setAttribute("aria-invalid", String(key !== ""));
}

export const keyWanted = () => !$("key-field").hidden;

/** Whether the gateway wants a key and none was entered. */
export const keyMissing = () => keyWanted() && !key;

/** Call back whenever a key was entered; its form is folded away, unless the gateway refuses the key. */
export function onKey(entered) {
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    // Remove pasted characters that no key contains and no header can carry.
    key = $("key").value.replace(/[^\x21-\x7e]/g, "");
    if (!key) return;
    $("key-facts").textContent = "entered";
    $("key").removeAttribute("aria-invalid");
    $("key-field").open = false;
    entered();
  });
}
