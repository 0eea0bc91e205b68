"""A trivial worker for the supervisor's tests: serves /health and prints the ready line; flags make it misbehave."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers 200 to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def main(flags: list[str]) -> None:
    if "--fail" in flags:
        print("cannot load the model: no such file", file=sys.stderr)
        sys.exit(3)
    if "--ignore-term" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--child" in flags:
        child = subprocess.Popen(["sleep", "600"])  # It holds our standard output, as an engine process does.
        print(f"child {child.pid}", flush=True)
    if "--never-ready" in flags:
        print("loading", flush=True)
        signal.pause()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("x" * (2 << 20) if "--long-line" in flags else f"pid {os.getpid()}", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    print(json.dumps({"event": "ready", "url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    print(f"colour {os.environ.get('COLOUR', 'none')}", flush=True)
    signal.pause()


main(sys.argv[1:])
