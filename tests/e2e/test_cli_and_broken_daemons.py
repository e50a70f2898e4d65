"""The command line against daemons that break off, lie, or are hostile. Quick: no sandbox runs."""
import json
import os
import signal
import subprocess
import threading

import pytest

from broken_daemon import BrokenDaemon
from paths import CLOCHE

START = {"seq": 1, "type": "start", "processId": "prc_1"}


def out(n, text, offset=0, kind="stdout"):
    return {"seq": n, "type": kind, "offset": offset, "data": text}


def leave(code, sig=None, timed_out=False):
    return {"seq": 99, "type": "exit", "code": code, "signal": sig, "timedOut": timed_out}


@pytest.fixture
def daemon():
    made = []

    def make(routes):
        made.append(BrokenDaemon(routes))
        return made[-1]
    yield make
    for d in made:
        d.close()


def cloche(d, *args, **kw):
    env = dict(os.environ, CLOCHE_URL=d.url if d else "http://127.0.0.1:1", CLOCHE_API_KEY="clk_test",
               HOME="/nonexistent", XDG_CONFIG_HOME="")
    if "input" not in kw:
        kw["stdin"] = subprocess.DEVNULL
    return subprocess.run([CLOCHE, *args], env=env, capture_output=True, timeout=60, **kw)


def streaming(*lines, end=True):
    def route(h):
        h.stream(*lines)
        if end:
            h.end()
        h.close_connection = True
    return {("POST", "/v1/sandboxes/s/exec"): route}


def test_output_and_status_are_the_commands(daemon):
    raw = {"seq": 3, "type": "stderr", "offset": 0, "base64": "/wAK"}
    d = daemon(streaming(START, out(2, "a\u00fc\n"), raw, {"type": "ping"}, out(4, "b", 4), leave(7)))
    r = cloche(d, "exec", "s", "--", "x", "-y")
    assert (r.returncode, r.stdout, r.stderr) == (7, "aü\nb".encode(), b"\xff\x00\n")
    assert json.loads(d.wait_for("POST", "/v1/sandboxes/s/exec")) == {"argv": ["x", "-y"]}


@pytest.mark.parametrize("line,status", [
    (leave(0), 0), (leave(None, "SIGKILL"), 137), (leave(None, 15), 143),
    (leave(None, "SIGKILL", True), 124), (leave(0, None, True), 124)])
def test_exit_statuses(daemon, line, status):
    assert cloche(daemon(streaming(START, line)), "exec", "s", "x").returncode == status


@pytest.mark.parametrize("end", [True, False], ids=["ended well", "cut"])
def test_fault_1_a_stream_without_its_exit_line_is_never_success(daemon, end):
    r = cloche(daemon(streaming(START, out(2, "partial"), end=end)), "exec", "s", "x")
    assert r.returncode == 125
    assert r.stdout == b"partial"
    assert b"outcome unknown" in r.stderr


def test_fault_5_missing_bytes_are_noticed(daemon):
    r = cloche(daemon(streaming(START, out(2, "abc"), out(3, "x", 10), leave(0))), "exec", "s", "x")
    assert r.returncode == 125
    assert b"7 bytes of output are missing" in r.stderr


def test_output_with_nul_bytes(daemon):
    r = cloche(daemon(streaming(START, out(2, "a\0b\n"), leave(0))), "exec", "s", "x")
    assert (r.returncode, r.stdout) == (0, b"a\0b\n")


def test_announced_drops_are_told(daemon):
    d = daemon(streaming(START, out(2, "abc"), {"type": "dropped", "bytes": 7}, out(3, "x", 10), leave(0)))
    r = cloche(d, "exec", "s", "x")
    assert (r.returncode, r.stdout) == (0, b"abcx")
    assert b"7 bytes of output were dropped" in r.stderr


def test_fault_9_ctrl_c_reaches_the_command(daemon):
    """The first interrupt goes to the process in the sandbox, and its end is waited for."""
    interrupted = threading.Event()

    def run(h):
        h.stream(START, out(2, "ready\n"))
        interrupted.wait(30)
        h.lines(out(3, "bye\n", 6), leave(None, "SIGINT"))
        h.end()

    def on_signal(h):
        h.json(200, {})
        interrupted.set()
    d = daemon({("POST", "/v1/sandboxes/s/exec"): run,
                ("POST", "/v1/sandboxes/s/processes/prc_1/signal"): on_signal})
    p = start(d, "exec", "s", "x")
    assert p.stdout.readline() == b"ready\n"
    p.send_signal(signal.SIGINT)
    assert json.loads(d.wait_for("POST", "/v1/sandboxes/s/processes/prc_1/signal")) == {"signal": "INT"}
    rest, _ = p.communicate(timeout=30)
    assert (p.returncode, rest) == (130, b"bye\n")


def start(d, *args):
    env = dict(os.environ, CLOCHE_URL=d.url, CLOCHE_API_KEY="clk_test", HOME="/nonexistent")
    return subprocess.Popen([CLOCHE, *args], env=env, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_fault_9_a_second_ctrl_c_kills_and_leaves(daemon):
    over = threading.Event()
    signals = []

    def run(h):
        h.stream(START, out(2, "ready\n"))
        over.wait(30)

    def on_signal(h):
        signals.append(json.loads(h.body)["signal"])
        h.json(200, {})
    d = daemon({("POST", "/v1/sandboxes/s/exec"): run,
                ("POST", "/v1/sandboxes/s/processes/prc_1/signal"): on_signal})
    p = start(d, "exec", "s", "x")
    assert p.stdout.readline() == b"ready\n"
    p.send_signal(signal.SIGINT)
    d.wait_for("POST", "/v1/sandboxes/s/processes/prc_1/signal")
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=30)
    over.set()
    assert p.returncode == 130
    assert signals == ["INT", "KILL"]


def feeding(take):
    """A command that takes stdin by the given function of (handler, offset, bytes, eof)."""
    over = threading.Event()
    got = bytearray()

    def run(h):
        assert json.loads(h.body)["openStdin"] is True
        h.stream(START)
        over.wait(30)
        h.lines(leave(0))
        h.end()

    def stdin(h):
        query = dict(kv.split("=") for kv in h.path.split("?")[1].split("&"))
        eof = query.get("eof") == "true"
        if take(h, got, int(query["offset"]), h.body) and eof:
            over.set()
    base = "/v1/sandboxes/s"
    return got, {
        ("POST", base + "/exec"): run, ("POST", base + "/processes/prc_1/stdin"): stdin,
        ("GET", base + "/processes/prc_1"): lambda h: h.json(200, {"stdinBytes": len(got)})}


def test_stdin_is_sent_as_it_comes(daemon):
    def take(h, got, offset, data):
        assert offset == len(got)
        got.extend(data)
        h.json(200, {"offset": len(got)})
        return True
    got, routes = feeding(take)
    data = bytes(range(256)) * 4000
    r = cloche(daemon(routes), "exec", "s", "x", input=data)
    assert (r.returncode, bytes(got)) == (0, data)


def test_stdin_that_was_taken_in_part_goes_on_where_it_stands(daemon):
    refused = []

    def take(h, got, offset, data):
        assert offset == len(got)
        if data and len(refused) < 3:
            got.extend(data[:100])
            refused.append(1)
            h.json(504, {"error": {"code": "agent_timeout", "message": "slow", "fix": "", "requestId": "r"}})
            return False
        got.extend(data)
        h.json(200, {"offset": len(got)})
        return True
    got, routes = feeding(take)
    data = os.urandom(300_000)
    r = cloche(daemon(routes), "exec", "s", "x", input=data)
    assert (r.returncode, bytes(got)) == (0, data)
    assert len(refused) == 3


def test_an_open_pipe_for_stdin_does_not_hold_the_end_up(daemon):
    d = daemon(streaming(START, leave(4)))
    p = subprocess.Popen([CLOCHE, "exec", "s", "x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=dict(os.environ, CLOCHE_URL=d.url, CLOCHE_API_KEY="k"))
    assert p.wait(30) == 4
    for f in (p.stdin, p.stdout, p.stderr):
        f.close()


def sandbox_routes(exec_route):
    def create(h):
        h.json(201, {"id": "s", "state": "running"})

    def delete(h):
        h.json(200, {"id": "s", "state": "deleted"})
    return {("POST", "/v1/sandboxes"): create, ("DELETE", "/v1/sandboxes/s"): delete, **exec_route}


@pytest.mark.parametrize("lines,status", [([START, leave(3)], 3), ([START], 125)])
def test_run_deletes_its_sandbox(daemon, lines, status):
    d = daemon(sandbox_routes(streaming(*lines)))
    r = cloche(d, "run", "--vcpus", "2", "-e", "A=b=c", "--", "x")
    assert r.returncode == status
    assert json.loads(d.wait_for("POST", "/v1/sandboxes")) == {"vcpus": 2, "env": {"A": "b=c"}}
    d.wait_for("DELETE", "/v1/sandboxes/s")


def test_run_keep_does_not_delete(daemon):
    d = daemon(sandbox_routes(streaming(START, leave(0))))
    r = cloche(d, "run", "--keep", "x")
    assert r.returncode == 0
    assert b"kept s" in r.stderr
    assert [m for m, _, _ in d.requests] == ["POST", "POST"]


def test_run_deletes_when_its_output_is_cut(daemon):
    """cloche run … | head: the sandbox goes too."""
    gone = threading.Event()

    def run(h):
        h.stream(START)
        offset = 0
        while not gone.is_set():
            h.lines(out(2, "y" * 65536, offset))
            offset += 65536
    d = daemon(sandbox_routes({("POST", "/v1/sandboxes/s/exec"): run}))
    p = start(d, "run", "x")
    p.stdout.read(1)
    p.stdout.close()
    d.wait_for("DELETE", "/v1/sandboxes/s")
    assert p.wait(30) == 128 + signal.SIGPIPE
    gone.set()
    p.stderr.close()


def test_fault_46_a_refusal_names_fields_fix_and_request(daemon):
    def refuse(h):
        h.json(400, {"error": {
            "code": "validation_failed", "message": "vcpu is not a known field; image must be a string",
            "fix": "Correct them.",
            "details": {"fields": [{"field": "vcpu", "problem": "is not a known field", "hint": "vcpus"},
                                     {"field": "image", "problem": "must be a string"}]},
            "retryable": False, "requestId": "req_7"}})
    d = daemon({("POST", "/v1/sandboxes"): refuse})
    r = cloche(d, "new")
    assert (r.returncode, r.stdout) == (125, b"")
    text = r.stderr.decode()
    for piece in ("vcpu is not a known field; image must be a string", "vcpu: did you mean vcpus?",
                  "Correct them.", "validation_failed", "req_7"):
        assert piece in text
    r = cloche(d, "new", "--json")
    assert json.loads(r.stderr)["error"]["code"] == "validation_failed"


def test_a_guest_that_does_not_boot_shows_its_last_words(daemon):
    def fail(h):
        h.json(500, {"error": {"code": "boot_failed", "message": "the guest ended", "fix": "Read it.",
                               "details": {"serialTail": ["Kernel panic\x1b[2J", "end"]}, "requestId": "r"}})
    r = cloche(daemon({("POST", "/v1/sandboxes"): fail}), "new")
    assert r.returncode == 125
    assert "  | Kernel panic\\x1b[2J\n  | end\n" in r.stderr.decode()


def test_a_refusal_that_is_no_error_object(daemon):
    def odd(h):
        h.json(502, {"oops": 1})
    r = cloche(daemon({("GET", "/v1/sandboxes/s"): odd}), "show", "s")
    assert r.returncode == 125
    assert b"502" in r.stderr


def test_nobody_listens():
    r = cloche(None, "ls")
    assert r.returncode == 125
    assert b"cloche up" in r.stderr


def test_hostile_names_do_not_reach_the_terminal(daemon):
    evil = "\x1b]0;owned\x07\x9b31m"

    def ls(h):
        h.json(200, {"data": [{"id": "s", "name": evil, "state": "running", "image": evil, "vcpus": 1,
                               "memoryMiB": 64, "createdAt": "2026-01-01T00:00:00.000Z",
                               "leaseEndsAt": None}], "nextCursor": None})

    def refuse(h):
        h.json(404, {"error": {"code": evil, "message": evil, "fix": evil, "requestId": evil}})
    d = daemon({("GET", "/v1/sandboxes"): ls, ("GET", "/v1/sandboxes/s"): refuse})
    for args in (("ls",), ("show", "s")):
        r = cloche(d, *args)
        assert b"\\x1b]0;owned" in r.stdout + r.stderr
        assert not set(r.stdout + r.stderr) & {0x1b, 0x07} and b"\xc2\x9b" not in r.stdout + r.stderr


def test_ls_reads_every_page(daemon):
    def ls(h):
        page = 2 if "cursor=a%26b" in h.path else 1
        h.json(200, {"data": [{"id": f"s{page}", "state": "stopped"}],
                     "nextCursor": "a&b" if page == 1 else None})
    r = cloche(daemon({("GET", "/v1/sandboxes"): ls}), "ls", "-q")
    assert (r.returncode, r.stdout) == (0, b"s1\ns2\n")


def stat_route(name, kind):
    return {("GET", "/v1/sandboxes/s/files/stat"):
            lambda h: h.json(200, {"path": name, "type": kind, "mode": "0644", "size": 4})}


def file_route(h):
    h.send_response(200)
    h.send_header("Content-Length", "4")
    h.end_headers()
    h.wfile.write(b"evil")


def test_fault_42_a_download_stays_in_its_folder(daemon, tmp_path):
    """Names with "..", absolute names, and links planted on either side do not lead out."""
    target = tmp_path / "in" / "d"
    target.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (target / "planted").symlink_to(outside)
    (target / "victim").symlink_to(tmp_path / "victim-target")
    entries = [("/d/ok", "file"), ("/d/sub", "directory"), ("/d/sub/x", "file"), ("/d/../../up", "file"),
               ("/d/..", "directory"), ("/etc/passwd", "file"), ("/d//abs", "file"),
               ("/d/link", "symlink"), ("/d/victim", "file"), ("/d/fifo", "fifo")]

    def listing(h):
        h.json(200, {"data": [{"path": p, "type": t, "mode": "4755", "size": 4} for p, t in entries],
                     "truncated": False})
    routes = {**stat_route("/d", "directory"), ("GET", "/v1/sandboxes/s/files/list"): listing,
              ("GET", "/v1/sandboxes/s/files"): file_route}
    r = cloche(daemon(routes), "cp", "s:/d", str(tmp_path / "in"))
    assert r.returncode == 0, r.stderr
    assert (target / "ok").read_bytes() == b"evil"
    assert (target / "sub/x").read_bytes() == b"evil"
    assert (target / "ok").stat().st_mode & 0o7777 == 0o755, "no set-user-id bit"
    assert (target / "victim").read_bytes() == b"evil" and not (target / "victim").is_symlink()
    assert not (tmp_path / "victim-target").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "outside"]
    assert sorted(p.name for p in target.iterdir()) == ["ok", "planted", "sub", "victim"]
    for left_out in ("/d/../../up", "/etc/passwd", "/d//abs", "/d/link", "/d/fifo"):
        assert left_out in r.stderr.decode()
    entries[:] = [("/d/planted/x", "file")]
    r = cloche(daemon(routes), "cp", "s:/d", str(tmp_path / "in"))
    assert r.returncode == 125
    assert list(outside.iterdir()) == []


def test_a_broken_download_leaves_the_old_file(daemon, tmp_path):
    def cut(h):
        h.send_response(200)
        h.send_header("Content-Length", "100")
        h.end_headers()
        h.wfile.write(b"half")
        h.close_connection = True
    (tmp_path / "f").write_bytes(b"old")
    d = daemon({**stat_route("/f", "file"), ("GET", "/v1/sandboxes/s/files"): cut})
    r = cloche(d, "cp", "s:/f", str(tmp_path / "f"))
    assert r.returncode == 125
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("args,hint", [
    (["rnu", "--", "x"], "cloche run"), (["--jsn", "ls"], "--json"), (["exec", "--timeout-second", "1"], "--timeout-seconds"),
    (["new", "--net", "alow"], "allow"), (["completion", "bsh"], "bash"), (["cp", "a", "b"], "ID:/path"),
    (["new", "--env", "novalue"], "NAME=VALUE"), (["renew", "--ttl-seconds", "-1", "s"], "from 1"),
    (["rm"], "ID"), ([], "Usage")])
def test_typos_are_refused_with_a_hint(args, hint):
    r = cloche(None, *args)
    assert r.returncode == 2
    assert hint in r.stderr.decode()


def test_a_full_stdout_is_an_error(daemon):
    with open("/dev/full", "wb") as full:
        env = dict(os.environ, CLOCHE_URL="http://127.0.0.1:1", HOME="/nonexistent")
        r = subprocess.run([CLOCHE, "--help"], env=env, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert r.returncode == 125


def test_the_key_goes_only_to_its_own_daemon(daemon, tmp_path):
    """A URL from the command line does not get the key that the file keeps for another one."""
    keys = []

    def ls(h):
        keys.append(h.headers.get("Authorization"))
        h.json(200, {"data": [], "nextCursor": None})
    mine, other = (daemon({("GET", "/v1/sandboxes"): ls}) for _ in range(2))
    (tmp_path / "cloche").mkdir()
    (tmp_path / "cloche/config.json").write_text(json.dumps({"url": mine.url, "apiKey": "clk_file"}))
    env = {k: v for k, v in os.environ.items() if not k.startswith("CLOCHE_")}
    env["XDG_CONFIG_HOME"] = str(tmp_path)
    for extra in ([], ["--url", other.url], ["--url", mine.url]):
        subprocess.run([CLOCHE, "ls", *extra], env=env, check=True, capture_output=True, timeout=60)
    assert keys == ["Bearer clk_file", None, "Bearer clk_file"]
