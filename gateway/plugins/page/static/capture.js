// A camera of this machine, shown in a video element, and its frames as JPEGs.

const QUALITY = 0.8;
const REFUSED = {
  NotAllowedError: "This page may not use the camera. Allow it in your browser's settings for this site, beside the address, then start again.",
  NotFoundError: "No camera was found. Connect one, then start again.",
  NotReadableError: "The camera cannot be opened; another program may be using it. Close that program, then start again.",
};

/** Why the camera cannot be used, and what to do. */
export class CameraFault extends Error {}

/** Show a camera in `video`; `gone` is called with a CameraFault when it ends by itself. */
export class Capture {
  #video;
  #gone;
  #media = null;
  #start = 0;
  #canvas = document.createElement("canvas");

  constructor(video, gone) {
    this.#video = video;
    this.#gone = gone;
  }

  /**
   * Start a camera, of a device id or ""; throws CameraFault. Returns false if it was stopped, or another
   * one started, while the user was asked for permission.
   */
  async start(device) {
    if (!isSecureContext || !navigator.mediaDevices?.getUserMedia) throw new CameraFault(insecure());
    this.#start += 1;
    const start = this.#start;
    const media = await requestMedia(device);
    if (start !== this.#start) {
      for (const track of media.getTracks()) track.stop();
      return false;
    }
    this.#release();
    this.#media = media;
    const [track] = media.getVideoTracks();
    track.onended = () => this.#gone(new CameraFault("The camera was disconnected, or this page may no longer use it."));
    this.#video.srcObject = media;
    await this.#video.play().catch(() => {});
    return start === this.#start;
  }

  /** Stop the camera; its light goes off. */
  stop() {
    this.#start += 1;
    this.#release();
  }

  #release() {
    for (const track of this.#media?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.#media = this.#video.srcObject = null;
  }

  get running() {
    return this.#media !== null;
  }

  /** The id of the running camera. */
  get device() {
    return this.#media?.getVideoTracks()[0].getSettings().deviceId ?? "";
  }

  /** Frames per second of the camera, if it reports them. */
  get rate() {
    return this.#media?.getVideoTracks()[0].getSettings().frameRate || Infinity;
  }

  /** The current picture as a JPEG, at most `longest` pixels on its longer side; null before the first picture. */
  frame(longest) {
    const { videoWidth: width, videoHeight: height } = this.#video;
    if (!width || this.#video.readyState < HTMLMediaElement.HAVE_CURRENT_DATA) return Promise.resolve(null);
    const scale = Math.min(1, longest / Math.max(width, height));
    this.#canvas.width = Math.max(1, Math.round(width * scale));
    this.#canvas.height = Math.max(1, Math.round(height * scale));
    const context = this.#canvas.getContext("2d", { alpha: false });
    context.drawImage(this.#video, 0, 0, this.#canvas.width, this.#canvas.height);
    return new Promise((resolve) => this.#canvas.toBlob(resolve, "image/jpeg", QUALITY));
  }
}

/** The cameras; browsers name them only to pages with permission to use them. */
export async function cameras() {
  const devices = await navigator.mediaDevices.enumerateDevices().catch(() => []);
  return devices.filter(({ kind, deviceId }) => kind === "videoinput" && deviceId);
}

async function requestMedia(device) {
  // Prefer the back camera of a phone.
  const video = { width: { ideal: 1280 }, ...(device ? { deviceId: { ideal: device } } : { facingMode: { ideal: "environment" } }) };
  try {
    return await navigator.mediaDevices.getUserMedia({ video });
  } catch ({ name, message }) {
    throw new CameraFault(REFUSED[name] ?? `The camera cannot be used: ${message || name}.`);
  }
}

function insecure() {
  const port = location.port || "80";
  return (
    "Browsers allow the camera only to pages that come over HTTPS or from localhost. Put HTTPS in front of the gateway, or run " +
    `“ssh -L 8080:localhost:${port} ${location.hostname}” and open localhost:8080.`
  );
}
