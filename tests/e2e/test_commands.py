"""Commands in a sandbox: status, output, time limits, what becomes of them when callers leave."""
import hashlib
import json
import os
import signal
import threading
import time

import pytest

from cloche_api import ApiError

BIG = 4 << 20


def digest_of(cmd, box):
    return box.out(f"{cmd} | sha256sum").split()[0]


@pytest.mark.real
def test_a_sandbox_is_a_computer_of_its_own(host, box):
    """Its kernel is the guest's, not the host's, and root is to be had inside."""
    assert box.out(["uname", "-r"]).strip() != os.uname().release
    assert box.out(["uname", "-r"]).strip() != host.sh("uname -r").strip()
    assert box.out(["sudo", "id", "-u"]) == "0\n"
    assert box.out(["id", "-un"]) == "agent\n"
    assert box.out(["pwd"]) == "/workspace\n"


@pytest.mark.real
def test_the_first_steps_of_the_readme(host, box):
    box.write("/workspace/task.py", "print(6 * 7)\n")
    r = box.exec(["python3", "task.py"])
    assert (r["exitCode"], r["stdout"], r["stderr"]) == (0, "42\n", "")


def test_exit_codes_and_signals_are_the_commands(box):
    r = box.exec("exit 7")
    assert (r["exitCode"], r["signal"], r["timedOut"]) == (7, None, False)
    r = box.exec("kill -TERM $$")
    assert (r["exitCode"], r["signal"]) == (None, 15)
    assert box.exec(["false"])["exitCode"] == 1


def test_argv_is_not_shell_text(box):
    odd = "a b'\"$(id)\n;\\ü"
    assert box.out(["printf", "%s", odd]) == odd


def test_environment_cwd_and_stdin(box, work):
    assert box.out("printf %s \"$A\"", env={"A": "x=y z"}) == "x=y z"
    assert box.out(["pwd"], cwd=work) == f"{work}\n"
    assert box.out(["cat"], stdin="in\nput") == "in\nput"
    assert box.out(["cat"]) == "", "stdin is empty, not a terminal that hangs"


def test_fault_5_four_mebibytes_of_each_stream_arrive_whole(box):
    """Known fault 5: bursts of output lose data; output at exit is cut."""
    make = f"head -c {BIG} /dev/zero | tr '\\0' x; head -c {BIG} /dev/zero | tr '\\0' y >&2"
    s = box.stream(make).drain()
    assert s.exit["code"] == 0 and s.dropped == 0
    for name, fill in (("stdout", b"x"), ("stderr", b"y")):
        assert hashlib.sha256(s.bytes[name]).hexdigest() == hashlib.sha256(fill * BIG).hexdigest()


def test_output_that_is_not_text_arrives_whole(box):
    """Bytes that are not UTF-8, cut anywhere."""
    s = box.stream("head -c 300000 /dev/urandom | tee /tmp/random.bin").drain()
    assert s.exit["code"] == 0
    assert hashlib.sha256(s.bytes["stdout"]).hexdigest() == digest_of("cat /tmp/random.bin", box)
    box.exec(["rm", "/tmp/random.bin"])


def test_a_hundred_mebibytes_are_cut_in_an_answer_and_counted(box):
    r = box.exec("head -c 104857600 /dev/zero | tr '\\0' x")
    assert r["exitCode"] == 0
    assert len(r["stdout"]) == 1 << 20
    assert r["stdoutTruncatedBytes"] == (100 << 20) - (1 << 20)


def test_fault_7_and_8_two_hundred_short_commands(box):
    """Known faults 7 (PID 1 does not reap) and 8 (a very short command races its registration)."""
    for i in range(200):
        r = box.exec(["sh", "-c", f"exit {i % 5}"])
        assert r["exitCode"] == i % 5
    states = box.out("cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c1")
    assert "Z" not in states.split()


@pytest.mark.real
def test_fault_7_orphans_are_reaped(box):
    box.out("for i in $(seq 50); do (sleep 0.01 &) ; done; sleep 1")
    states = box.out("cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c1")
    assert "Z" not in states.split()


def test_fault_2_and_4_a_time_limit_ends_the_command_and_its_children(box):
    """Known faults 2 (hangs for ever) and 4 (the process or its children live on)."""
    tag = f"31{os.getpid()}"
    r = box.exec(f"sleep {tag} & setsid sleep {tag} & trap '' TERM; sleep {tag}; sleep {tag}", timeoutSeconds=1)
    assert r["timedOut"] is True
    assert box.exec(f"pgrep -fx 'sleep {tag}'")["exitCode"] == 1


def test_fault_3_a_background_command_survives_its_caller(box):
    """Known fault 3: its id is known, its output kept, its end told."""
    p = box.background("echo one; read line; echo got $line; exit 5", openStdin=True)
    first = box.output(p["id"])
    assert first.until(lambda s: s.bytes["stdout"] == b"one\n")
    first.close()
    status, _, _ = box.api.raw("POST", f"{box.path}/processes/{p['id']}/stdin?offset=0", b"two\n")
    assert status == 200
    s = box.output(p["id"]).drain()
    assert bytes(s.bytes["stdout"]) == b"one\ngot two\n"
    assert s.exit["code"] == 5
    assert box.call("GET", f"/processes/{p['id']}")["exit"]["code"] == 5
    assert p["id"] in [row["id"] for row in box.call("GET", "/processes")["data"]]


def test_a_wrong_stdin_offset_is_refused(box):
    p = box.background(["cat"], openStdin=True)
    path = f"{box.path}/processes/{p['id']}/stdin"
    assert box.api.raw("POST", f"{path}?offset=0", b"abc")[0] == 200
    status, _, answer = box.api.raw("POST", f"{path}?offset=0", b"abc")
    assert (status, json.loads(answer)["error"]["code"]) == (409, "offset_mismatch")
    assert box.api.raw("POST", f"{path}?offset=3&eof=true", b"def")[0] == 200
    assert bytes(box.output(p["id"]).drain().bytes["stdout"]) == b"abcdef"


def running(box, pattern):
    return box.exec(f"pgrep -fx '{pattern}'")["exitCode"] == 0


def wait_gone(box, pattern, seconds=60):
    end = time.monotonic() + seconds
    while running(box, pattern):
        assert time.monotonic() < end, f"{pattern} still runs"


def test_fault_9_a_caller_that_leaves_ends_its_command(box):
    """Known fault 9, by closing the connection as a killed client would."""
    tag = f"32{os.getpid()}"
    s = box.stream(f"echo ready; exec sleep {tag}")
    assert s.until(lambda x: x.bytes["stdout"] == b"ready\n")
    assert running(box, f"sleep {tag}")
    s.close()
    wait_gone(box, f"sleep {tag}")


def test_fault_9_ctrl_c_at_the_command_line(host, box):
    tag = f"33{os.getpid()}"
    p = host.cloche_start("exec", box.id, "--", "sh", "-c", f"echo ready; exec sleep {tag}")
    assert p.stdout.readline() == b"ready\n"
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=120)
    assert p.returncode == 130
    wait_gone(box, f"sleep {tag}")


def test_fault_1_no_exit_is_made_up(host, new):
    """Known fault 1: the sandbox is deleted under a running command; nobody says 0."""
    b = new()
    s = b.stream("echo ready; exec sleep 1000")
    assert s.until(lambda x: x.bytes["stdout"] == b"ready\n")
    p = host.cloche_start("exec", b.id, "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert p.stdout.readline() == b"ready\n"
    b.delete()
    last = [e["type"] for e in s][-1:]
    assert s.exit is None or s.exit["code"] != 0
    assert last in (["error"], []), "the stream says that it does not know"
    _, err = p.communicate(timeout=120)
    assert p.returncode == 125, err
    assert b"unknown" in err


def test_fault_6_a_busy_guest_still_answers(host, box):
    """Known fault 6: a guest that hogs CPU or memory freezes the agent."""
    hog = box.background("for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait")
    try:
        assert box.out(["echo", "here"], timeoutSeconds=60) == "here\n"
    finally:
        box.call("DELETE", f"/processes/{hog['id']}")
    wait_gone(box, "sh -c for i in 1 2 3.*")


@pytest.mark.real
def test_fault_6_a_guest_out_of_memory_still_answers(box):
    r = box.exec(["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 24))"], timeoutSeconds=600)
    assert r["exitCode"] != 0 or r["signal"]
    assert box.out(["echo", "here"]) == "here\n"


@pytest.mark.real
def test_a_fork_bomb_is_survived(box):
    p = box.background("b() { b | b & }; b")
    try:
        r = box.exec(["echo", "here"], timeoutSeconds=300)
        assert r["stdout"] == "here\n" or r["exitCode"] != 0
    except ApiError as e:
        assert e.code == "too_many_processes" and e.error["fix"]
    box.call("DELETE", f"/processes/{p['id']}")
    assert box.out(["echo", "after"]) == "after\n"


@pytest.mark.real
def test_a_full_disk_is_named_and_can_be_freed(box):
    """Known fault 44: a full disk wedges the sandbox for good."""
    box.exec("head -c 100G /dev/zero > /workspace/fill", timeoutSeconds=1200)
    with pytest.raises(ApiError) as e:
        for i in range(64):
            box.write(f"/workspace/more{i}", b"x" * (1 << 20))
    assert e.value.code == "no_space" and e.value.error["fix"]
    box.out("rm -f /workspace/fill /workspace/more*")
    box.write("/workspace/again", "fits")
    assert box.read("/workspace/again") == b"fits"


def test_many_commands_at_once_keep_their_own_output(box):
    answers = {}

    def one(i):
        answers[i] = box.out(f"echo {i}; head -c 100000 /dev/zero | tr '\\0' {i % 10}")
    threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == {i: f"{i}\n" + str(i % 10) * 100000 for i in range(12)}


@pytest.mark.parametrize("fields,code,status", [
    ({"argv": ["/no/such/program"]}, "command_not_found", 400),
    ({"argv": ["/etc/passwd"]}, "command_not_executable", 400),
    ({"argv": ["true"], "cwd": "/no/such/folder"}, "cwd_not_found", 400),
    ({"argv": ["true"], "user": "nobody-here"}, "user_not_found", 400),
    ({"argv": ["x" * (1 << 20)]}, "argv_too_large", 413),
    ({"argv": []}, "validation_failed", 400),
    ({}, "validation_failed", 400),
    ({"argv": ["a"], "command": "b"}, "validation_failed", 400),
    ({"argv": ["a\0b"]}, None, 400),
    ({"argv": ["true"], "timeoutSeconds": 0}, "validation_failed", 400),
    ({"argv": ["true"], "timeoutSecond": 1}, "validation_failed", 400),
    ({"command": "true", "stdinBase64": "%%"}, "validation_failed", 400),
    ({"argv": "true"}, "validation_failed", 400)])
def test_fault_46_bad_commands_are_refused_with_reason(box, fields, code, status):
    with pytest.raises(ApiError) as e:
        box.call("POST", "/exec", fields)
    assert e.value.status == status
    assert code is None or e.value.code == code
    assert e.value.error["message"] and e.value.error["fix"] and e.value.error["requestId"].startswith("req_")
