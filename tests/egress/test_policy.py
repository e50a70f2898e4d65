"""What passes and what does not, with real clients. Attack list of the network chapter."""

import socket
import time

import pytest
from world import ALLOWED4, ALLOWED6, API4, HOST4, OTHER4, RAW4

AT_ONCE = 10.0  # far below any timeout of a client; the bench measures the real figure


@pytest.fixture(scope="module")
def guest(world):
    return world.guest({"mode": "allow", "allow": ["allowed.test", "raw.test:9000", "raw.test:9002", "six.test"]})


def test_allowed_https_passes(guest):
    r = guest.curl("https://allowed.test/")
    assert r.stdout == f"host=allowed.test sni=allowed.test addr={ALLOWED4}\n", r.stderr


def test_allowed_http_passes(guest):
    r = guest.curl("http://allowed.test/")
    assert r.stdout == f"host=allowed.test sni= addr={ALLOWED4}\n", r.stderr


def test_allowed_over_ipv6(guest):
    r = guest.curl("-6", "https://allowed.test/")
    assert f"addr={ALLOWED6}" in r.stdout, r.stderr


def test_denied_name_is_refused_by_dns_at_once(guest, world):
    r = guest.curl("https://other.test/")
    assert r.returncode == 6 and r.seconds < AT_ONCE, r
    assert "other.test" not in world.dns_log.read_text()  # never asked outside
    assert guest.log(event="refuse", protocol="dns", host="other.test")[0]["reason"] == "not_allowed"


def test_denied_http_says_why(guest):
    r = guest.curl("-i", "--resolve", f"other.test:80:{OTHER4}", "http://other.test/")
    assert r.stdout.startswith("HTTP/1.1 403"), r
    assert 'Add "other.test" to network.allow.' in r.stdout
    assert "X-Cloche-Reason: not_allowed" in r.stdout and r.seconds < AT_ONCE


def test_denied_tls_gets_an_alert(guest):
    r = guest.curl("-v", "--resolve", f"other.test:443:{OTHER4}", "https://other.test/")
    assert r.returncode == 35 and r.seconds < AT_ONCE
    assert "access denied" in r.stderr.lower(), r.stderr


def test_known_fault_36_sni_of_an_allowed_host_to_another_address(guest):
    # The SNI decides, and egress goes to that name's own address.
    r = guest.curl("--resolve", f"allowed.test:443:{OTHER4}", "https://allowed.test/")
    assert f"addr={ALLOWED4}" in r.stdout, r


def test_host_header_of_an_allowed_host_to_another_address(guest):
    r = guest.curl("-H", "Host: allowed.test", f"http://{OTHER4}/")
    assert f"addr={ALLOWED4}" in r.stdout, r


def test_ip_literals_are_refused_at_once(guest):
    for url in (f"http://{OTHER4}/", f"https://{OTHER4}/", "http://[2a0e:90:1::60]/"):
        r = guest.curl("-k", url)
        assert "addr=" not in r.stdout and r.seconds < AT_ONCE, (url, r)
    for url in ("http://755630356/", "http://0x2d5a0114/", "http://[::ffff:45.90.1.20]/"):
        assert "addr=" not in guest.curl(url).stdout, url  # decimal, hex, IPv4-mapped


def test_plain_tcp_by_the_name_that_was_looked_up(guest):
    out = guest.python(
        "import socket\n"
        "s=socket.create_connection(('raw.test',9000),5)\n"
        "f=s.makefile('rwb')\n"
        "print(f.readline().decode().strip())\n"
        "f.write(b'x'*100000+b'\\n'); f.flush(); print(len(f.readline()))"
    )
    assert out.splitlines()[0].endswith(RAW4) and out.splitlines()[1] == "100001"


def test_known_fault_26_refusals_are_immediate(guest):
    code = (
        "import socket,time,errno\n"
        "t=time.monotonic()\n"
        "s=socket.socket(); s.settimeout(10)\n"
        "try:\n"
        f"  s.connect(('{OTHER4}',5432)); r=s.recv(1)\n"
        "  print('eof' if not r else r)\n"
        "except OSError as e: print(errno.errorcode[e.errno])\n"
        "print(time.monotonic()-t)"
    )
    how, secs = guest.python(code).split()
    assert how == "ECONNRESET" and float(secs) < AT_ONCE


def test_udp_is_refused_at_once(guest):
    code = (
        "import socket,errno\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5)\n"
        f"s.connect(('{OTHER4}',443)); s.send(b'quic')\n"
        "try: s.recv(1); print('answer')\n"
        "except OSError as e: print(errno.errorcode[e.errno])"
    )
    assert guest.python(code).strip() == "EHOSTUNREACH" or guest.python(code).strip() == "EACCES"


def test_icmp_is_refused_not_dropped(guest):
    code = (
        "import socket,struct\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_RAW,socket.IPPROTO_ICMP); s.settimeout(5)\n"
        f"s.sendto(struct.pack('!BBHHH',8,0,0xf7fe,0,1),('{OTHER4}',0))\n"
        "b=s.recv(1000); print(b[20],b[21])"
    )
    assert guest.python(code).split() == ["3", "13"]  # unreachable, administratively prohibited


def test_half_close_and_counts(guest):
    code = (
        "import socket\n"
        "s=socket.create_connection(('raw.test',9002),5)\n"
        "s.sendall(b'a'*3000000); s.shutdown(socket.SHUT_WR)\n"
        "print(s.recv(100).decode())"
    )
    assert guest.python(code).strip() == "3000000"
    # the receipt has the bytes
    end = time.time() + 5
    while time.time() < end:
        closed = guest.log(event="close", port=9002)
        if closed:
            break
        time.sleep(0.02)
    assert closed[0]["bytesOut"] == 3000000 and closed[0]["bytesIn"] == 7
    assert closed[0]["rule"] == "raw.test:9002"


def test_server_first_connection_cannot_switch_to_another_site(world):
    """A silent client is passed by the name it looked up; then it says TLS for another name."""
    g = world.guest({"mode": "allow", "allow": ["shared-a.test"]})
    code = (
        "import socket,ssl,time\n"
        "s=socket.create_connection(('shared-a.test',22),5)\n"
        "print(s.recv(100))\n"
        "c=ssl.create_default_context(); c.check_hostname=False; c.verify_mode=ssl.CERT_NONE\n"
        "try: c.wrap_socket(s,server_hostname='other.test'); print('tls')\n"
        "except OSError as e: print(type(e).__name__)"
    )
    out = g.python(code)
    assert "SSH-2.0" in out and "tls" not in out
    assert g.log(event="cut", reason="name_mismatch")


@pytest.mark.parametrize("name", ["rebind-loop.test", "rebind-meta.test", "rebind-host.test", "rebind-lan.test"])
def test_rebinding_is_refused(world, name):
    g = world.guest({"mode": "open"})
    r = g.curl(f"http://{name}/")
    assert r.returncode == 6 and r.seconds < AT_ONCE, r
    assert g.log(event="refuse", host=name)[0]["reason"] == "closed_range"
    # Nor by saying the name to any other address.
    r = g.curl("-i", "-H", f"Host: {name}", f"http://{OTHER4}/")
    assert "addr=" not in r.stdout or f"addr={OTHER4}" in r.stdout


def test_private_ranges_and_the_host_stay_closed_when_open(world):
    g = world.guest({"mode": "open"})
    assert f"addr={OTHER4}" in g.curl("http://other.test/").stdout
    for target in ("10.1.2.3", "192.168.1.1", "169.254.169.254", "127.0.0.2", "192.0.0.1", "[fd12::1]"):
        r = g.curl("-i", f"http://{target}/")
        assert "addr=" not in r.stdout and r.seconds < AT_ONCE, (target, r)
    assert "closed unless a range rule opens it" in g.curl("http://10.1.2.3/").stdout
    # The host's own public address: nothing of it is open, though no range says so.
    srv = world.spawn(world.host, "python3", "-m", "http.server", "8123", "--bind", "0.0.0.0")
    world.wait_port(world.host, HOST4, 8123)
    r = g.curl("-i", f"http://{HOST4}:8123/")
    assert "host_address" in r.stdout and "Directory listing" not in r.stdout, r
    assert "Directory listing" not in g.curl("http://host.test:8123/").stdout
    srv.terminate()


def test_a_range_rule_opens_a_private_address(world):
    g = world.guest({"mode": "allow", "allow": ["10.1.2.0/24:80"]})
    assert "addr=10.1.2.3" in g.curl("http://10.1.2.3/").stdout
    assert "addr=" not in g.curl("-k", "https://10.1.2.3/").stdout
    assert g.log(event="allow", address="10.1.2.3")[0]["rule"] == "10.1.2.0/24:80"


def test_mode_none_closes_everything(world):
    g = world.guest({"mode": "none", "allow": ["allowed.test"]})
    r = g.curl("https://allowed.test/")
    assert r.returncode == 6 and r.seconds < AT_ONCE
    r = g.curl("-i", "--resolve", f"allowed.test:80:{ALLOWED4}", "http://allowed.test/")
    assert r.stdout.startswith("HTTP/1.1 403") and "mode none" in r.stdout


def test_a_slot_without_policy_is_closed(world):
    g = world.guest()
    r = g.curl("--resolve", f"allowed.test:80:{ALLOWED4}", "http://allowed.test/")
    assert "mode none" in r.stdout


def test_deny_wins_in_open_mode(world):
    g = world.guest({"mode": "open", "deny": ["other.test", "45.90.1.40"]})
    assert "addr=" in g.curl("https://allowed.test/").stdout
    assert g.curl("https://other.test/").returncode == 6
    r = g.curl("-v", "--resolve", f"other.test:443:{OTHER4}", "https://other.test/")
    assert "access denied" in r.stderr.lower()
    # The allowed name's SNI at the denied name's address goes to the allowed name's own.
    r = g.curl("--resolve", f"allowed.test:443:{OTHER4}", "https://allowed.test/")
    assert f"addr={ALLOWED4}" in r.stdout
    r = g.curl(f"http://{RAW4}/")
    assert "deny rule 45.90.1.40" in r.stdout


def test_policy_change_applies_to_open_connections(world):
    g = world.guest({"mode": "open"})
    code = (
        "import socket,sys,errno\n"
        "a=socket.create_connection(('raw.test',9000),5); a.recv(100)\n"
        "b=socket.create_connection(('ssh.test',22),5); b.recv(100)\n"
        "print('up',flush=True); sys.stdin.readline()\n"
        "b.sendall(b'still'); print(b.recv(10),flush=True)\n"
        "try: print(a.recv(10),flush=True)\n"
        "except OSError as e: print(errno.errorcode[e.errno],flush=True)\n"
    )
    import subprocess

    p = g.popen("/usr/bin/python3", "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "up\n"
    assert g.policy(mode="allow", allow=["ssh.test"]) == 1
    p.stdin.write("\n")
    p.stdin.flush()
    assert p.stdout.readline() == "b'still'\n"
    assert p.stdout.readline() == "ECONNRESET\n"
    p.wait(5)
    assert g.log(event="cut", reason="policy_changed", host="raw.test")


def test_explain_agrees_with_what_happens(guest):
    e = guest.explain("other.test", 443)
    assert not e["allowed"] and e["fix"] == 'Add "other.test" to network.allow.'
    e = guest.explain("allowed.test", 443)
    assert e["allowed"] and e["rule"] == "allowed.test"
    e = guest.explain("169.254.169.254", 80)
    assert not e["allowed"] and e["reason"] == "not_allowed" or e["reason"] == "closed_range"


def test_unreachable_is_told_apart_from_refused(world):
    g = world.guest({"mode": "allow", "allow": ["down.test", "allowed.test"]})
    r = g.curl("-i", "http://down.test:81/")
    assert r.stdout.startswith("HTTP/1.1 502") and "unreachable" in r.stdout, r


def test_malformed_http_is_refused(guest):
    code = (
        "import socket\n"
        f"s=socket.create_connection(('{ALLOWED4}',80),5)\n"
        "s.sendall(b'GET / HTTP/1.1\\nHost: allowed.test\\n\\n')\n"
        "print(s.recv(1000).decode())"
    )
    assert "HTTP/1.1 400" in guest.python(code)


def test_slowloris_and_limits_do_not_reach_a_neighbour(world):
    """Hundreds of half heads in one sandbox; another sandbox's requests pass meanwhile."""
    bad = world.guest({"mode": "open"})
    good = world.guest({"mode": "open"})
    import subprocess

    code = (
        "import socket,sys,resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE,(5000,5000))\n"
        "l=[]\n"
        "for i in range(3000):\n"
        "  try:\n"
        f"    s=socket.create_connection(('{ALLOWED4}',80),5); s.sendall(b'GET / HT'); l.append(s)\n"
        "  except OSError: pass\n"
        "print(len(l),flush=True); sys.stdin.readline()"
    )
    p = bad.popen("/usr/bin/python3", "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert int(p.stdout.readline()) > 500
    st = bad.stats()
    assert st["connections"] <= 2048
    assert bad.log(event="refuse", reason="rate_limit") or bad.log(event="refuse", reason="connection_limit")
    r = good.curl("http://allowed.test/")
    assert "addr=" in r.stdout and r.seconds < AT_ONCE
    p.kill()
    p.wait()
