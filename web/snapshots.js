// Snapshots: drop a file or open one that a run left, then the same page as `snapshot --html`
// writes.

import { bytes, el } from "memroom/format.js";
import { getBuffer, getJSON, upload } from "memroom/net.js";
import { unpack } from "memroom/payload.js";
import { showSnapshot } from "memroom/snapshot.js";

export class SnapshotsView {
  constructor(main, id) {
    this.main = main;
    this.stop = new AbortController();
    if (id) this.open(id);
    else this.choose();
  }

  async choose() {
    document.title = "Snapshots · memroom";
    const input = el("input", { type: "file", id: "file", class: "unseen" });
    input.addEventListener("change", () => input.files.length > 0 && this.send(input.files[0]));
    this.drop = el(
      "div",
      { class: "drop" },
      el(
        "p",
        {},
        el("b", {}, "Drop a snapshot here"),
        " or ",
        el("label", { for: "file", class: "button" }, "choose a file"),
        input,
      ),
      el(
        "p",
        { class: "soft" },
        "What torch.cuda.memory._dump_snapshot() writes, any pickle protocol, plain or as .gz, .xz, .zst. It goes to the memroom serve that this page came from, and nowhere else.",
      ),
    );
    this.state = el("p", { role: "status", "aria-live": "polite" });
    this.list = el("div");
    this.main.append(el("h1", {}, "Snapshots"), this.drop, this.state, this.list);
    const { signal } = this.stop;
    window.addEventListener(
      "dragover",
      (e) => {
        e.preventDefault();
        this.drop.classList.add("over");
      },
      { signal },
    );
    window.addEventListener("dragleave", () => this.drop.classList.remove("over"), { signal });
    window.addEventListener(
      "drop",
      (e) => {
        e.preventDefault();
        this.drop.classList.remove("over");
        if (e.dataTransfer.files.length > 0) this.send(e.dataTransfer.files[0]);
      },
      { signal },
    );
    try {
      const known = await getJSON("/api/snapshots", { signal });
      this.limit = known.upload_limit;
      const item = (id, name, size, note) =>
        el(
          "li",
          {},
          el("a", { href: `/snapshots/${encodeURIComponent(id)}` }, name),
          ` ${bytes(size)} `,
          el("span", { class: "soft" }, note),
        );
      const open = known.open.filter((o) => !o.run);
      if (open.length > 0)
        this.list.append(
          el("h2", {}, "Uploaded"),
          el(
            "ul",
            {},
            ...open.map((o) => item(o.id, o.name, o.size, o.state === "failed" ? o.error : "")),
          ),
        );
      if (known.runs.length > 0)
        this.list.append(
          el("h2", {}, "Left by runs"),
          el(
            "ul",
            {},
            ...known.runs.map((r) => item(r.dump.id, r.dump.name, r.dump.size, `run ${r.run}`)),
          ),
        );
      else
        this.list.append(
          el(
            "p",
            { class: "soft" },
            "Runs leave snapshots when PyTorch runs out of GPU memory; there are none yet.",
          ),
        );
    } catch (problem) {
      if (problem.name !== "AbortError") this.fail(problem.message);
    }
  }

  async send(file) {
    if (this.limit && file.size > this.limit) {
      this.fail(
        `${file.name} has ${bytes(file.size)}; this server takes at most ${bytes(this.limit)} (--upload-limit).`,
      );
      return;
    }
    try {
      const made = await upload(
        `/api/snapshots?name=${encodeURIComponent(file.name)}`,
        file,
        (now, all) => {
          this.state.textContent =
            now < all
              ? `sending ${file.name}: ${Math.floor((100 * now) / all)} %`
              : `reading ${file.name} ...`;
        },
      );
      history.pushState(null, "", `/snapshots/${encodeURIComponent(made.id)}`);
      this.main.replaceChildren();
      await this.open(made.id);
    } catch (problem) {
      this.fail(problem.message);
    }
  }

  fail(text) {
    this.state.className = "problem";
    this.state.textContent = text;
  }

  async open(id) {
    const at = `/api/snapshots/${encodeURIComponent(id)}`;
    this.main.replaceChildren(document.getElementById("snapshot-template").content.cloneNode(true));
    const { signal } = this.stop;
    try {
      const payload = unpack(await getBuffer(`${at}/data`, { signal }));
      document.title = `${payload.file} · memroom`;
      this.page = showSnapshot(payload, signal);
      this.page.comparing();
      const tables = await getJSON(`${at}/whatif`, { signal });
      this.page.compared(tables.devices || []);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (this.page) {
        this.page.compared([], problem.message);
        return;
      }
      this.main.replaceChildren(
        el("h1", {}, "This snapshot cannot be shown"),
        el("p", { class: "problem", role: "alert" }, problem.message),
        el("p", {}, el("a", { href: "/snapshots" }, "Another one")),
      );
    }
  }

  close() {
    this.stop.abort();
  }
}
