"""A daemon that misbehaves to order: what the command line must survive. Real ones are in daemon.py."""
import http.server
import json
import threading


class BrokenDaemon:
    """Answers (method, path without query) with functions of the handler; records every request."""

    def __init__(self, routes):
        self.requests = []
        self.seen = threading.Condition()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                self.body = self.rfile.read(length) if length else b""
                path = self.path.split("?")[0]
                with owner.seen:
                    owner.requests.append((self.command, self.path, self.body))
                    owner.seen.notify_all()
                route = routes.get((self.command, path))
                if route:
                    route(self)
                else:
                    self.json(404, {"error": {"code": "not_found", "message": f"no {path}", "fix": ""}})

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def json(self, status, value):
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("X-Request-Id", "req_header")
                self.end_headers()
                self.wfile.write(data)

            def stream(self, *lines):
                """The head of a chunked NDJSON answer, and its first lines."""
                self.send_response(200)
                self.send_header("Content-Type", "application/x-ndjson")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.lines(*lines)

            def lines(self, *lines):
                for line in lines:
                    data = json.dumps(line).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def end(self):
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def wait_for(self, method, path, seconds=20):
        """Waits until such a request came and returns its body."""
        def found():
            return [b for m, p, b in self.requests if m == method and p.split("?")[0] == path]
        with self.seen:
            if not self.seen.wait_for(found, seconds):
                raise AssertionError(f"no {method} {path} came; got {self.requests}")
            return found()[0]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
