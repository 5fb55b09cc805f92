"""Serves the page on this machine, on a port that is free."""

from __future__ import annotations

import json
import socket
import sys
import threading
import webbrowser

HOST = "127.0.0.1"
#: So many ports are tried from the first one on.
TRIES = 50


def listen(port: int) -> socket.socket:
    """A socket on the port, or on the next one that is free."""
    for candidate in range(port, min(port + TRIES, 65536)):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, candidate))
            listening.listen(128)
            return listening
        except OSError:
            listening.close()
    raise ValueError(f"--port must be free, got {port}, which is busy, as the {TRIES} ports after it are. Choose another one.")


def serve(port: int, browser: bool, as_json: bool) -> None:
    """Serve the page until somebody interrupts it."""
    import uvicorn

    from betastar.web.api import create_app

    listening = listen(port)
    app = create_app()
    try:
        for worker in app.state.workers:
            worker.start()
        _say(port, listening.getsockname()[1], browser, as_json)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # that is how it is ended
    finally:
        listening.close()
        for worker in app.state.workers:
            worker.stop()


def _say(port: int, taken: int, browser: bool, as_json: bool) -> None:
    """Where the page is; it is there already, since the port is listened on."""
    url = f"http://{HOST}:{taken}/"
    if taken != port:
        print(f"betastar: port {port} is busy; using {taken}.", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"url": url, "port": taken, "openapi": f"{url}openapi.json"}), flush=True)
    else:
        print(f"The page is at {url} (the API behind it at {url}openapi.json). End it with Ctrl-C.", flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [url]).start()
