"""Sandboxes as records: created, listed, renewed, stopped, deleted; requests repeated."""
import time
import uuid

import pytest


def wait_until(what, seconds=20):
    """Polls a condition that has no event to wait on."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


def check_shape(api, name, value):
    """A real answer against the published description."""
    schema = api.get("/openapi.json").json["components"]["schemas"][name]
    assert set(schema["required"]) <= set(value), set(schema["required"]) - set(value)
    assert set(value) <= set(schema["properties"]), set(value) - set(schema["properties"])
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list,
             "null": type(None)}
    for field, v in value.items():
        kind = schema["properties"][field]["type"]
        kind = kind if isinstance(kind, list) else [kind]
        assert isinstance(v, tuple(kinds[k] for k in kind)), (field, v)


@pytest.fixture
def make(api):
    made = []

    def create(**body):
        answer = api.post("/v1/sandboxes", body)
        assert answer.status == 201, answer.body
        made.append(answer.json["id"])
        return answer.json
    yield create
    for i in made:
        api.call("DELETE", f"/v1/sandboxes/{i}")


def test_the_life_of_a_sandbox(api, make):
    name = "life-" + uuid.uuid4().hex[:8]
    s = make(name=name, metadata={"team": "blue"}, timeoutSeconds=600)
    check_shape(api, "Sandbox", s)
    assert (s["state"], s["name"], s["metadata"], s["stopReason"]) == (
        "running", name, {"team": "blue"}, None)
    assert s["leaseEndsAt"] > s["startedAt"]
    assert api.get("/v1/sandboxes/" + s["id"]).json["id"] == s["id"]
    assert api.get("/v1/sandboxes/" + name).json["id"] == s["id"]

    stopped = api.post(f"/v1/sandboxes/{name}/stop").json
    assert (stopped["state"], stopped["stopReason"]) == ("stopped", "request")
    answer = api.post(f"/v1/sandboxes/{name}/exec", {"argv": ["true"]})
    assert (answer.status, answer.code) == (409, "sandbox_not_running")
    assert "/start" in answer.json["error"]["fix"]

    started = api.post(f"/v1/sandboxes/{name}/start").json
    assert started["state"] == "running"
    assert started["generation"] > s["generation"]

    deleted = api.call("DELETE", f"/v1/sandboxes/{name}")
    assert (deleted.status, deleted.json["state"]) == (200, "deleted")
    assert api.get(f"/v1/sandboxes/{name}").code == "sandbox_not_found"
    assert api.call("DELETE", f"/v1/sandboxes/{s['id']}").code == "sandbox_not_found"
    events = [e["type"] for e in api.get("/v1/events", sandbox=s["id"]).json["data"]]
    assert events[0] == "sandbox.created"
    assert events[-1] == "sandbox.deleted"


def test_fault_45_renew_answers_the_new_end(api, make):
    s = make(timeoutSeconds=60)
    renewed = api.post(f"/v1/sandboxes/{s['id']}/renew", {"timeoutSeconds": 7200}).json
    assert renewed["leaseEndsAt"] > s["leaseEndsAt"]
    assert renewed["timeoutSeconds"] == 7200
    assert api.get(f"/v1/sandboxes/{s['id']}").json["leaseEndsAt"] == renewed["leaseEndsAt"]
    never = api.post(f"/v1/sandboxes/{s['id']}/renew", {"timeoutSeconds": None}).json
    assert (never["leaseEndsAt"], never["timeoutSeconds"]) == (None, None)
    assert api.post(f"/v1/sandboxes/{s['id']}/renew", {}).fields() == {"timeoutSeconds"}


def test_names_are_unique(api, make):
    name = "one-" + uuid.uuid4().hex[:8]
    make(name=name)
    answer = api.post("/v1/sandboxes", {"name": name})
    assert (answer.status, answer.code) == (409, "name_taken")


def test_list_filters_and_pages(api, make):
    tag = uuid.uuid4().hex
    ids = [make(metadata={"tag": tag, "n": str(n)})["id"] for n in range(5)][::-1]
    seen, cursor = [], None
    while True:
        query = {"limit": 2, "metadata.tag": tag, **({"cursor": cursor} if cursor else {})}
        page = api.get("/v1/sandboxes", **query).json
        assert len(page["data"]) <= 2
        seen += [s["id"] for s in page["data"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == ids
    both = api.get("/v1/sandboxes", **{"metadata.tag": tag, "metadata.n": "3"}).json["data"]
    assert [s["id"] for s in both] == [ids[1]]
    api.post(f"/v1/sandboxes/{ids[0]}/stop")
    stopped = api.get("/v1/sandboxes", state="stopped", **{"metadata.tag": tag}).json["data"]
    assert [s["id"] for s in stopped] == [ids[0]]


def test_who_does_not_wait_gets_the_sandbox_while_it_is_made(api_host):
    api = api_host.client
    answer = api.call("POST", "/v1/sandboxes?wait=0", {"image": "slow"})
    assert (answer.status, answer.json["state"]) == (202, "creating")
    check_shape(api, "Sandbox", answer.json)
    path = "/v1/sandboxes/" + answer.json["id"]
    assert api.get(path).json["state"] == "creating"
    assert wait_until(lambda: api.get(path).json["state"] == "running")
    api.call("DELETE", path)
    waited = api.call("POST", "/v1/sandboxes?wait=60", {"image": "slow"})
    assert (waited.status, waited.json["state"]) == (201, "running")
    api.call("DELETE", "/v1/sandboxes/" + waited.json["id"])
    failed = api.call("POST", "/v1/sandboxes?wait=60", {"image": "broken"})
    assert (failed.status, failed.code) == (500, "boot_failed")
    assert failed.json["error"]["details"]["serialTail"]
    assert api.call("POST", "/v1/sandboxes?wait=1", {"count": 2}).fields() == {"wait"}


def test_a_stop_waits_for_what_is_being_made(api_host):
    answer = api_host.client.call("POST", "/v1/sandboxes?wait=0", {"image": "slow"})
    api_host.stop()
    api_host.start()
    path = "/v1/sandboxes/" + answer.json["id"]
    assert api_host.client.get(path).json["state"] == "running"
    api_host.client.call("DELETE", path)


def test_many_at_once_answer_one_by_one(api):
    answer = api.post("/v1/sandboxes", {"count": 3})
    assert answer.status == 201
    ids = {r["sandbox"]["id"] for r in answer.json["data"]}
    assert len(ids) == 3
    for i in ids:
        api.call("DELETE", "/v1/sandboxes/" + i)
    assert api.post("/v1/sandboxes", {"count": 2, "name": "x"}).fields() == {"name"}


@pytest.mark.parametrize("body,field", [
    ({"snapshot": "x"}, "snapshot"), ({"network": {"mode": "open"}}, "network.mode"),
    ({"secrets": ["x"]}, "secrets"), ({"maxCostMicros": 1}, "maxCostMicros"),
    ({"onLeaseEnd": "pause"}, "onLeaseEnd"), ({"idleSeconds": 60}, "idleSeconds")])
def test_what_is_not_there_yet_is_refused_not_ignored(api, body, field):
    answer = api.post("/v1/sandboxes", body)
    assert (answer.status, answer.code) == (501, "not_available")
    assert answer.fields() == {field}


@pytest.mark.parametrize("verb,body", [("pause", {}), ("resume", {}), ("fork", {"count": 2}),
                                       ("snapshot", {}), ("rollback", {"snapshot": "x"})])
def test_verbs_that_are_not_there_yet(api, make, verb, body):
    s = make()
    answer = api.post(f"/v1/sandboxes/{s['id']}/{verb}", body)
    assert (answer.status, answer.code) == (501, "not_available")


def test_the_managers_errors_reach_the_client(api_host):
    api = api_host.client
    missing = api.post("/v1/sandboxes", {"image": "missing"})
    assert (missing.status, missing.code) == (404, "image_not_found")
    assert "there is: base" in missing.json["error"]["message"]
    full = api.post("/v1/sandboxes", {"image": "full"})
    assert (full.status, full.code) == (503, "capacity_memory")
    assert full.json["error"]["retryable"] is True
    assert int(full.headers["Retry-After"]) > 0
    broken = api.post("/v1/sandboxes", {"image": "broken"})
    assert (broken.status, broken.code) == (500, "boot_failed")
    assert broken.json["error"]["details"]["serialTail"] == ["Kernel panic"]
    many = api.post("/v1/sandboxes", {"image": "broken", "count": 2})
    assert (many.status, many.code) == (500, "boot_failed")
    assert len(many.json["error"]["details"]["results"]) == 2


def test_a_repeated_request_is_answered_from_the_record(api):
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"metadata": {"tag": key["Idempotency-Key"]}}
    first = api.post("/v1/sandboxes", body, headers=key)
    again = api.post("/v1/sandboxes", body, headers=key)
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert again.headers["Idempotency-Replayed"] == "true"
    assert first.headers["Idempotency-Replayed"] is None
    found = api.get("/v1/sandboxes", **{"metadata.tag": key["Idempotency-Key"]}).json["data"]
    assert len(found) == 1
    other = api.post("/v1/sandboxes", {"vcpus": 1}, headers=key)
    assert (other.status, other.code) == (422, "idempotency_mismatch")
    api.call("DELETE", "/v1/sandboxes/" + first.json["id"])


def test_an_error_is_kept_only_when_repeating_cannot_help(api_host):
    api = api_host.client
    key = {"Idempotency-Key": uuid.uuid4().hex}
    assert api.post("/v1/sandboxes", {"image": "full"}, headers=key).status == 503
    assert api.post("/v1/sandboxes", {"image": "full"}, headers=key).headers[
        "Idempotency-Replayed"] is None
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first = api.post("/v1/sandboxes", {"image": "missing"}, headers=key)
    again = api.post("/v1/sandboxes", {"image": "missing"}, headers=key)
    assert first.body == again.body
    assert again.headers["Idempotency-Replayed"] == "true"


def test_a_bad_idempotency_key(api):
    answer = api.post("/v1/sandboxes", {}, headers={"Idempotency-Key": "x" * 256})
    assert (answer.status, answer.code) == (400, "header_invalid")


def test_records_survive_a_restart(api_host):
    s = api_host.client.post("/v1/sandboxes", {"name": "keeps", "metadata": {"a": "b"}}).json
    key = {"Idempotency-Key": "across-restart"}
    first = api_host.client.post("/v1/sandboxes", {"vcpus": 3}, headers=key)
    api_host.stop()
    api_host.start()
    kept = api_host.client.get("/v1/sandboxes/keeps").json
    assert (kept["id"], kept["metadata"]) == (s["id"], {"a": "b"})
    again = api_host.client.post("/v1/sandboxes", {"vcpus": 3}, headers=key)
    assert again.body == first.body
    for i in (s["id"], first.json["id"]):
        api_host.client.call("DELETE", "/v1/sandboxes/" + i)
