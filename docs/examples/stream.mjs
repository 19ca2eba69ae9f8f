// Images as the frames of a stream, over a WebSocket, in Node and in browsers.
//
//   node docs/examples/stream.mjs http://127.0.0.1:8080 1.jpg 2.jpg 3.jpg       (Node 22; Node 20 needs --experimental-websocket)
//
// In a web page `classifyFrames` takes Blobs, such as those of canvas.toBlob or of a file input.

/**
 * Send one frame after another, each an encoded image, and yield the answer to each.
 * `address` is that of the service, `parameters` are those of the stream, such as { top_k: 1 }.
 */
export async function* classifyFrames(address, frames, { key, parameters = {} } = {}) {
  const url = new URL("stream", address.endsWith("/") ? address : `${address}/`);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = new URLSearchParams(parameters);
  // A web page cannot send headers with a WebSocket; a key travels as a second subprotocol.
  const socket = new WebSocket(url, ["gateway-stream", ...(key ? [`gateway-key.${key}`] : [])]);
  const next = () =>
    new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onmessage = ({ data }) => resolve(JSON.parse(data));
      // A WebSocket does not say why it was not opened; a GET of its address does.
      socket.onerror = () => reject(new Error(`There is no stream at ${url}; a GET of the address says why.`));
      socket.onclose = ({ code, reason }) => reject(new Error(`The stream ended: ${code} ${reason}`));
    });
  await next();
  try {
    for await (const frame of frames) {
      socket.send(frame);
      const answer = await next();
      if (answer.type === "error") throw new Error(`${answer.error.code}: ${answer.error.message}`);
      yield answer;
    }
  } finally {
    socket.close();
  }
}

/** The command line in Node. */
async function main([address, ...names]) {
  if (!names.length) throw new Error("Usage: node stream.mjs ADDRESS IMAGE…");
  const { readFile } = await import("node:fs/promises");
  async function* files() {
    for (const name of names) yield readFile(name);
  }
  for await (const { frame, predictions, sequence, error } of classifyFrames(address, files(), { parameters: { top_k: 1 } })) {
    const words = (found) => found.map(({ label, score }) => `${label} ${(100 * score).toFixed(1)} %`).join(", ");
    console.log(names[frame], error ? error.message : words(predictions), "| so far:", words(sequence?.predictions ?? []));
  }
}

if (globalThis.process?.versions?.node) {
  const { pathToFileURL } = await import("node:url");
  if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) await main(process.argv.slice(2));
}
