"""What a hostile guest can do with its NIC, and what happens when egress dies. Known faults 28, 32."""

import subprocess
import time

import pytest
from world import ALLOWED4, GUEST4, OTHER4

FRAMES = """
import socket, struct, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind(("eth0", 0)); s.settimeout(0.5)
def mac(t): return bytes.fromhex(t.replace(":", ""))
ME, GW = mac("02:c1:0c:e0:00:02"), mac("02:c1:0c:e0:00:01")
def csum(b):
    b += b"\\0" * (len(b) & 1)
    t = sum(struct.unpack("!%dH" % (len(b) // 2), b)); t = (t >> 16) + (t & 0xffff); t += t >> 16
    return ~t & 0xffff
def ip(src, dst, proto, body, ident=1, frag=0):
    h = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), ident, frag, 64, proto, 0, socket.inet_aton(src), socket.inet_aton(dst))
    return h[:10] + struct.pack("!H", csum(h)) + h[12:] + body
def syn(src, dst, sport, dport):
    t = struct.pack("!HHIIBBHHH", sport, dport, 1, 0, 0x50, 2, 8192, 0, 0)
    p = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack("!BBH", 0, 6, len(t))
    return t[:16] + struct.pack("!H", csum(p + t)) + t[18:]
def eth(payload, src=ME, dst=GW, kind=0x0800): return dst + src + struct.pack("!H", kind) + payload
def answers(want, seconds=1.0):
    out, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        try: f = s.recv(65536)
        except OSError: break
        if f[6:12] == GW and want(f): out.append(f)
    return out
"""


@pytest.fixture(scope="module")
def guest(world):
    return world.guest({"mode": "open"})


def test_spoofed_source_addresses_get_nothing(guest):
    code = FRAMES + (
        "for src in ('192.0.0.1','10.1.2.3','45.90.1.20','127.0.0.1','0.0.0.0'):\n"
        "    s.send(eth(ip(src,'45.90.1.10',6,syn(src,'45.90.1.10',4000,80))))\n"
        "print(len(answers(lambda f: f[12:14]==b'\\x08\\x00')))\n"
        f"s.send(eth(ip('{GUEST4}','45.90.1.10',6,syn('{GUEST4}','45.90.1.10',4001,80))))\n"
        "print(len(answers(lambda f: f[12:14]==b'\\x08\\x00' and f[47]&0x12==0x12))>0)\n"
    )
    assert guest.python(code).split() == ["0", "True"]


def test_a_foreign_mac_gets_nothing(guest):
    code = FRAMES + (
        f"s.send(eth(ip('{GUEST4}','45.90.1.10',6,syn('{GUEST4}','45.90.1.10',4002,80)),src=mac('02:00:00:00:00:99')))\n"
        "print(len(answers(lambda f: f[12:14]==b'\\x08\\x00')))\n"
    )
    assert guest.python(code).split() == ["0"]


def test_arp_tells_of_the_gateway_only(guest):
    code = FRAMES + (
        "def who(ip_,sender='192.0.0.2'):\n"
        "    s.send(eth(struct.pack('!HHBBH',1,0x0800,6,4,1)+ME+socket.inet_aton(sender)+bytes(6)+socket.inet_aton(ip_),dst=b'\\xff'*6,kind=0x0806))\n"
        "    return len(answers(lambda f: f[12:14]==b'\\x08\\x06' and f[20:22]==b'\\0\\2',0.6))\n"
        "print(who('192.0.0.1'), who('192.0.0.3'), who('10.1.2.2'), who('45.90.1.10'), who('192.0.0.1','192.0.0.1'))\n"
    )
    assert guest.python(code).split() == ["1", "0", "0", "0", "0"]


def test_packets_to_another_sandbox_go_nowhere(world, guest):
    """Every sandbox has the same address; there is no link between slots that could carry more."""
    other = world.guest({"mode": "open"})
    srv = other.popen("/usr/bin/python3", "-m", "http.server", "8000", "--bind", "0.0.0.0",
                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    for target in ("192.0.0.2", "192.0.0.1", "192.0.0.3"):
        code = (
            "import socket\n"
            "try:\n"
            f"  s=socket.create_connection(('{target}',8000),3); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(b'listing' in s.recv(4096))\n"
            "except OSError as e: print('no')"
        )
        assert guest.python(code).strip() in ("no", "False"), target
    srv.terminate()
    srv.wait()


def test_fragments_are_put_together_and_judged(world):
    """A SYN in fragments must not slip past the steering; a UDP packet in fragments is refused."""
    g = world.guest({"mode": "none"})
    code = FRAMES + (
        f"t=syn('{GUEST4}','45.90.1.20',4100,80)\n"
        f"s.send(eth(ip('{GUEST4}','45.90.1.20',6,t[:8],ident=9,frag=0x2000)))\n"
        f"s.send(eth(ip('{GUEST4}','45.90.1.20',6,t[8:],ident=9,frag=1)))\n"
        "print(len(answers(lambda f: f[12:14]==b'\\x08\\x00' and f[23]==6))>0)\n"
    )
    assert g.python(code).split() == ["True"]  # answered by the slot itself, not by the internet
    assert not g.log(event="allow")


def test_odd_protocols_are_refused(guest):
    code = FRAMES + (
        f"s.send(eth(ip('{GUEST4}','45.90.1.20',132,bytes(24))))\n"  # SCTP
        f"s.send(eth(ip('{GUEST4}','45.90.1.20',47,bytes(24))))\n"  # GRE
        "a=answers(lambda f: f[12:14]==b'\\x08\\x00' and f[23]==1)\n"
        "print([(f[34],f[35]) for f in a])\n"
    )
    assert guest.python(code).strip() == "[(3, 13), (3, 13)]"


def test_a_flood_of_syns_leaves_the_neighbour_alone(world):
    bad, good = world.guest({"mode": "open"}), world.guest({"mode": "open"})
    code = FRAMES + (
        f"for i in range(20000): s.send(eth(ip('{GUEST4}','45.90.1.10',6,syn('{GUEST4}','45.90.1.10',1024+i%60000,80))))\n"
        "print('sent')\n"
    )
    p = bad.popen("/usr/bin/python3", "-c", code, stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        r = good.curl("http://allowed.test/")
        assert f"addr={ALLOWED4}" in r.stdout and r.seconds < 5, r
    assert p.communicate(timeout=60)[0] == "sent\n"


def test_known_fault_32_a_dead_egress_is_a_closed_network(world):
    g = world.guest({"mode": "open"})
    ca = world.ask(verb="hello")["ca"]
    assert "addr=" in g.curl("http://allowed.test/").stdout
    conn = g.popen(
        "/usr/bin/python3", "-c",
        "import socket\n"
        "s=socket.create_connection(('raw.test',9000),5); s.recv(100); print('up',flush=True)\n"
        "s.settimeout(10)\n"
        "try: print(s.recv(10),flush=True)\n"
        "except OSError as e: print('reset',flush=True)",
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert conn.stdout.readline() == "up\n"
    world.ask(op="kill")
    try:
        assert conn.stdout.readline() in ("reset\n", "b''\n")
        for url in (f"http://{ALLOWED4}/", f"https://{OTHER4}/"):
            r = g.curl("-k", url)
            assert r.returncode == 7 and r.seconds < 10, r  # refused at once, not a hang
        start = time.monotonic()
        r = g.run("dig", "+tries=1", "+timeout=8", "@192.0.0.1", "allowed.test")
        assert "refused" in r.stdout + r.stderr and time.monotonic() - start < 6, r
    finally:
        world.ask(op="start")
    # The new one has the sockets but no policy yet: still closed.
    assert "mode none" in g.curl(f"http://{ALLOWED4}/").stdout
    g.policy(mode="open")
    assert "addr=" in g.curl("http://allowed.test/").stdout
    # Known fault 28: and it is the same certificate authority.
    assert world.ask(verb="hello")["ca"] == ca


def test_a_removed_slot_is_gone(world):
    g = world.guest({"mode": "open"})
    assert "addr=" in g.curl("http://allowed.test/").stdout
    world.ask(op="remove", name=g.name)
    a = world.ask_raw(verb="stats", slot=g.name)
    assert not a["ok"] and a["error"]["code"] == "unknown_slot"


def test_control_requests_are_checked(world):
    for q, code in (
        ({"verb": "nope"}, "bad_request"),
        ({"verb": "stats", "slot": "missing"}, "unknown_slot"),
        ({"verb": "slot_add", "slot": "x"}, "bad_request"),
        ({"verb": "explain", "slot": "g1", "host": "a b", "port": 1}, "bad_request"),
        ({"verb": "explain", "slot": "g1", "host": "a", "port": 0}, "bad_request"),
        ({"verb": "policy_set", "slot": "g1", "sandbox": "s", "generation": 1, "policy": {"mode": "maybe"}}, "policy_invalid"),
        ({"verb": "policy_set", "slot": "g1", "sandbox": "s", "generation": 1, "policy": {"mode": "allow", "allow": ["10.0.0.1/8"]}}, "policy_invalid"),
    ):
        a = world.ask_raw(**q)
        assert not a["ok"] and a["error"]["code"] == code, (q, a)
    a = world.ask_raw(verb="policy_set", slot="g1", sandbox="s", generation=1, policy={"mode": "allow", "allow": ["10.0.0.1/8"]})
    assert a["error"]["problems"] == [
        {"field": "allow[0]", "problem": "10.0.0.1/8 has bits set beyond its prefix length", "hint": "10.0.0.0/8"}
    ]


def test_egress_has_nothing_to_lose(world):
    """Its own uid, no capability, no way to more, and a system call filter."""
    pid = world.ask(op="kill") and world.ask(op="start")["pid"]
    world.ask(verb="hello")
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":" in line)
    assert status["Uid"].split() == ["64917"] * 4 and status["Gid"].split() == ["64917"] * 4
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapInh"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    import os

    if "asan" not in os.environ["CLOCHE_EGRESS"]:
        assert status["Seccomp"].strip() == "2"
    assert status["Groups"].strip() == ""
