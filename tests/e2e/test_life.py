"""The life of sandboxes: states, leases, restarts of the daemon, failures, and what is left behind."""
import json
import os
import threading
import time

import pytest

from cloche_api import ApiError


def wait_state(box, states, seconds=600):
    end = time.monotonic() + seconds
    while True:
        row = box.get()
        if row["state"] in states:
            return row
        assert time.monotonic() < end, row
        time.sleep(0.1)


def test_a_sandbox_is_as_asked(new):
    b = new(name="as-asked", vcpus=1, memoryMiB=256, timeoutSeconds=1200, onLeaseEnd="delete",
            metadata={"team": "blue"}, env={"COLOUR": "red"})
    row = b.get()
    assert (row["name"], row["state"], row["vcpus"], row["memoryMiB"]) == ("as-asked", "running", 1, 256)
    assert row["metadata"] == {"team": "blue"} and row["onLeaseEnd"] == "delete"
    assert b.id in [r["id"] for r in b.api.sandboxes("&metadata.team=blue")]
    assert b.id not in [r["id"] for r in b.api.sandboxes("&metadata.team=red")]
    assert b.out("echo $COLOUR") == "red\n"
    assert b.api.get("/v1/sandboxes/as-asked")["id"] == b.id


@pytest.mark.real
def test_the_guest_has_the_asked_shape(new):
    b = new(vcpus=2, memoryMiB=384)
    assert b.out(["nproc"]) == "2\n"
    assert 300_000 < int(b.out("awk '/MemTotal/ {print $2}' /proc/meminfo")) <= 384 * 1024


def test_stop_and_start(new):
    b = new()
    row = b.stop()
    assert row["state"] == "stopped" and row["stopReason"]
    with pytest.raises(ApiError) as e:
        b.exec(["true"])
    assert (e.value.code, e.value.status) == ("sandbox_not_running", 409) and e.value.error["fix"]
    assert b.stop()["state"] == "stopped", "a second stop is no error"
    assert b.start()["state"] == "running"
    assert b.out(["echo", "again"]) == "again\n"


@pytest.mark.real
def test_a_stopped_sandbox_keeps_its_disk(new):
    b = new()
    b.write("/workspace/kept", "kept")
    b.stop()
    b.start()
    assert b.read("/workspace/kept") == b"kept"


def test_fault_14_delete_works_from_every_state(host, new):
    """Known fault 14: what is not running cannot be deleted, or is resumed first."""
    stopped = new()
    stopped.stop()
    assert stopped.delete()["state"] == "deleted"
    running = new()
    assert running.delete()["state"] == "deleted"
    with pytest.raises(ApiError) as e:
        running.delete()
    assert e.value.code == "sandbox_not_found"


def test_fault_45_renew_answers_the_new_end(new):
    b = new(timeoutSeconds=600)
    before = b.get()["leaseEndsAt"]
    after = b.call("POST", "/renew", {"timeoutSeconds": 7200})["leaseEndsAt"]
    assert after > before and b.get()["leaseEndsAt"] == after


@pytest.mark.parametrize("end,state", [("stop", "stopped"), ("delete", None)])
def test_a_lease_ends_as_asked(new, end, state):
    b = new(timeoutSeconds=10, onLeaseEnd=end)
    if state:
        assert wait_state(b, [state])["stopReason"] == "lease_ended"
        return
    deadline = time.monotonic() + 300
    while b.id in [r["id"] for r in b.api.sandboxes() if r["state"] != "deleted"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_fault_15_a_killed_daemon_loses_nothing(host, new):
    """Known fault 15, and more: kill -9 while a command runs loses neither sandbox nor command."""
    b = new()
    stopped = new()
    stopped.stop()
    p = b.background("echo before; read go; echo after; exit 9", openStdin=True)
    s = b.output(p["id"])
    assert s.until(lambda x: x.bytes["stdout"] == b"before\n")
    host.restart_after_kill()
    s.close()
    assert b.get()["state"] == "running"
    assert b.call("GET", f"/processes/{p['id']}")["state"] == "running"
    assert b.api.raw("POST", f"{b.path}/processes/{p['id']}/stdin?offset=0", b"go\n")[0] == 200
    s = b.output(p["id"]).drain()
    assert bytes(s.bytes["stdout"]) == b"before\nafter\n" and s.exit["code"] == 9
    assert stopped.get()["state"] == "stopped"
    assert stopped.start()["state"] == "running"


def test_a_killed_daemon_never_makes_success_up(host, box):
    """Known fault 1 again, for the caller whose daemon dies."""
    p = host.cloche_start("exec", box.id, "--", "sh", "-c", "echo ready; exec sleep 5")
    assert p.stdout.readline() == b"ready\n"
    host.restart_after_kill()
    _, err = p.communicate(timeout=120)
    assert p.returncode == 125 and b"outcome unknown" in err


@pytest.mark.real
def test_a_guest_that_powers_off_is_stopped(new):
    b = new()
    try:
        b.exec("sudo sh -c 'echo o > /proc/sysrq-trigger'; sleep 600")
    except ApiError as e:
        assert e.code in ("stream_broken", "guest_unreachable", "sandbox_not_running")
    row = wait_state(b, ["stopped", "failed"])
    assert row["stopReason"]
    assert b.start()["state"] == "running"


@pytest.mark.real
def test_a_guest_that_panics_is_told(new):
    b = new()
    try:
        b.exec("sudo sh -c 'echo c > /proc/sysrq-trigger'; sleep 600")
    except ApiError as e:
        assert e.code in ("stream_broken", "guest_unreachable", "sandbox_not_running")
    row = wait_state(b, ["stopped", "failed"])
    assert row["stopReason"]
    assert b.delete()["state"] == "deleted"


BAD_CREATES = [
    ({"vcpus": 0}, "validation_failed", 400),
    ({"vcpus": 10_000}, "validation_failed", 400),
    ({"vcpu": 1}, "validation_failed", 400),
    ({"vcpus": "2"}, "validation_failed", 400),
    ({"memoryMiB": 1}, None, 400),
    ({"memoryMiB": 1 << 40}, None, 400),
    ({"diskMiB": -1}, None, 400),
    ({"image": "no-such-image"}, "image_not_found", 404),
    ({"image": "../../etc"}, None, 400),
    ({"timeoutSeconds": 1}, "lease_too_short", 400),
    ({"onLeaseEnd": "explode"}, "validation_failed", 400),
    ({"name": "bad name"}, "validation_failed", 400),
    ({"env": {"1X": "y"}}, "validation_failed", 400),
    ({"network": {"mode": "opne"}}, "validation_failed", 400),
    ({"count": 0}, "validation_failed", 400)]


@pytest.mark.parametrize("fields,code,status", BAD_CREATES, ids=lambda v: json.dumps(v) if isinstance(v, dict) else "")
def test_fault_46_bad_creates_are_refused_with_reason(host, fields, code, status):
    with pytest.raises(ApiError) as e:
        host.api.create(**fields)
    assert (e.value.code if code else None, e.value.status) == (code, status) or \
        (code is None and e.value.status in (400, 404))
    assert e.value.error["message"] and e.value.error["fix"]


def test_all_problems_come_together(host):
    with pytest.raises(ApiError) as e:
        host.api.create(vcpu=2, memoryMiB="x", nmae="y")
    fields = {p["field"]: p.get("hint") for p in e.value.error["details"]["fields"]}
    assert fields == {"vcpu": "vcpus", "memoryMiB": None, "nmae": "name"}


@pytest.mark.parametrize("body,code", [
    (b"{", "json_malformed"), (b"[]", None), (b"\xff\xfe", "json_malformed"), (b'{"vcpus":1,"vcpus":2}', "json_malformed"),
    (b'{"name":"a\\u0000b"}', None), (b"[" * 100_000, "json_malformed"), (b"x" * (3 << 20), "payload_too_large")])
def test_fault_46_malformed_bodies(host, body, code):
    status, headers, answer = host.api.raw("POST", "/v1/sandboxes", body, {"Content-Type": "application/json"})
    error = json.loads(answer)["error"]
    assert 400 <= status < 500 and error["message"] and error["fix"]
    assert code is None or error["code"] == code
    assert headers["X-Request-Id"] == error["requestId"]


@pytest.mark.parametrize("key,code", [(None, "key_missing"), ("clk_wrong", "key_unknown"), ("\x80", "key_unknown")])
def test_fault_46_bad_keys(host, key, code):
    status, _, answer = host.api.raw("GET", "/v1/sandboxes", None,
                                     {"Authorization": f"Bearer {key}" if key else ""})
    assert (status, json.loads(answer)["error"]["code"]) == (401, code)


def make_image(host, name, kernel=None, initrd=None, damage=None):
    """An image folder beside the good one, wrong in one part."""
    host.make_image(name, kernel=kernel, initrd=initrd, damage=damage)


def test_a_corrupt_image_is_refused(host):
    make_image(host, "corrupt", damage="disk.raw")
    before = host.leftovers()
    with pytest.raises(ApiError) as e:
        host.api.create(image="corrupt")
    assert e.value.code == "image_corrupt" and e.value.error["fix"]
    assert host.leftovers() == before


@pytest.mark.real
def test_fault_38_a_kernel_that_does_not_boot_leaves_nothing(host):
    """Known fault 38: failed creates leak taps, namespaces, disks, cgroups."""
    make_image(host, "no-boot", kernel=b"\x7fELF" + os.urandom(100_000))
    before = host.leftovers()
    for _ in range(3):
        with pytest.raises(ApiError) as e:
            host.api.create(image="no-boot")
        assert e.value.code in ("boot_failed", "vmm_failed", "image_corrupt") and e.value.error["fix"]
    assert host.leftovers() == before


@pytest.mark.real
def test_fault_38_an_init_that_dies_leaves_nothing_and_shows_its_last_words(host):
    make_image(host, "no-init", initrd=b"")
    before = host.leftovers()
    with pytest.raises(ApiError) as e:
        host.api.create(image="no-init")
    assert e.value.code == "boot_failed"
    assert e.value.error["details"]["serialTail"]
    assert host.leftovers() == before


def test_nothing_leaks_over_many_lives(host):
    """fds, processes, files, cgroups and mounts before and after ten sandboxes and a hundred calls."""
    def life():
        b = host.api.create()
        for _ in range(10):
            b.exec(["true"])
        b.write("/tmp/leak-test", b"x" * 100_000)
        b.read("/tmp/leak-test")
        b.exec(["rm", "/tmp/leak-test"])
        s = b.stream("echo ready; exec sleep 1000")
        s.until(lambda x: x.bytes["stdout"] == b"ready\n")
        s.close()
        b.delete()
    life()
    before = settled(host)
    threads = [threading.Thread(target=life) for _ in range(2)]
    for _ in range(2):
        threads = [threading.Thread(target=life) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    end = time.monotonic() + 60
    while (after := settled(host)) != before and time.monotonic() < end:
        time.sleep(0.2)
    assert after == before


def settled(host):
    """Leftovers once two counts in a row agree: closing connections takes the daemon a moment."""
    last = None
    for _ in range(100):
        now = host.leftovers()
        if now == last:
            return now
        last = now
        time.sleep(0.1)
    return last


def test_run_leaves_nothing(host):
    r = host.cloche("run", "--vcpus", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (r.returncode, r.stdout, r.stderr) == (3, b"out\n", b"err\n")
    assert [b for b in host.api.sandboxes() if b["state"] != "deleted" and b["name"] is None] == []


def test_the_command_line_tells_a_story(host, tmp_path):
    """new, ls, exec with stdin, show, stop, exec refused, start, renew, logs, rm."""
    def ok(*args, **kw):
        r = host.cloche(*args, **kw)
        assert r.returncode == 0, (args, r.stderr)
        return r.stdout.decode()
    box = ok("new", "--name", "story", "-e", "A=1").strip()
    assert box.startswith("sbx_")
    assert any(line.startswith(box) and "running" in line for line in ok("ls").splitlines())
    assert ok("exec", box, "cat", input=b"from stdin\0") == "from stdin\0"
    assert ok("exec", "story", "--", "sh", "-c", "echo $A") == "1\n"
    assert json.loads(ok("show", "--json", box))["name"] == "story"
    assert host.cloche("exec", "--timeout-seconds", "1", box, "sleep", "100").returncode == 124
    assert host.cloche("exec", box, "no-such-command").returncode == 127
    ok("stop", box)
    r = host.cloche("exec", box, "true")
    assert r.returncode == 125 and b"cloche start" in r.stderr
    ok("start", box)
    ok("renew", "--ttl-seconds", "900", box)
    ok("logs", box)
    ok("rm", box)
    assert host.cloche("show", box).returncode == 125 or json.loads(ok("show", "--json", box))["state"] == "deleted"
