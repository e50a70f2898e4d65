"""Commands: their whole answers, their streams, and what happens when somebody leaves."""
import base64
import http.client
import json
import uuid

import pytest

from test_api_sandboxes import check_shape, wait_until


def run(api, sandbox, *argv, **body):
    answer = api.post(sandbox + "/exec", {"argv": list(argv), **body})
    assert answer.status == 200, answer.body
    return answer.json


def sh(api, sandbox, text, **body):
    answer = api.post(sandbox + "/exec", {"command": text, **body})
    assert answer.status == 200, answer.body
    return answer.json


def text_of(lines, kind):
    """The stream's bytes; offsets must leave no gap."""
    data, at = b"", 0
    for line in lines:
        if line["type"] == kind:
            assert line["offset"] == at
            piece = line["data"].encode() if "data" in line else base64.b64decode(line["base64"])
            at += len(piece)
            data += piece
    return data


def processes(api, sandbox, marker):
    """How many processes of the sandbox have this marker in their command line."""
    # The pattern comes by stdin, or grep would find itself.
    out = sh(api, sandbox, "grep -lsaF -f - /proc/[0-9]*/cmdline", stdin=marker)
    return len(out["stdout"].splitlines())


def test_a_command_by_argv(api, sandbox):
    r = run(api, sandbox, "printf", "%s|", "a b", "$HOME", "*")
    check_shape(api, "ExecAnswer", r)
    assert (r["exitCode"], r["signal"], r["timedOut"]) == (0, None, False)
    assert (r["stdout"], r["stderr"]) == ("a b|$HOME|*|", "")
    assert (r["stdoutTruncatedBytes"], r["stderrTruncatedBytes"]) == (0, 0)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes(api, sandbox, code):
    assert sh(api, sandbox, f"exit {code}")["exitCode"] == code


def test_a_signal_is_no_exit_code(api, sandbox):
    r = sh(api, sandbox, "kill -9 $$")
    assert (r["exitCode"], r["signal"], r["timedOut"]) == (None, 9, False)


def test_env_cwd_and_stdin(api, sandbox):
    r = sh(api, sandbox, 'echo "$GREETING $(pwd)"; cat', env={"GREETING": "hé"}, cwd="/tmp",
           stdin="line\n")
    assert r["stdout"] == "hé /tmp\nline\n"
    raw = bytes(range(256))
    r = run(api, sandbox, "cat", stdinBase64=base64.b64encode(raw).decode())
    assert base64.b64decode(r["stdoutBase64"]) == raw


def test_a_megabyte_of_stdin(api, sandbox):
    r = run(api, sandbox, "wc", "-c", stdin="x" * 5_000_000)
    assert r["stdout"].strip() == "5000000"


@pytest.mark.parametrize("body,fields", [
    ({}, {"argv"}), ({"argv": ["x"], "command": "x"}, {"argv"}), ({"argv": []}, {"argv"}),
    ({"argv": [""]}, {"argv"}), ({"argv": ["x"], "cwd": "tmp"}, {"cwd"}),
    ({"argv": ["x", 1]}, {"argv"}), ({"argv": ["x"], "timeoutSeconds": 0}, {"timeoutSeconds"}),
    ({"argv": ["x"], "stdinBase64": "%"}, {"stdinBase64"}),
    ({"argv": ["x"], "stdin": "a", "stdinBase64": "YQ=="}, {"stdin"}),
    ({"argv": ["x"], "env": {"A=B": "c"}}, {"env.A=B"}), ({"comand": "x"}, {"comand", "argv"})])
def test_bad_requests(api, sandbox, body, fields):
    answer = api.post(sandbox + "/exec", body)
    assert (answer.status, answer.code) == (400, "validation_failed")
    assert answer.fields() == fields


def test_an_argv_of_a_megabyte(api, sandbox):
    answer = api.post(sandbox + "/exec", {"argv": ["echo", "x" * (1 << 20)]})
    assert (answer.status, answer.code) == (413, "argv_too_large")


@pytest.mark.parametrize("body,code", [
    ({"argv": ["no-such-program"]}, "command_not_found"),
    ({"argv": ["/etc/passwd"]}, "command_not_executable"),
    ({"argv": ["true"], "cwd": "/no/such"}, "cwd_not_found"),
    ({"argv": ["true"], "user": "nobody-here"}, "user_not_found")])
def test_what_cannot_be_run(api, sandbox, body, code):
    answer = api.post(sandbox + "/exec", body)
    assert (answer.status, answer.code) == (400, code)
    streamed = api.call("POST", sandbox + "/exec", body, headers={"Accept": "application/x-ndjson"})
    assert (streamed.status, streamed.code) == (400, code)


def test_fault_2_and_4_a_timeout_is_a_result_and_ends_everything(api, sandbox):
    marker = uuid.uuid4().hex
    r = sh(api, sandbox, f"echo begun; (exec -a {marker} sleep 600) & exec -a {marker} sleep 600",
           timeoutSeconds=1)
    assert r["timedOut"] is True
    assert r["stdout"] == "begun\n"
    assert 900 < r["durationMs"] < 20000
    assert processes(api, sandbox, marker) == 0


def test_fault_5_bursts_arrive_whole(api, sandbox):
    """4 MiB on each stream, at exit, by answer and by stream."""
    both = "head -c 4194304 /dev/zero | tr '\\0' o; head -c 4194304 /dev/zero | tr '\\0' e >&2"
    r = sh(api, sandbox, both, maxOutputBytes=4194304)
    assert r["stdout"] == "o" * 4194304
    assert r["stderr"] == "e" * 4194304
    lines = api.lines(sandbox + "/exec", {"command": both})
    assert text_of(lines, "stdout") == b"o" * 4194304
    assert text_of(lines, "stderr") == b"e" * 4194304
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))


def test_output_beyond_the_limit_is_counted(api, sandbox):
    r = sh(api, sandbox, "head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(r["stdout"]) == 1 << 20
    assert r["stdoutTruncatedBytes"] == 3000000 - (1 << 20)
    r = run(api, sandbox, "printf", "aü", maxOutputBytes=2)
    assert (r["stdout"], r["stdoutTruncatedBytes"]) == ("a", 2)
    r = run(api, sandbox, "printf", "abc", maxOutputBytes=0)
    assert (r["stdout"], r["stdoutTruncatedBytes"]) == ("", 3)


def test_100_mebibytes_of_output(api, sandbox):
    r = run(api, sandbox, "head", "-c", str(100 << 20), "/dev/zero", maxOutputBytes=1000)
    assert r["stdoutTruncatedBytes"] == (100 << 20) - 1000
    total = 0
    with api.stream(sandbox + "/exec", {"command": f"yes | head -c {100 << 20}"}) as s:
        for line in s:
            line = json.loads(line)
            total += len(line.get("data", ""))
    assert (line["type"], line["code"], total) == ("exit", 0, 100 << 20)


def test_the_lines_of_a_stream(api, sandbox):
    lines = api.lines(sandbox + "/exec", {"command": "echo out; echo err >&2; exit 3"})
    assert lines[0]["type"] == "start"
    assert lines[0]["processId"]
    assert text_of(lines, "stdout") == b"out\n"
    assert text_of(lines, "stderr") == b"err\n"
    assert lines[-1]["type"] == "exit"
    assert (lines[-1]["code"], lines[-1]["signal"], lines[-1]["timedOut"]) == (3, None, False)


def test_split_characters_stay_text(api, sandbox):
    script = "printf 'a\\303'; sleep 0.3; printf '\\274b\\342\\202'; sleep 0.3; printf '\\254'"
    lines = api.lines(sandbox + "/exec", {"command": script})
    out = [line for line in lines if line["type"] == "stdout"]
    assert all("data" in line for line in out)
    assert "".join(line["data"] for line in out) == "aüb€"
    assert text_of(lines, "stdout").decode() == "aüb€"


def test_bytes_that_are_no_text(api, sandbox):
    lines = api.lines(sandbox + "/exec", {"command": "printf '\\377\\000a'; printf 'x\\303' >&2"})
    assert text_of(lines, "stdout") == b"\xff\x00a"
    assert text_of(lines, "stderr") == b"x\xc3"


def test_fault_8_very_short_commands(api, sandbox):
    for _ in range(200):
        assert run(api, sandbox, "true")["exitCode"] == 0


def test_fault_11_a_silent_stream_is_kept_alive(api, sandbox):
    lines = api.lines(sandbox + "/exec", {"command": "sleep 11; echo done"})
    assert "ping" in [line["type"] for line in lines]
    assert text_of(lines, "stdout") == b"done\n"
    assert lines[-1]["code"] == 0


@pytest.mark.parametrize("how", ["stream", "answer"])
@pytest.mark.parametrize("noise", ["silent", "loud"])
def test_fault_9_a_client_that_leaves_ends_its_command(api, sandbox, how, noise):
    marker = uuid.uuid4().hex
    loud = "yes" if noise == "loud" else "sleep 600"
    command = f"exec -a {marker} {loud}"
    c = api.connect()
    accept = {"Accept": "application/x-ndjson"} if how == "stream" else {}
    c.request("POST", sandbox + "/exec", json.dumps({"command": command}), api.headers(accept))
    assert wait_until(lambda: processes(api, sandbox, marker))
    c.sock.close()
    c.close()
    assert wait_until(lambda: not processes(api, sandbox, marker))


def test_fault_1_and_3_a_stream_that_is_cut_has_no_exit_and_its_process_lives(api_host, api_host_sandbox):
    """The daemon ends in the middle: nobody is told 0, and the command is there afterwards."""
    api, sandbox = api_host.client, api_host_sandbox
    marker = uuid.uuid4().hex
    command = f"echo first; exec -a {marker} sleep 600"
    s = api.stream(sandbox + "/exec", {"command": command})
    lines = [json.loads(s.readline()), json.loads(s.readline())]
    assert (lines[0]["type"], lines[1]["data"]) == ("start", "first\n")
    api_host.process.terminate()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        s.read()
    assert api_host.process.wait(60) == 0
    api_host.start()
    assert processes(api, sandbox, marker) == 1
    path = f"{sandbox}/processes/{lines[0]['processId']}"
    api.post(path + "/signal", {"signal": "TERM"})
    lines = api.lines(path + "/output", None, method="GET")
    assert text_of(lines, "stdout") == b"first\n"
    assert (lines[-1]["type"], lines[-1]["signal"]) == ("exit", 15)


def test_a_background_process(api, sandbox):
    made = api.post(sandbox + "/processes", {"command": "echo one; read x; echo got $x; exit 5",
                                             "openStdin": True})
    assert made.status == 201, made.body
    p = made.json
    check_shape(api, "Process", p)
    path = f"{sandbox}/processes/{p['id']}"
    assert (p["state"], p["exit"], p["background"]) == ("running", None, True)
    assert p["id"] in [q["id"] for q in api.get(sandbox + "/processes").json["data"]]

    lines = api.lines(path + "/output?follow=false", None, method="GET")
    assert lines[-1]["type"] in ("end", "stdout")
    wrong = api.call("POST", path + "/stdin?offset=99", b"x")
    assert (wrong.status, wrong.code) == (409, "offset_mismatch")
    fed = api.call("POST", path + "/stdin?offset=0", b"a line\n")
    assert fed.json == {"offset": 7}

    lines = api.lines(path + "/output", None, method="GET")
    assert text_of(lines, "stdout") == b"one\ngot a line\n"
    assert (lines[-1]["type"], lines[-1]["code"]) == ("exit", 5)

    first = next(line for line in lines if line["type"] == "stdout")
    again = api.lines(f"{path}/output?cursor={first['cursor']}", None, method="GET")
    rest = b"".join(line["data"].encode() for line in again if line["type"] == "stdout")
    assert first["data"].encode() + rest == b"one\ngot a line\n"

    ended = api.get(path).json
    assert (ended["state"], ended["exit"]["code"]) == ("exited", 5)
    assert api.post(path + "/signal", {"signal": "TERM"}).code == "process_ended"
    assert api.call("DELETE", path).status == 200
    assert api.get(path).code == "process_not_found"


def test_reading_output_does_not_end_a_process(api, sandbox):
    marker = uuid.uuid4().hex
    p = api.post(sandbox + "/processes", {"command": f"echo x; exec -a {marker} sleep 600"}).json
    path = f"{sandbox}/processes/{p['id']}"
    s = api.stream(path + "/output", None, method="GET")
    assert json.loads(s.readline())["type"] == "start"
    s.connection_kept.sock.close()
    s.close()
    assert run(api, sandbox, "true")["exitCode"] == 0
    assert processes(api, sandbox, marker)
    assert api.post(path + "/signal", {"signal": "KILL"}).status == 200
    lines = api.lines(path + "/output", None, method="GET")
    assert (lines[-1]["type"], lines[-1]["signal"]) == ("exit", 9)


def test_stdin_of_a_background_process_from_its_request(api, sandbox):
    p = api.post(sandbox + "/processes", {"argv": ["cat"], "stdin": "all of it"}).json
    lines = api.lines(f"{sandbox}/processes/{p['id']}/output", None, method="GET")
    assert text_of(lines, "stdout") == b"all of it"
    assert lines[-1]["code"] == 0


def test_unknown_processes(api, sandbox):
    for method, path, body in (("GET", "", None), ("GET", "/output", None), ("DELETE", "", None),
                               ("POST", "/signal", {"signal": "INT"}),
                               ("POST", "/stdin?offset=0", b"x")):
        answer = api.call(method, sandbox + "/processes/prc_none" + path, body)
        assert (answer.status, answer.code) == (404, "process_not_found"), path
    bad = api.post(sandbox + "/processes/prc_none/signal", {"signal": "NOVA"})
    assert bad.fields() == {"signal"}
    assert api.get(sandbox + "/processes/prc_none/output", cursor="x").fields() == {"cursor"}


def test_a_streamed_command_runs_once(api, sandbox):
    name = "/tmp/once-" + uuid.uuid4().hex
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"command": f"echo x >> {name}; cat {name}"}
    lines = api.lines(sandbox + "/exec", body, headers=key)
    again = api.call("POST", sandbox + "/exec", body,
                     headers={**key, "Accept": "application/x-ndjson"})
    assert (again.status, again.code) == (409, "idempotency_stream")
    assert again.json["error"]["details"]["processId"] == lines[0]["processId"]
    assert sh(api, sandbox, f"cat {name}; rm {name}")["stdout"] == "x\n"


def test_nothing_leaks(api_host, api_host_sandbox):
    """Descriptors of the daemon before and after all kinds of ends."""
    api, sandbox = api_host.client, api_host_sandbox

    def some():
        run(api, sandbox, "true")
        api.post(sandbox + "/exec", {"argv": ["no-such-program"]})
        api.lines(sandbox + "/exec", {"command": "echo x"})
        s = api.stream(sandbox + "/exec", {"command": "sleep 600"})
        s.readline()
        s.connection_kept.sock.close()
        s.close()
        api.call("PUT", sandbox + "/files?path=/no/such/folder/x", b"x")
        api.call("GET", sandbox + "/files?path=/etc/passwd")
    some()
    assert wait_until(lambda: api.get("/metrics").body.count(b"cloche_http_open_streams 0\n"))
    before = api_host.fds()
    for _ in range(10):
        some()
    assert wait_until(lambda: api_host.fds() <= before), (before, api_host.fds())
