"""A small client of the HTTP API for the tests: it hides nothing, so that tests can be rude too."""
import base64
import http.client
import json
import urllib.parse


class ApiError(Exception):
    def __init__(self, status, error):
        super().__init__(f"{status} {error.get('code')}: {error.get('message')}")
        self.status = status
        self.error = error
        self.code = error.get("code")


class Api:
    """One daemon and one key. timeout: seconds without a byte before a call is given up."""

    def __init__(self, host, port, key, timeout=300):
        self.host, self.port, self.key, self.timeout = host, port, key, timeout
        self.made = []  # ids of all sandboxes that were made

    def raw(self, method, path, body=None, headers=None):
        """Sends exactly that; returns (status, headers, bytes)."""
        conn = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            all_headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            all_headers.update(headers or {})
            conn.request(method, path, body=body, headers=all_headers)
            r = conn.getresponse()
            return r.status, r.headers, r.read()
        finally:
            conn.close()

    def call(self, method, path, body=None, headers=None):
        """A JSON call; raises ApiError for every refusal."""
        data = None
        headers = dict(headers or {})
        if body is not None:
            data = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        status, _, answer = self.raw(method, path, data, headers)
        value = json.loads(answer) if answer else None
        if status >= 400:
            raise ApiError(status, value["error"])
        return value

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body=None):
        return self.call("POST", path, body)

    def create(self, **fields):
        box = Sandbox(self, self.post("/v1/sandboxes", fields))
        self.made.append(box.id)
        return box

    def sandboxes(self, query=""):
        rows, cursor = [], None
        while True:
            more = f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""
            page = self.get(f"/v1/sandboxes?limit=100{query}{more}")
            rows += page["data"]
            cursor = page["nextCursor"]
            if not cursor:
                return rows


class Stream:
    """A command's NDJSON stream, read line by line."""

    def __init__(self, api, path, body, method="POST"):
        self.conn = http.client.HTTPConnection(api.host, api.port, timeout=api.timeout)
        headers = {"Authorization": f"Bearer {api.key}", "Accept": "application/x-ndjson"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        self.conn.request(method, path, json.dumps(body) if body is not None else None, headers)
        self.response = self.conn.getresponse()
        if self.response.status >= 400:
            error = json.loads(self.response.read())["error"]
            self.conn.close()
            raise ApiError(self.response.status, error)
        self.process = None
        self.exit = None
        self.bytes = {"stdout": bytearray(), "stderr": bytearray()}
        self.dropped = 0

    def __iter__(self):
        for line in self.response:
            event = json.loads(line)
            self.take(event)
            yield event

    def take(self, event):
        kind = event["type"]
        if kind == "start":
            self.process = event["processId"]
        elif kind in self.bytes:
            data = (event["data"].encode() if "data" in event else base64.b64decode(event["base64"]))
            assert event["offset"] == len(self.bytes[kind]), "bytes of the stream are missing"
            self.bytes[kind] += data
        elif kind == "dropped":
            self.dropped += event["bytes"]
        elif kind == "exit":
            self.exit = event

    def until(self, wanted):
        """Reads on until wanted(self) holds; False when the stream ended before."""
        if wanted(self):
            return True
        return any(wanted(self) for _ in self)

    def drain(self):
        for _ in self:
            pass
        return self

    def close(self):
        self.response.close()
        self.conn.close()


class Sandbox:
    def __init__(self, api, row):
        self.api, self.row, self.id = api, row, row["id"]
        self.path = f"/v1/sandboxes/{self.id}"

    def call(self, method, tail="", body=None):
        return self.api.call(method, self.path + tail, body)

    def get(self):
        return self.call("GET")

    def delete(self):
        return self.call("DELETE")

    def stop(self):
        return self.call("POST", "/stop")

    def start(self):
        return self.call("POST", "/start")

    @staticmethod
    def command(cmd, fields):
        return {("command" if isinstance(cmd, str) else "argv"): cmd, **fields}

    def exec(self, cmd, **fields):
        """A list runs directly, a string as shell text. The whole answer."""
        return self.call("POST", "/exec", self.command(cmd, fields))

    def out(self, cmd, **fields):
        """stdout of a command that must succeed."""
        r = self.exec(cmd, **fields)
        assert r["exitCode"] == 0, r
        return r["stdout"]

    def stream(self, cmd, **fields):
        return Stream(self.api, self.path + "/exec", self.command(cmd, fields))

    def background(self, cmd, **fields):
        return self.call("POST", "/processes", self.command(cmd, fields))

    def output(self, process, cursor=None, follow=True):
        query = f"?follow={'true' if follow else 'false'}" + (f"&cursor={cursor}" if cursor else "")
        return Stream(self.api, f"{self.path}/processes/{process}/output{query}", None, "GET")

    def write(self, path, data, **query):
        q = urllib.parse.urlencode({"path": path, **query})
        status, _, answer = self.api.raw("PUT", f"{self.path}/files?{q}", data,
                                         {"Content-Type": "application/octet-stream"})
        if status >= 400:
            raise ApiError(status, json.loads(answer)["error"])
        return json.loads(answer)

    def read(self, path, headers=None):
        q = urllib.parse.urlencode({"path": path})
        status, _, answer = self.api.raw("GET", f"{self.path}/files?{q}", None, headers)
        if status >= 400:
            raise ApiError(status, json.loads(answer)["error"])
        return answer
