"""Plain servers of the test internet: one thread a connection, all addresses.

    9000  says "banner NAME\\n" first, then echoes (a server-first protocol)
    9001  echoes
    9002  reads to the end, then answers the count (half-close)
    9003  sends 256 MiB and ends
    22    an SSH banner, then echoes
    8999  HTTP: counts an upload's bytes and hashes them
    8998  WebSocket echo
"""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(port, handler):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::", port))
    s.listen(1024)

    def loop():
        while True:
            c, _ = s.accept()
            threading.Thread(target=run, args=(c,), daemon=True).start()

    def run(c):
        try:
            with c:
                handler(c)
        except OSError:
            pass

    threading.Thread(target=loop, daemon=True).start()


def echo(c):
    while True:
        b = c.recv(65536)
        if not b:
            return
        c.sendall(b)


def banner(c):
    c.sendall(b"banner " + c.getsockname()[0].encode() + b"\n")
    echo(c)


def ssh(c):
    c.sendall(b"SSH-2.0-test\r\n")
    echo(c)


def count(c):
    n = 0
    while True:
        b = c.recv(1 << 20)
        if not b:
            break
        n += len(b)
    c.sendall(b"%d" % n)


def source(c):
    block = bytes(1 << 20)
    for _ in range(256):
        c.sendall(block)


class Upload(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        h, n = hashlib.sha256(), 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while True:
                size = int(self.rfile.readline(), 16)
                data = self.rfile.read(size)
                self.rfile.readline()
                if not size:
                    break
                h.update(data)
                n += size
        else:
            left = int(self.headers["Content-Length"])
            while left:
                data = self.rfile.read(min(left, 1 << 20))
                h.update(data)
                n += len(data)
                left -= len(data)
        body = f"{n} {h.hexdigest()}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST

    def log_message(self, *a):
        pass


def websocket():
    import asyncio

    import websockets

    async def handler(ws, path=None):
        async for m in ws:
            await ws.send(ws.request_headers.get("Authorization", "none") if m == "auth" else m)

    async def main():
        async with websockets.serve(handler, "127.0.0.1", 8998):
            await asyncio.Future()

    asyncio.run(main())


if __name__ == "__main__":
    serve(9001, echo)
    serve(9002, count)
    serve(9003, source)
    serve(22, ssh)
    threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", 8999), Upload).serve_forever, daemon=True).start()
    threading.Thread(target=websocket, daemon=True).start()
    serve(9000, banner)
    threading.Event().wait()
