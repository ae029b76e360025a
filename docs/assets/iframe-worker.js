// Browsers start no worker for a page that was opened from a disk. There the search runs in a hidden frame instead, which has the
// same way of talking: postMessage and "message" events. Served over HTTP, pages keep real workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const answer = data => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.postMessage = answer;
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.head.append(script);
      });
      this.tell = data => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      this.end = () => frame.remove();
    }

    postMessage(data) {
      this.ready.then(() => this.tell(data));
    }

    terminate() {
      this.end();
    }
  };
}
