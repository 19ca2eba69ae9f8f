// One POST with progress of the upload, which fetch does not report.

/**
 * Send a form. `sent` is called with the bytes sent so far, `line` with each line of a response in JSON lines as it
 * arrives, and with the headers; an exception of `line` ends the exchange. Returns `{ status, ok, header, streamed, text }`.
 * Throws TypeError if the connection fails, and AbortError if `signal` is aborted.
 */
export function post(url, form, { headers, signal, sent, line }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const header = (name) => request.getResponseHeader(name);
    const abort = () => request.abort();
    let read = 0;

    function readLines() {
      if (!header("Content-Type")?.startsWith("application/x-ndjson")) return false;
      const end = request.responseText.lastIndexOf("\n") + 1;
      if (end > read) {
        const complete = request.responseText.slice(read, end - 1).split("\n");
        read = end;
        for (const each of complete) line(JSON.parse(each), header);
      }
      return true;
    }

    function settle(how) {
      try {
        how();
      } catch (error) {
        reject(error);
        request.abort();
      }
    }

    request.open("POST", url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = ({ loaded }) => sent(loaded);
    request.onprogress = () => settle(readLines);
    request.onload = () =>
      settle(() => {
        const streamed = readLines();
        const { status, responseText: text } = request;
        resolve({ status, ok: status >= 200 && status < 300, header, streamed, text });
      });
    request.onerror = () => reject(new TypeError("the connection failed"));
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    request.onloadend = () => signal.removeEventListener("abort", abort);
    signal.addEventListener("abort", abort);
    request.send(form);
    if (signal.aborted) abort();
  });
}

/** A response's JSON object; {} for anything else, such as a proxy's page. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
