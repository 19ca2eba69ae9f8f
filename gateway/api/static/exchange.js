// One POST whose upload can be watched, which fetch cannot do.

/**
 * Send a form. `sent` is called with the bytes that are out so far, `line` with each line of an answer in JSON lines as
 * it comes, and with the headers; what `line` throws ends the exchange. Returns `{ status, ok, header, streamed, text }`.
 * Throws TypeError where the connection fails, and an AbortError when `signal` says so.
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
