"""Figures of the network: egress in namespaces, as tests/egress runs it.

    bench/egress_figures.py [NAME…]     prints a JSON line for each

The guest is joined to its slot by a cable that copies frames in user space, offloads and all; the
plain routed pair that egress is compared with hangs on the same kind of cable.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/egress"))
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build"))
os.environ.setdefault("EGRESS_HOST", str(BUILD / "tests/egress/egress_host"))
os.environ.setdefault("CLOCHE_EGRESS", str(BUILD / "src/egress/cloche-egress"))

PYTHON = "/usr/bin/python3"
MIB = 256

DOWNLOAD = """
import socket, sys, time
b = bytearray(1 << 20)
for i in range(int(sys.argv[2])):
    s = socket.create_connection((sys.argv[1], 9003), 10)
    t, n = time.monotonic(), 0
    while True:
        k = s.recv_into(b)
        if not k: break
        n += k
    print(n / (time.monotonic() - t), flush=True)
"""

ROUND_TRIPS = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 9001), 10)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for i in range(int(sys.argv[2])):
    t = time.perf_counter(); s.sendall(b"x"); s.recv(1); print((time.perf_counter() - t) * 1000)
"""

NGINX = """
daemon off; user root; worker_processes 1; pid {d}/proxy.pid; error_log {d}/proxy.err;
events {{ worker_connections 512; }}
http {{ access_log off; proxy_temp_path {d}/pt; client_body_temp_path {d}/cb; fastcgi_temp_path {d}/f1;
  uwsgi_temp_path {d}/u1; scgi_temp_path {d}/s1;
  server {{ listen 192.0.0.1:443 ssl; ssl_certificate {cert}; ssl_certificate_key {key};
    location / {{ proxy_pass https://{api}; proxy_ssl_name api.test; proxy_ssl_server_name on; proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {ca}; proxy_http_version 1.1; proxy_set_header Host api.test;
      proxy_buffering off; proxy_set_header Authorization "Bearer key"; }} }} }}
"""


def on_core(core, pid):
    subprocess.run(["taskset", "-a", "-pc", str(core), str(pid)], check=True, capture_output=True)


class Net:
    """The namespaces, made when first asked for."""

    def __init__(self):
        import world

        self.world = world
        self.w = world.World(["--connections", "4000", "--connection-rate", "5000", "--lookup-rate", "10000"])
        self._guest = self._routed = None

    @property
    def guest(self):
        if not self._guest:
            self._guest = self.w.guest({"mode": "allow", "allow": ["raw.test", "api.test"]})
            self._guest.run("getent", "ahosts", "raw.test")
        return self._guest

    @property
    def routed(self):
        """A guest whose packets are forwarded by a plain router; returns its namespace."""
        if self._routed:
            return self._routed
        w, sh = self.w, self.world.sh
        guest, router = w.netns(w.id + "pg"), w.netns(w.id + "pr")
        w.ask(op="wire", guest=f"/run/netns/{guest}", router=f"/run/netns/{router}")
        sh("ip", "-n", router, "link", "add", "up1", "type", "veth", "peer", "name", "down1", "netns", w.inet)
        for ns, dev, addr in ((guest, "eth0", "192.0.0.2/30"), (router, "tap0", "192.0.0.1/30"),
                              (router, "up1", "45.91.1.2/24"), (w.inet, "down1", "45.91.1.1/24")):
            sh("ip", "-n", ns, "addr", "add", addr, "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "-n", guest, "route", "add", "default", "via", "192.0.0.1")
        sh("ip", "-n", router, "route", "add", "default", "via", "45.91.1.1")
        sh("ip", "-n", w.inet, "route", "add", "192.0.0.0/30", "via", "45.91.1.2")
        sh("sysctl", "-q", "-w", "net.ipv4.ip_forward=1", ns=router)
        self.router = router
        self._routed = guest
        return guest

    def plain(self, *argv):
        return subprocess.run(["ip", "netns", "exec", self.routed, *argv], check=True, capture_output=True, text=True).stdout

    def through(self, *argv):
        r = self.guest.run(*argv, timeout=300)
        if r.returncode:
            raise RuntimeError(r.stderr)
        return r.stdout


def numbers(text):
    return [float(v) for v in text.split()]


def egress_tcp_ratio(net):
    """One TCP stream of 256 MiB to the guest through egress, as a share of the same through a router."""
    raw = net.world.RAW4
    net.through(PYTHON, "-c", DOWNLOAD, "raw.test", "1"), net.plain(PYTHON, "-c", DOWNLOAD, raw, "1")
    ratios = []
    for _ in range(7):  # one of each in turn: the machine's mood is the same for both
        a = numbers(net.through(PYTHON, "-c", DOWNLOAD, "raw.test", "1"))[0]
        ratios.append(a / numbers(net.plain(PYTHON, "-c", DOWNLOAD, raw, "1"))[0])
    return ratios


def egress_added_ms(net):
    """What egress adds to a round trip of one byte on an open connection."""
    raw = net.world.RAW4
    values = []
    for _ in range(5):
        a = sorted(numbers(net.through(PYTHON, "-c", ROUND_TRIPS, "raw.test", "2000")))
        b = sorted(numbers(net.plain(PYTHON, "-c", ROUND_TRIPS, raw, "2000")))
        values += [x - y for x, y in zip(a, b)]
    return values


def egress_refuse_ms(net):
    """From connect to the reset of an address that no rule allows."""
    code = (
        "import socket,time\n"
        "for i in range(100):\n"
        "  t=time.perf_counter(); s=socket.socket(); s.settimeout(10)\n"
        "  try: s.connect(('45.90.1.20',5432)); s.recv(1)\n"
        "  except OSError: pass\n"
        "  print((time.perf_counter()-t)*1000); s.close()"
    )
    return numbers(net.through(PYTHON, "-c", code))


def tls_swap_ratio(net):
    """A 64 MiB file over HTTPS with a secret put in, as a share of nginx terminating and re-encrypting."""
    w = net.w
    (w.dir / "www/file/big").write_bytes(os.urandom(1 << 20) * 64)
    net.routed
    conf = w.dir / "proxy.conf"
    conf.write_text(NGINX.format(d=w.dir, cert=w.certs.cert, key=w.certs.key, ca=w.certs.ca, api=net.world.API4))
    proxy = w.spawn(net.router, "nginx", "-c", str(conf), "-e", str(w.dir / "proxy.err"))
    w.wait_port(net.router, "192.0.0.1", 443)
    ph = net.guest.secrets({"name": "K", "value": "key", "hosts": ["api.test"], "in": ["header"]})
    pid = w.ask(op="pid")["pid"]
    on_core(0, pid)
    for child in subprocess.run(["pgrep", "-P", str(proxy.pid)], capture_output=True, text=True).stdout.split():
        on_core(0, child)
    on_core(0, proxy.pid)
    curl = ["taskset", "-c", "1", "curl", "-sS", "--http1.1", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256",
            "--tls-max", "1.2", "-o", "/dev/null", "-w", "%{speed_download} %{http_code}\n"]
    ratios = []
    for i in range(6):
        a = net.through(*curl, "--cacert", str(net.guest.bundle), "-H", f"Authorization: Bearer {ph['K']}",
                        "https://api.test/file/big").split()
        b = net.plain(*curl, "--cacert", str(w.certs.ca), "--resolve", "api.test:443:192.0.0.1",
                      "https://api.test/file/big").split()
        assert a[1] == b[1] == "200", (a, b)
        if i:
            ratios.append(float(a[0]) / float(b[0]))
    net.guest.secrets()
    proxy.terminate()
    return ratios


def policy_apply_1000_ms(net):
    """A new policy that cuts 1,000 open connections: request to answer."""
    code = (
        "import socket,sys,resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE,(4096,4096))\n"
        "while True:\n"
        "  l=[socket.create_connection(('raw.test',9001),10) for i in range(1000)]\n"
        "  for s in l: s.sendall(b'x'); s.recv(1)\n"
        "  print('up',flush=True)\n"
        "  if not sys.stdin.readline(): break\n"
        "  for s in l: s.close()"
    )
    g, values = net.guest, []
    p = g.popen(PYTHON, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(7):
        assert p.stdout.readline() == "up\n"
        start = time.perf_counter()
        cut = g.policy(mode="allow", allow=["api.test"])
        values.append((time.perf_counter() - start) * 1000)
        assert cut == 1000, cut
        g.policy(mode="allow", allow=["raw.test", "api.test"])
        p.stdin.write("\n")
        p.stdin.flush()
    p.kill()
    p.wait()
    return values


def slots(n=50):
    with tempfile.TemporaryDirectory() as d:
        out = subprocess.run([str(BUILD / "tests/egress/slot_bench"), d, str(n)], check=True, capture_output=True,
                             text=True).stdout  # fmt: skip
        os.rmdir(d + "/netns")
    return [json.loads(line) for line in out.splitlines()]


def slot_make_ms(net):
    """Making a network slot: namespace, tap, addresses, routes, firewall."""
    return slots()[0]


def slot_pool_ms(net):
    """Taking a ready slot and opening its six sockets."""
    return slots()[1]


FIGURES = {
    "egress_tcp_ratio": ("ratio", egress_tcp_ratio),
    "egress_added_ms": ("ms", egress_added_ms),
    "egress_refuse_ms": ("ms", egress_refuse_ms),
    "tls_swap_ratio": ("ratio", tls_swap_ratio),
    "policy_apply_1000_ms": ("ms", policy_apply_1000_ms),
    "slot_make_ms": ("ms", slot_make_ms),
    "slot_pool_ms": ("ms", slot_pool_ms),
}


class Lazy:
    """Makes the namespaces when a figure first wants them, and removes them at the end."""

    def __init__(self, stack):
        self._stack, self._net = stack, None

    def __getattr__(self, name):
        if not self._net:
            self._net = Net()
            self._stack.callback(self._net.w.close)
        return getattr(self._net, name)


def register(figure, not_here):
    """Adds the figures to the registry of bench/figures.py."""
    def measure(f):
        def run(setup):
            if os.geteuid() != 0:
                raise not_here("network namespaces need root")
            if not hasattr(setup, "net"):
                setup.net = Lazy(setup.stack)
            return f(setup.net)
        run.__name__ = f.__name__
        return run
    for unit, f in FIGURES.values():
        figure(unit, f.__doc__)(measure(f))


def main():
    def at(values, p):
        return round(sorted(values)[max(0, -(-len(values) * p // 100) - 1)], 4)

    with contextlib.ExitStack() as stack:
        net = Lazy(stack)
        for name in sys.argv[1:] or FIGURES:
            unit, f = FIGURES[name]
            v = f(net)
            print(json.dumps({"name": name, "unit": unit, "p50": at(v, 50), "p90": at(v, 90), "p99": at(v, 99),
                              "n": len(v)}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
