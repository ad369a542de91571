"""Runs cells in a real kernel, one after the other, and prints what each of them shows.

Cells come on stdin, divided by lines of dashes; each is followed by its output and another such
line.
"""

import sys

import jupyter_client

manager = jupyter_client.KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
client.start_channels()
try:
    client.wait_for_ready(timeout=120)
    for cell in sys.stdin.read().split("-----\n"):

        def show(message):
            content = message["content"]
            if "ename" in content:
                print("raised", content["ename"])
            else:
                print(content.get("text") or content.get("data", {}).get("text/plain", ""))

        client.execute_interactive(cell, timeout=300, output_hook=show)
        print("-----", flush=True)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
