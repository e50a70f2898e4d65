"""The protocol around the routes: keys, methods, bodies, errors that name what is wrong."""
import json
import socket

import pytest


@pytest.fixture
def reader(api):
    made = api.post("/v1/keys", {"name": "reader", "role": "readOnly"})
    assert made.status == 201
    yield api.with_key(made.json["secret"])
    api.call("DELETE", "/v1/keys/" + made.json["id"])


def test_health_needs_no_key(api):
    answer = api.with_key(None).get("/healthz")
    assert answer.status == 200
    assert answer.json["status"] == "ok"


@pytest.mark.parametrize("key,code", [(None, "key_missing"), ("clk_" + "x" * 40, "key_unknown"),
                                      ("", "key_missing")])
def test_a_wrong_key_is_401_everywhere(api, key, code):
    for path in ("/v1/whoami", "/v1/sandboxes", "/v1/no-such-route"):
        answer = api.with_key(key).get(path)
        assert (answer.status, answer.code) == (401, code)
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_an_authorization_of_another_kind(api):
    answer = api.with_key(None).call("GET", "/v1/whoami", headers={"Authorization": "Basic eDp5"})
    assert answer.code == "key_missing"


def test_fault_40_a_revoked_key_works_no_longer(api):
    made = api.post("/v1/keys", {"name": "short-lived", "role": "member"}).json
    member = api.with_key(made["secret"])
    assert member.get("/v1/whoami").json["role"] == "member"
    assert made["secret"] not in json.dumps(api.get("/v1/keys").json)
    assert api.call("DELETE", "/v1/keys/" + made["id"]).status == 200
    assert member.get("/v1/whoami").code == "key_unknown"
    assert api.call("DELETE", "/v1/keys/" + made["id"]).code == "key_not_found"


def test_fault_41_a_read_only_key_only_reads(api, reader):
    """Every route of the description that is not a GET refuses it, before anything else."""
    description = reader.get("/openapi.json").json
    refused = 0
    for pattern, methods in description["paths"].items():
        path = pattern.replace("{sandbox}", "sbx_x").replace("{process}", "p").replace("{key}", "k")
        for method in methods:
            if method == "get":
                continue
            answer = reader.call(method.upper(), path, b"" if method != "delete" else None)
            assert (answer.status, answer.code) == (403, "role_insufficient"), (method, path)
            refused += 1
    assert refused > 15
    assert reader.get("/v1/sandboxes").status == 200
    assert reader.get("/v1/keys").code == "role_insufficient"


def test_the_description_is_what_the_router_does(api):
    """Described routes exist; a method that is not described is 405 with those that are."""
    description = api.get("/openapi.json").json
    assert description["openapi"].startswith("3.1")
    for pattern, methods in description["paths"].items():
        path = pattern.replace("{sandbox}", "sbx_none").replace("{process}", "p").replace(
            "{key}", "k")
        answer = api.call("PATCH", path, "{}")
        assert answer.status == 405, path
        allowed = set(answer.headers["Allow"].split(", ")) - {"HEAD"}
        assert allowed == {m.upper() for m in methods}, path
        for method, operation in methods.items():
            assert operation["summary"] and operation["operationId"]
            if method == "get":
                found = api.get(path)
                assert found.status == 200 or found.code != "route_not_found", path
    refs = json.dumps(description).split('"$ref": "#/components/schemas/')[1:]
    for ref in refs:
        assert ref.split('"')[0] in description["components"]["schemas"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/sandboxes/", "/v1//sandboxes", "/v1/nothing",
                                  "/v1/sandboxes/x/nothing", "/v1/sandboxes/x%2Fexec/y"])
def test_unknown_routes(api, path):
    answer = api.get(path)
    assert (answer.status, answer.code) == (404, "route_not_found")


def test_head_is_get_without_its_body(api):
    answer = api.call("HEAD", "/healthz")
    assert answer.status == 200
    assert answer.body == b""
    assert int(answer.headers["Content-Length"]) > 10


@pytest.mark.parametrize("target", ["/v1/sandboxes?x=%zz", "/v1/sandboxes?x=%0", "/v1/%00",
                                    "/v1/sandboxes?name=%ff", "/" + "a/" * 40],
                         ids=["hex", "short", "nul", "bytes", "segments"])
def test_a_malformed_target(api, target):
    answer = api.get(target)
    assert (answer.status, answer.code) == (400, "uri_malformed")


def test_rebinding_is_refused(api):
    for name in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7070"):
        answer = api.call("GET", "/healthz", headers={"Host": name})
        assert (answer.status, answer.code) == (403, "host_not_allowed")
    for name in ("localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:7070", "8000-sbx.localhost"):
        assert api.call("GET", "/healthz", headers={"Host": name}).status == 200


def test_no_cross_origin_headers(api):
    answer = api.call("GET", "/healthz", headers={"Origin": "https://evil.example"})
    assert not [h for h in answer.headers if h.lower().startswith("access-control")]


@pytest.mark.parametrize("body", ["{", "nonsense", '{"a":1,"a":2}', b"\xff\xfe", '{"name":"\\u0000"}',
                                  "[" * 100000],
                         ids=["cut", "word", "twice", "bytes", "nul", "deep"])
def test_malformed_json(api, body):
    answer = api.post("/v1/sandboxes", body)
    assert (answer.status, answer.code) == (400, "json_malformed")


def test_fault_46_every_problem_is_named(api):
    answer = api.post("/v1/sandboxes", {
        "vcpus": 99, "memoryMiB": "512", "diskMib": 1, "name": "-x", "onLeaseEnd": "explode",
        "env": {"1A": "x"}, "metadata": {"k" * 65: "v"}, "network": {"mode": "closed"}, "count": 0})
    assert (answer.status, answer.code) == (400, "validation_failed")
    assert answer.fields() >= {"vcpus", "memoryMiB", "diskMib", "name", "onLeaseEnd", "env.1A",
                               "count"}
    hints = {p["field"]: p.get("hint") for p in answer.json["error"]["details"]["fields"]}
    assert hints["diskMib"] == "diskMiB"
    assert "vcpus is 99" in answer.json["error"]["message"]


def test_query_and_body_problems_are_named_together(api):
    answer = api.call("GET", "/v1/sandboxes?limit=0&limit=5&state=gone&bogus=1")
    assert answer.fields() == {"limit", "state", "bogus"}
    assert api.get("/v1/sandboxes", cursor="abc").fields() == {"cursor"}


def test_a_body_where_none_belongs(api):
    answer = api.post("/v1/sandboxes/none/stop", {"force": True})
    assert (answer.code, answer.fields()) == ("validation_failed", {"force"})


def test_a_body_that_is_not_an_object(api):
    assert api.post("/v1/sandboxes", "[1]").code == "validation_failed"


def test_short_leases_have_a_code_of_their_own(api):
    answer = api.post("/v1/sandboxes", {"timeoutSeconds": 9})
    assert (answer.status, answer.code) == (400, "lease_too_short")


@pytest.mark.parametrize("size", [3 << 20, 10 << 20])
def test_a_large_body_is_413_and_the_connection_goes_on(api, size):
    c = api.connect()
    body = '{"name":"' + "x" * size + '"}'
    assert api.call("POST", "/v1/sandboxes", body, connection=c).code == "payload_too_large"
    assert api.call("GET", "/v1/whoami", connection=c).status == 200


def test_a_huge_body_is_refused_before_it_is_sent(api):
    head = (f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.key}\r\n"
            f"Content-Length: {1 << 40}\r\nExpect: 100-continue\r\n\r\n")
    with socket.create_connection((api.host, api.port), timeout=30) as s:
        s.sendall(head.encode())
        answer = b""
        while piece := s.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_chunked_body_is_counted(api):
    c = api.connect()
    chunks = iter([b'{"name":"'] + [b"x" * 65536] * 40)
    c.request("POST", "/v1/sandboxes", chunks, api.headers(), encode_chunked=True)
    assert c.getresponse().status == 413


def test_one_connection_serves_many_requests(api):
    c = api.connect()
    ids = {api.call("GET", "/v1/whoami", connection=c).headers["X-Request-Id"] for _ in range(50)}
    assert len(ids) == 50


@pytest.mark.parametrize("junk", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                                  b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/1.1\r\n\r\n",
                                  b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"],
                         ids=["empty", "short", "version", "tls", "no host", "long", "length"])
def test_what_is_not_http_ends_only_its_connection(api, junk):
    with socket.create_connection((api.host, api.port), timeout=30) as s:
        try:
            s.sendall(junk)
            s.shutdown(socket.SHUT_WR)
            while s.recv(65536):
                pass
        except OSError:
            pass  # it is closed already
    assert api.get("/healthz").status == 200


def test_errors_are_counted(api):
    before = api.get("/metrics").body.decode()
    api.get("/v1/nothing")
    after = api.get("/metrics").body.decode()

    def value(text):
        return int(text.split('cloche_http_requests_total{status="4xx"} ')[1].split("\n")[0])
    assert value(after) > value(before)


def test_an_error_nobody_knows_is_internal_and_keeps_its_words(api_host):
    answer = api_host.client.post("/v1/sandboxes", {"image": "odd"})
    assert (answer.status, answer.code) == (500, "internal")
    assert b"secret detail" not in answer.body
    assert answer.headers["X-Request-Id"] in api_host.log.read_text()
    assert "secret detail" in api_host.log.read_text()
    assert api_host.key not in api_host.log.read_text()
