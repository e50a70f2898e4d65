"""A daemon to talk to, and a plain HTTP client.

Each test runs twice: against an api_host (tests/tools) — the real API and store, and for each
sandbox the real agent as a process, which also runs under sanitizers and makes a manager's errors
on demand — and against a whole cloched. With CLOCHE_API_URL and CLOCHE_API_KEY set the tests talk
to that daemon instead; what only the api_host can do is then skipped and says so.
"""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import urllib.parse

import pytest

import hosts

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("CLOCHE_BUILD", ROOT / "build"))
API_HOST = BUILD / "tests/tools/api_host"
AGENT = pathlib.Path(os.environ.get("CLOCHE_AGENT", BUILD / "src/agent/cloche-agent"))


class Answer:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """The error's code; the answer must be a well-formed error."""
        error = self.json["error"]
        assert set(error) == {"code", "message", "fix", "details", "retryable", "requestId"}, error
        assert error["message"] and error["fix"]
        if self.headers["Idempotency-Replayed"] is None:
            assert error["requestId"] == self.headers["X-Request-Id"]
        return error["code"]

    def fields(self):
        return {p["field"] for p in self.json["error"]["details"]["fields"]}


class Client:
    def __init__(self, host, port, key):
        self.host, self.port, self.key = host, port, key

    def with_key(self, key):
        return Client(self.host, self.port, key)

    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def headers(self, extra=None):
        base = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {**base, **(extra or {})}

    def call(self, method, target, body=None, headers=None, connection=None, **query):
        if query:
            target += "?" + urllib.parse.urlencode(query)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        c = connection or self.connect()
        c.request(method, target, body, self.headers(headers))
        response = c.getresponse()
        answer = Answer(response, response.read())
        assert answer.headers["X-Request-Id"].startswith("req_")
        if connection is None:
            c.close()
        return answer

    def get(self, target, **query):
        return self.call("GET", target, **query)

    def post(self, target, body=None, **kw):
        return self.call("POST", target, {} if body is None else body, **kw)

    def stream(self, path, body, headers=None, method="POST"):
        """The open response of a stream of lines."""
        c = self.connect()
        accept = {"Accept": "application/x-ndjson", **(headers or {})}
        c.request(method, path, json.dumps(body) if body is not None else None,
                  self.headers(accept))
        response = c.getresponse()
        assert response.status == 200, response.read()
        response.connection_kept = c
        return response

    def lines(self, path, body, **kw):
        with self.stream(path, body, **kw) as response:
            lines = [json.loads(line) for line in response]
        response.connection_kept.close()
        return lines


class Host:
    """An api_host process."""

    def __init__(self, state, agent, **env):
        self.env = {**os.environ, **env}
        self.state, self.agent, self.log = state, agent, state / "log"
        self.client = Client("127.0.0.1", 0, None)
        self.start()

    def start(self):
        argv = [API_HOST, self.state, self.agent]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log,
                                            env=self.env)
        line = self.process.stdout.readline()
        assert line, self.complaint()
        self.key = (self.state / "admin.key").read_text().strip()
        self.client.port, self.client.key = json.loads(line)["port"], self.key

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.complaint()

    def complaint(self):
        """What the log has beside its records: a sanitizer's report, for example."""
        lines = self.log.read_text().splitlines()
        return "\n".join([x for x in lines if not x.startswith("{")][:40] + lines[-3:])

    def end_agents(self):
        """They outlive the api_host, as guests do."""
        for pid in self.state.glob("*.pid"):
            os.kill(int(pid.read_text()), signal.SIGTERM)

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture(scope="module")
def api_host(tmp_path_factory):
    if "CLOCHE_API_URL" in os.environ:
        pytest.skip("needs an api_host; CLOCHE_API_URL names another daemon")
    h = Host(tmp_path_factory.mktemp("state"), AGENT)
    yield h
    h.stop()
    h.end_agents()


@pytest.fixture(scope="session")
def cloched(tmp_path_factory):
    """A whole cloched, with the stand-in for its VMM."""
    why_not = hosts.why_not("process")
    if why_not:
        pytest.skip("cloched: " + why_not)
    h = hosts.make("process", tmp_path_factory.mktemp("cloched"))
    yield Client("127.0.0.1", h.port, h.key)
    h.close()


@pytest.fixture(scope="module", params=["api_host", "cloched"])
def api(request):
    if "CLOCHE_API_URL" not in os.environ:
        target = request.getfixturevalue(request.param)
        yield getattr(target, "client", target)
        return
    if request.param != "cloched":
        pytest.skip("CLOCHE_API_URL names another daemon")
    url = urllib.parse.urlsplit(os.environ["CLOCHE_API_URL"])
    yield Client(url.hostname, url.port, os.environ["CLOCHE_API_KEY"])


def make_sandbox(api):
    answer = api.post("/v1/sandboxes", {})
    assert answer.status == 201, answer.body
    path = "/v1/sandboxes/" + answer.json["id"]
    yield path
    api.call("DELETE", path)


@pytest.fixture(scope="module")
def sandbox(api):
    """The path of a running sandbox."""
    yield from make_sandbox(api)


@pytest.fixture(scope="module")
def api_host_sandbox(api_host):
    yield from make_sandbox(api_host.client)
