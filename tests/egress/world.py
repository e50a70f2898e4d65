"""A small internet of network namespaces, real servers in it, and sandboxes behind real slots.

    host   runs cloche-egress; one link to "inet"
    inet   holds every public address: nginx, dnsmasq, raw TCP servers
    gN     a guest: one NIC (eth0), cabled to its slot's tap

Everything is named after this process and removed at the end, so runs do not meet.
"""

import datetime
import ipaddress
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

UID = 64917
GUEST4, GATEWAY4 = "192.0.0.2", "192.0.0.1"
GUEST6, GATEWAY6 = "fd00:c10c:e::2", "fd00:c10c:e::1"
GUEST_MAC = "02:c1:0c:e0:00:02"

# Public-looking addresses that exist only in the test's namespace.
DNS4 = "45.90.1.53"
ALLOWED4, ALLOWED6 = "45.90.1.10", "2a0e:90:1::10"
OTHER4 = "45.90.1.20"
API4 = "45.90.1.30"
RAW4 = "45.90.1.40"
HOST4 = "45.90.1.2"  # the host's own public address

NAMES = {
    "allowed.test": (ALLOWED4, ALLOWED6),
    "www.allowed.test": (ALLOWED4, None),
    "other.test": (OTHER4, None),
    "api.test": (API4, None),
    "echo.test": (API4, None),
    "h2.test": ("45.90.1.31", None),
    "ws.test": ("45.90.1.32", None),
    "badcert.test": (API4, None),
    "raw.test": (RAW4, None),
    "ssh.test": ("45.90.1.41", None),
    "shared-a.test": (OTHER4, None),
    "host.test": (HOST4, None),
    "down.test": ("45.90.1.99", None),
    "rebind-loop.test": ("127.0.0.1", None),
    "rebind-meta.test": ("169.254.169.254", None),
    "rebind-host.test": ("192.0.0.1", None),
    "rebind-lan.test": ("10.1.2.3", "fd12::1"),
    "six.test": (None, "2a0e:90:1::60"),
    "pypi.test": ("45.90.1.50", None),
    "git.test": ("45.90.1.50", None),
}


def sh(*argv, ns=None, **kw):
    if ns:
        argv = ("ip", "netns", "exec", ns) + argv
    return subprocess.run(argv, check=True, capture_output=True, text=True, **kw).stdout


class Certs:
    """A test CA and a server certificate for the names given."""

    def __init__(self, folder, names):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        def name(cn):
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)])

        def build(subject, issuer, key, signer, sans=None):
            now = datetime.datetime.utcnow()
            b = (
                x509.CertificateBuilder()
                .subject_name(name(subject))
                .issuer_name(name(issuer))
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(days=30))
                .not_valid_after(now + datetime.timedelta(days=30))
                .add_extension(x509.BasicConstraints(ca=sans is None, path_length=None), True)
            )
            if sans:
                b = b.add_extension(x509.SubjectAlternativeName([x509.DNSName(s) for s in sans]), False)
            return b.sign(signer, hashes.SHA256())

        def pem_key(key):
            return key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )

        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = build("test internet CA", "test internet CA", ca_key, ca_key)
        key = ec.generate_private_key(ec.SECP256R1())
        cert = build("test server", "test internet CA", key, ca_key, names)
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
        self.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        self.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(pem_key(key))
        self.ca.chmod(0o644)


NGINX = """
daemon off; user root; worker_processes 1; pid {d}/nginx.pid; error_log {d}/nginx.err warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path {d}/body; proxy_temp_path {d}/proxy;
  fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;
  keepalive_requests 100000; default_type text/plain; large_client_header_buffers 8 64k;
  ssl_certificate {cert}; ssl_certificate_key {key};
  map $http_upgrade $up {{ default close; websocket upgrade; }}
  server {{
    listen 80 default_server; listen [::]:80 default_server;
    listen 443 ssl http2 default_server; listen [::]:443 ssl http2 default_server;
    location / {{ return 200 "host=$host sni=$ssl_server_name addr=$server_addr\\n"; }}
    location /file/ {{ root {d}/www; index index.html; }}
    location /headers {{ return 200 "auth=$http_authorization key=$http_x_api_key args=$args\\n"; }}
    location /upload {{ proxy_pass http://127.0.0.1:8999; proxy_request_buffering off; proxy_http_version 1.1; }}
    location /ws {{ proxy_pass http://127.0.0.1:8998; proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $up; proxy_read_timeout 60; }}
  }}
}}
"""


class World:
    def __init__(self, egress_options=()):
        self.id = f"clt{os.getpid()}"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=self.id + "-"))
        self.dir.chmod(0o755)
        self.host, self.inet = self.id + "h", self.id + "i"
        self.namespaces, self.children, self.guests = [], [], 0
        self.proc = None
        try:
            self._links()
            self._servers()
            self.options = list(egress_options)
            self.start_host()
        except BaseException:
            self.close()
            raise

    def netns(self, name):
        sh("ip", "netns", "add", name)
        self.namespaces.append(name)
        sh("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _links(self):
        self.netns(self.host)
        self.netns(self.inet)
        sh("ip", "-n", self.host, "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", self.inet)
        # A private network next to the host, which policy must keep closed: 10.1.2.0/24.
        self._addresses(self.host, "up0", [HOST4 + "/24", "10.1.2.2/24"], ["2a0e:90:1::2/64"])
        fours = {f for f, _ in NAMES.values() if f and f.startswith("45.")} - {HOST4}
        sixes = {s for _, s in NAMES.values() if s and s.startswith("2a0e")}
        self._addresses(
            self.inet, "down0",
            ["45.90.1.1/24", "10.1.2.3/24", DNS4 + "/24"] + [f + "/24" for f in sorted(fours)],
            ["2a0e:90:1::1/64"] + [s + "/64" for s in sorted(sixes)],
        )  # fmt: skip

    def _addresses(self, ns, dev, fours, sixes):
        lines = [f"addr add {a} dev {dev}" for a in fours] + [f"addr add {a} dev {dev} nodad" for a in sixes]
        sh("ip", "-n", ns, "-batch", "-", input="\n".join(lines + [f"link set {dev} up"]) + "\n")

    def spawn(self, ns, *argv, **kw):
        kw.setdefault("stdout", subprocess.DEVNULL)
        kw.setdefault("stderr", subprocess.DEVNULL)
        p = subprocess.Popen(["ip", "netns", "exec", ns, *argv], stdin=subprocess.DEVNULL, **kw)
        self.children.append(p)
        return p

    def wait_port(self, ns, addr, port):
        """Until something listens there."""
        code = (
            "import socket,time,sys\n"
            "end=time.time()+20\n"
            "while time.time()<end:\n"
            f"  try: socket.create_connection(({addr!r},{port}),1).close(); sys.exit(0)\n"
            "  except OSError: time.sleep(0.02)\n"
            "sys.exit(1)"
        )
        sh("/usr/bin/python3", "-c", code, ns=ns)

    def _servers(self):
        self.certs = Certs(self.dir, [n for n in NAMES if n != "badcert.test"])
        (self.dir / "www/file").mkdir(parents=True)
        (self.dir / "www/file/one").write_bytes(os.urandom(1 << 20))
        conf = self.dir / "nginx.conf"
        conf.write_text(NGINX.format(d=self.dir, cert=self.certs.cert, key=self.certs.key))
        self.spawn(self.inet, "nginx", "-c", str(conf), "-e", str(self.dir / "nginx.err"))
        self.dns_log = self.dir / "dns.log"
        args = [f"--address=/{n}/{a}" for n, pair in NAMES.items() for a in pair if a]
        self.spawn(
            self.inet, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
            "--bind-interfaces", f"--listen-address={DNS4}", "--log-queries", f"--log-facility={self.dns_log}",
            "--user=root", f"--pid-file={self.dir}/dnsmasq.pid", "--local-ttl=60", "--local=/test/",
            "--address=/tunnel.test/45.90.1.66", *args,
        )  # fmt: skip
        self.spawn(
            self.inet, "nghttpd", "--echo-upload", "--trailer=x-status: 0", "8443",
            str(self.certs.key), str(self.certs.cert),
        )  # fmt: skip
        self.spawn(self.inet, "/usr/bin/python3", str(pathlib.Path(__file__).parent / "servers.py"))
        for addr, port in ((ALLOWED4, 80), (ALLOWED4, 443), (DNS4, 53), (RAW4, 9000), (API4, 8443)):
            self.wait_port(self.inet, addr, port)

    # --- egress and its host ---

    def start_host(self):
        self.run_dir, self.state_dir = self.dir / "run", self.dir / "state"
        self.run_dir.mkdir(exist_ok=True)
        self.state_dir.mkdir(exist_ok=True)
        os.chown(self.state_dir, UID, UID)
        self.state_dir.chmod(0o700)
        self.egress_log = open(self.dir / "egress.log", "ab")
        env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:log_path=" + str(self.dir / "asan"))
        env["UBSAN_OPTIONS"] = "print_stacktrace=1"
        self.proc = subprocess.Popen(
            ["ip", "netns", "exec", self.host, os.environ["EGRESS_HOST"], os.environ["CLOCHE_EGRESS"],
             str(self.run_dir), str(self.state_dir), str(UID),
             "--resolver", DNS4, "--trust-file", str(self.certs.ca), *self.options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.egress_log, text=True, env=env,
        )  # fmt: skip

    def ask_raw(self, **q):
        self.proc.stdin.write(json.dumps(q) + "\n")
        self.proc.stdin.flush()
        line = self.proc.stdout.readline()
        assert line, "egress_host ended: " + (self.dir / "egress.log").read_text()[-2000:]
        return json.loads(line)

    def ask(self, **q):
        a = self.ask_raw(**q)
        assert a["ok"], a
        return a

    def guest(self, policy=None):
        self.guests += 1
        return Guest(self, f"g{self.guests}", policy)

    def close(self):
        if self.proc:
            self.proc.stdin.close()
            try:
                self.proc.wait(10)
            except subprocess.TimeoutExpired:
                self.proc.kill()
        for p in self.children:
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for p in self.children:
            try:
                p.wait(5)
            except subprocess.TimeoutExpired:
                p.kill()
        for ns in self.namespaces:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True)
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)


class Guest:
    """A sandbox as far as the network can tell: programs run in its namespace."""

    def __init__(self, world, name, policy):
        self.w, self.name = world, name
        self.ns = world.netns(world.id + name)
        self.generation = 0
        self.bundle = world.certs.ca
        world.ask(op="slot", name=name, guest=f"/run/netns/{self.ns}")
        sh("ip", "-n", self.ns, "link", "set", "eth0", "address", GUEST_MAC)
        world._addresses(self.ns, "eth0", [GUEST4 + "/30"], [GUEST6 + "/64"])
        sh("ip", "-n", self.ns, "-batch", "-",
           input=f"route add default via {GATEWAY4}\nroute add ::/0 via {GATEWAY6}\n")  # fmt: skip
        self.resolv = world.dir / f"{name}.resolv"
        self.resolv.write_text(f"nameserver {GATEWAY4}\noptions timeout:2 attempts:1\n")
        if policy is not None:
            self.policy(**policy)

    def policy(self, mode="allow", allow=(), deny=()):
        self.generation += 1
        return self.w.ask(
            verb="policy_set", slot=self.name, sandbox="sbx_" + self.name, generation=self.generation,
            policy={"mode": mode, "allow": list(allow), "deny": list(deny)},
        )["cut"]  # fmt: skip

    def argv(self, *argv):
        """What starts argv inside the guest, with the guest's resolv.conf."""
        return ["ip", "netns", "exec", self.ns, "unshare", "-m", "sh", "-c",
                f'mount --bind {self.resolv} /etc/resolv.conf && exec "$@"', "sh", *argv]  # fmt: skip

    def run(self, *argv, timeout=30, **kw):
        kw.setdefault("text", True)
        start = time.monotonic()
        p = subprocess.run(self.argv(*argv), capture_output=True, timeout=timeout, **kw)
        p.seconds = time.monotonic() - start
        return p

    def popen(self, *argv, **kw):
        return subprocess.Popen(self.argv(*argv), **kw)

    def python(self, code, timeout=30):
        p = self.run("/usr/bin/python3", "-c", code, timeout=timeout)
        assert p.returncode == 0, p.stderr
        return p.stdout

    def curl(self, *args, timeout=20):
        return self.run("curl", "-sS", "--max-time", "15", "--cacert", str(self.bundle), *args, timeout=timeout)

    def log(self, **match):
        """Receipts, all pages, that have these fields."""
        out, after = [], 0
        while True:
            page = self.w.ask(verb="log", slot=self.name, after=after)
            out += page["records"]
            if page["next"] == after:
                break
            after = page["next"]
        return [r for r in out if all(r[k] == v for k, v in match.items())]

    def stats(self):
        return self.w.ask(verb="stats", slot=self.name)

    def explain(self, host, port):
        return self.w.ask(verb="explain", slot=self.name, host=host, port=port)

    def secrets(self, *secrets):
        """secrets: dicts {name, value, hosts, in}; returns their placeholders by name."""
        sealed = []
        for s in secrets:
            a = self.w.ask(verb="secret_seal", id="sec_" + s["name"], value=s["value"])
            sealed.append({"id": "sec_" + s["name"], "name": s["name"], "hosts": s["hosts"],
                           "in": s["in"], "sealed": a["sealed"]})  # fmt: skip
        # The CA in the guest is an addition to the bundle it had (known fault 30).
        self.bundle = self.w.dir / f"{self.name}.pem"
        self.bundle.write_text(self.w.certs.ca.read_text() + self.w.ask(verb="hello")["ca"])
        a = self.w.ask(verb="secrets_set", slot=self.name, scope="sbx_" + self.name, secrets=sealed)
        return {k[4:]: v for k, v in a["placeholders"].items()}
