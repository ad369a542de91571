// Whether the server is heard.

export function linkState(up) {
  const node = document.getElementById("link-state");
  if (!node) return;
  node.className = up ? "up" : "down";
  node.textContent = up ? "live" : "connection lost: trying again, nothing will be missing";
}

/** Pictures are drawn anew in the colours of now; they do so when the window changes its size. */
export function redraw() {
  window.dispatchEvent(new Event("resize"));
}
