"""Hosts of sandboxes that tests run against, each with a daemon of its own on its own port.

    process  cloched here with a stand-in for the VMM that runs the agent as a plain process
             (tests/tools/process_vmm): the whole host side, fast, but no kernel of its own
    kvm      cloched and cloche-vmm here, on a usable /dev/kvm
    machine  both inside machine mode, wherever there is no usable /dev/kvm

All three answer to the same calls, so that a story is written once.
"""
import base64
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from cloche_api import Api
from paths import BUILD, CLOCHE


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def write_image(folder, name, parts, **more):
    """An image as `cloche image build` leaves it: a folder of parts and their digests."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    files = {}
    for part, (file, data) in parts.items():
        (folder / file).write_bytes(data)
        files[part] = {"name": file, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"schema": 1, "name": name, "kernelVersion": "0-test", "cmdline": "", "files": files, **more}
    (folder / "manifest.json").write_text(json.dumps(manifest))


class Host:
    kind = api = None
    real = True  # whether a sandbox is a machine with its own kernel
    slow = 1     # factor on time limits that are part of a test's input

    def cloche(self, *args, check=False, timeout=600, **kw):
        """The command line against this host."""
        env = dict(os.environ, CLOCHE_URL=self.url, CLOCHE_API_KEY=self.key, HOME="/nonexistent")
        if "input" not in kw:
            kw.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run([CLOCHE, *args], env=env, capture_output=True, timeout=timeout, check=check, **kw)

    def cloche_start(self, *args, **kw):
        env = dict(os.environ, CLOCHE_URL=self.url, CLOCHE_API_KEY=self.key, HOME="/nonexistent")
        kw.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([CLOCHE, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)

    def connect(self, key, port):
        self.key = key
        self.url = f"http://127.0.0.1:{port}"
        made = self.api.made if self.api else []
        self.api = Api("127.0.0.1", port, key, timeout=120 * self.slow)
        self.api.made = made

    def wait_healthy(self, seconds):
        """Until the daemon answers, or dies, or the limit passes."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.api.get("/healthz")
            except OSError as e:
                self.check_alive()
                if time.monotonic() > end:
                    raise AssertionError(f"no daemon after {seconds} s: {e}") from e
            time.sleep(0.05)

    def check_alive(self):
        pass

    def leftovers(self):
        """What could leak, counted: compare before and after."""
        ids = "|".join(self.api.made) or "none"
        text = self.sh(f"""
            daemons=0 fds=0 vmms=0
            for p in /proc/[0-9]*; do
                c=$(tr '\\0' ' ' <$p/cmdline 2>/dev/null) || continue
                case $c in
                *cloched*{self.mark}*)
                    daemons=$((daemons + 1)) fds=$((fds + $(ls $p/fd | wc -l))) ;;
                esac
                case $c in
                *vmm*sbx_*) echo "$c" | grep -qE '{ids}' && vmms=$((vmms + 1)) ;;
                esac
            done
            echo daemons $daemons
            echo fds $fds
            echo vmms $vmms
            echo files $(find {self.state}/sandboxes {self.run} 2>/dev/null | wc -l)
            echo cgroups $(find /sys/fs/cgroup -type d -path '*/{self.cgroup}/*' 2>/dev/null | wc -l)
        """)
        return {k: int(v) for k, v in (line.split() for line in text.splitlines() if line.strip())}


class LocalHost(Host):
    """cloched as a child of ours, with folders of its own."""

    def __init__(self, where, options):
        self.where = pathlib.Path(where)
        self.state, self.run = self.where / "state", self.where / "run"
        self.import_dir, self.libexec = self.where / "import", self.where / "libexec"
        # The api child and the VMMs run as other users.
        for d in (self.where, *self.where.parents):
            if d.stat().st_uid == os.getuid() and d != pathlib.Path("/"):
                d.chmod(d.stat().st_mode | 0o011)
        for d in (self.state, self.run, self.import_dir, self.libexec):
            d.mkdir(mode=0o755)
        shutil.copy(BUILD / "src/agent/agent.cpio", self.libexec)
        if (BUILD / "src/vmm/cloche-vmm").exists():
            shutil.copy(BUILD / "src/vmm/cloche-vmm", self.libexec)
        self.mark = str(self.state)
        self.cgroup = f"cloche-test-{os.getpid()}-{self.kind}"
        self.port = free_port()
        self.options = options
        self.daemon = None
        self.log = self.where / "cloched.log"
        self.make_base()
        self.start()
        self.connect((self.state / "admin.key").read_text().strip(), self.port)

    def start(self):
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(
                [BUILD / "src/cloched/cloched", f"--state-dir={self.state}", f"--run-dir={self.run}",
                 f"--listen=127.0.0.1:{self.port}", f"--import-dir={self.import_dir}",
                 f"--libexec-dir={self.libexec}", f"--cgroup={self.cgroup}",
                 "--memory-reserve-mib=0", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.connect("", self.port)
        self.wait_healthy(120)

    def check_alive(self):
        if self.daemon.poll() is not None:
            raise AssertionError(f"cloched ended with {self.daemon.returncode}:\n{self.log_tail()}")

    def log_tail(self, n=60):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n:])

    def daemon_pids(self):
        """cloched and its api child; the VMMs have other names."""
        out = subprocess.run(["pgrep", "-f", f"cloched.*{self.mark}"], capture_output=True, text=True)
        return [int(p) for p in out.stdout.split()]

    def restart_after_kill(self):
        """kill -9 of every process of the daemon, the sandboxes left alone; then a new daemon."""
        pids = self.daemon_pids()
        assert pids
        for p in pids:
            os.kill(p, signal.SIGKILL)
        self.daemon.wait()
        key = self.key
        self.start()
        self.connect(key, self.port)

    def sh(self, script):
        r = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        return r.stdout

    def close(self):
        try:
            for row in self.api.sandboxes():
                if row["state"] != "deleted":
                    self.api.call("DELETE", f"/v1/sandboxes/{row['id']}")
        finally:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(60)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                raise


class ProcessHost(LocalHost):
    kind, real = "process", False

    def __init__(self, where):
        super().__init__(where, [f"--vmm={BUILD}/tests/tools/process_vmm", "--kvm=/dev/null", "--no-jail",
                                 "--vcpus=1", "--memory-mib=256", "--disk-mib=16", "--disk-reserve-mib=0"])

    def make_base(self):
        self.make_image("base")

    def make_image(self, name, damage=None, cmdline="", **parts):
        disk = b"a disk".ljust(1 << 20, b"\0")
        write_image(self.import_dir / name, name,
                    {"disk": ("disk.raw", disk), "kernel": ("vmlinux", b"a kernel")}, cmdline=cmdline)
        if damage:
            with open(self.import_dir / name / damage, "r+b") as f:
                f.write(b"damage")


def built():
    """A folder that CLOCHE_HOME once named, with a base image in it: that of the tests, or the host's."""
    for d in (os.environ.get("CLOCHE_TEST_HOME"), BUILD / "e2e", "/var/lib/cloche"):
        if d and (pathlib.Path(d) / "import/base/manifest.json").exists():
            return pathlib.Path(d)
    return None


class KvmHost(LocalHost):
    kind, slow = "kvm", 10

    def __init__(self, where):
        super().__init__(where, ["--memory-mib=512", "--disk-mib=2048", "--boot-timeout-seconds=300"])

    def make_base(self):
        (self.import_dir / "base").symlink_to(built() / "import/base")

    def make_image(self, name, damage=None, cmdline=None, kernel=None, initrd=None):
        make_variant(built() / "import/base", self.import_dir / name, name, damage, cmdline, kernel, initrd)


def make_variant(base, folder, name, damage, cmdline, kernel, initrd):
    """A copy of the base image with one part replaced, and its digest right, or damaged, and wrong."""
    folder.mkdir()
    manifest = json.loads((base / "manifest.json").read_text())
    manifest["name"] = name
    if cmdline is not None:
        manifest["cmdline"] = cmdline
    for part, data in (("kernel", kernel), ("initrd", initrd)):
        if data is not None:
            m = manifest["files"][part]
            (folder / m["name"]).write_bytes(data)
            m["bytes"], m["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    for m in manifest["files"].values():
        if not (folder / m["name"]).exists():
            subprocess.run(["cp", "--sparse=always", "--reflink=auto", base / m["name"], folder], check=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if damage:
        with open(folder / damage, "r+b") as f:
            f.seek(4096)
            f.write(b"damage")


def copy_tree(folder, into):
    subprocess.run(["cp", "-r", "--sparse=always", "--reflink=auto", folder, into], check=True)


class MachineHost(Host):
    """A machine of its own: `cloche up --machine` with a home and a port of the tests."""
    kind, slow = "machine", 10
    state, run = "/var/lib/cloche", "/run/cloche"
    mark, cgroup = "", "cloche"

    def __init__(self, where):
        self.where = pathlib.Path(where)
        self.home = self.where / "home"
        self.import_dir = self.home / "import"
        self.import_dir.mkdir(parents=True)
        self.env = dict(os.environ, CLOCHE_HOME=str(self.home), XDG_CONFIG_HOME=str(self.where / "config"))
        copy_tree(built() / "import/base", self.import_dir)
        self.take_system_image()
        port = free_port()
        r = subprocess.run([CLOCHE, "up", "--machine", "--no-image", f"--port={port}", "--memory=3072", "--disk=16"],
                           env=self.env, capture_output=True, text=True, timeout=1800)
        if r.returncode != 0:
            raise AssertionError(f"cloche up: {r.stdout}{r.stderr}")
        self.keep_system_image()
        config = json.loads((self.where / "config/cloche/config.json").read_text())
        self.connect(config["apiKey"], port)
        self.shell = MachineShell(self.home / "machine/shell.sock")

    def take_system_image(self):
        """The machine's system image takes minutes to make and holds no state: a copy is as good."""
        system = built() / "machine/system"
        if (system / "digest").exists():
            (self.home / "machine").mkdir(mode=0o700)
            copy_tree(system, self.home / "machine")

    def keep_system_image(self):
        """For the next run, when this one had to make it."""
        kept, made = built() / "machine/system", self.home / "machine/system"
        if not (kept / "digest").exists() or (kept / "digest").read_bytes() != (made / "digest").read_bytes():
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            copy_tree(made, kept.parent)

    def sh(self, script):
        return self.shell.run(script)

    def make_image(self, name, damage=None, cmdline=None, kernel=None, initrd=None):
        make_variant(self.import_dir / "base", self.import_dir / name, name, damage, cmdline, kernel, initrd)

    def restart_after_kill(self):
        self.sh("kill -9 $(pidof cloched)")
        self.wait_healthy(300)

    def close(self):
        subprocess.run([CLOCHE, "down"], env=self.env, capture_output=True, timeout=300)


class MachineShell:
    """The machine's second serial port, where a root shell waits."""

    def __init__(self, path):
        self.path = path

    def run(self, script, seconds=300):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(seconds)
            s.connect(str(self.path))
            word = base64.b64encode(script.encode()).decode()
            mark = f"done-{time.monotonic_ns()}"
            # The marks are put together there, so that the echo of the line is not taken for them.
            s.sendall(b"\r")
            time.sleep(0.2)
            line = (f"stty -echo; m={mark}; echo; echo begin-$m; echo {word} | base64 -d | bash 2>&1; "
                    f"echo; echo end-$m $?\r")
            s.sendall(line.encode())
            got = b""
            while f"end-{mark}".encode() not in got or not got.endswith(b"\n"):
                data = s.recv(65536)
                if not data:
                    raise AssertionError(f"the machine's shell closed: {got!r}")
                got += data
            text = got.decode(errors="replace").replace("\r", "")
            body = text.split(f"begin-{mark}\n", 1)[1]
            return body.split(f"\nend-{mark}", 1)[0]


def why_not(kind):
    """None when this machine can have such a host; else why not."""
    if os.geteuid() != 0 and kind != "machine":
        return "needs root"
    if kind == "process":
        if not (BUILD / "tests/tools/process_vmm").exists():
            return "process_vmm is not built"
        help_text = subprocess.run([BUILD / "src/cloched/cloched", "--help"], capture_output=True, text=True).stdout
        return None if "--no-jail" in help_text else "cloched is built without -Ddev=true"
    if not built():
        return "no base image: cloche image build base"
    usable = kvm_usable()
    if kind == "kvm":
        return None if usable else "no usable /dev/kvm"
    if not shutil.which("qemu-system-x86_64"):
        return "qemu-system-x86_64 is not installed"
    return "/dev/kvm is usable: the kvm host runs the same" if usable and not os.environ.get("CLOCHE_E2E") else None


def kvm_usable():
    r = subprocess.run([CLOCHE, "doctor", "--json"], capture_output=True, text=True)
    try:
        return json.loads(r.stdout).get("mode") == "native"
    except ValueError:
        return False


def make(kind, where):
    return {"process": ProcessHost, "kvm": KvmHost, "machine": MachineHost}[kind](where)
