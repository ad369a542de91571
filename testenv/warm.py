"""Runs scripts in processes that have imported a framework already: importing it takes longer than
most of the scripts.

`warm.py serve SOCKET MODULE...` imports the modules and forks a process for each request, until its
standard input ends. `warm.py ask SOCKET SCRIPT ARGUMENT...` stands where Python would: it hands its
folder, environment, arguments and streams over, and ends as the script ends. The probe starts in
the new process as in a new Python, by sitecustomize on PYTHONPATH; it finds the framework imported.
"""

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types
from typing import List, Optional


def ask(address: str, argv: List[str]) -> int:
    """Asks for a script; gives its exit code."""
    request = json.dumps({"argv": argv, "cwd": os.getcwd(), "environ": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        server.sendmsg([len(request).to_bytes(8, "big")], streams)
        server.sendall(request)
        code = server.recv(1)
    return code[0] if code else 70


def serve(address: str, modules: List[str]) -> Optional[dict]:
    """Gives a request in the process that is to run it, and None at the end."""
    for name in modules:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    gc.collect()
    gc.freeze()  # what is there belongs to all of them
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in ready:
            return None
        asked, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return accompany(asked)
        asked.close()


def accompany(asked: socket.socket) -> dict:
    """Forks the process that runs the script and gives the request there; here it waits, and tells
    how the script ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, rights, _, _ = asked.recvmsg(8, socket.CMSG_SPACE(12))
    streams = array.array("i", rights[0][2])
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += asked.recv(1 << 16)
    child = os.fork()
    if child:
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(child, 0)
        code = 128 + status % 128 if status % 128 else status >> 8
        asked.sendall(bytes([code]))
        os._exit(0)
    asked.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    request: dict = json.loads(text)
    return request


def run(request: dict) -> None:
    """Runs a script as the main program, with the probe that the environment asks for."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[0:1] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.modules.pop("sitecustomize", None)
    importlib.invalidate_caches()
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    path = request["argv"][0]
    sys.argv = request["argv"]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path, "rb") as script:
        code = compile(script.read(), path, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    found = serve(sys.argv[2], sys.argv[3:])
    if found is not None:
        run(found)
