// Requests to our own server, with errors that say what it said.

/** JSON of an address; throws an Error with the server's sentence and the status in .status. */
export async function getJSON(path, options = {}) {
  const answer = await request(path, options);
  return answer.json();
}

export async function getBuffer(path, options = {}) {
  const answer = await request(path, options);
  return answer.arrayBuffer();
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("The server does not answer. Is memroom serve still running?");
  }
  if (!answer.ok) {
    let text = `The server answered ${answer.status}.`;
    try {
      text = (await answer.json()).error || text;
    } catch {
      /* no sentence: the status has to do */
    }
    const problem = new Error(text);
    problem.status = answer.status;
    throw problem;
  }
  return answer;
}

/** Uploads a file and tells how far it is. */
export function upload(path, file, progress) {
  return new Promise((done, fail) => {
    const x = new XMLHttpRequest();
    x.open("POST", path);
    x.setRequestHeader("Content-Type", "application/octet-stream");
    x.upload.onprogress = (e) => progress(e.loaded, e.total);
    x.onerror = () => fail(new Error("The upload broke off: the server does not answer any more."));
    x.onload = () => {
      let said = {};
      try {
        said = JSON.parse(x.responseText);
      } catch {
        /* an answer that is not ours */
      }
      if (x.status === 200) done(said);
      else fail(new Error(said.error || `The server answered ${x.status}.`));
    };
    x.send(file);
  });
}

/**
 * A stream of server-sent events. The browser comes back by itself and names the last event it saw,
 * so nothing is lost.
 */
export class Live {
  /** on: {KIND(data), link(up)} */
  constructor(path, on) {
    this.source = new EventSource(path);
    this.source.onopen = () => on.link && on.link(true);
    this.source.onerror = () => {
      if (this.closed) return;
      if (on.link) on.link(false);
      // the browser gives up on an answer that is no stream: try again ourselves
      if (this.source.readyState === EventSource.CLOSED)
        this.retry = setTimeout(() => on.again && on.again(), 3000);
    };
    for (const [kind, handle] of Object.entries(on)) {
      if (kind === "link" || kind === "again") continue;
      this.source.addEventListener(kind, (e) => handle(JSON.parse(e.data), e.lastEventId));
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.retry);
    this.source.close();
  }
}
