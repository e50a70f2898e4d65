"""Hosts of sandboxes that tests run against, each with a daemon of its own on its own port.

    process  cloched here with a stand-in for the VMM that runs the agent as a plain process
             (tests/tools/process_vmm): the whole host side, fast, but no kernel of its own
    kvm      cloched and cloche-vmm here, on a usable /dev/kvm
    machine  both inside machine mode, wherever there is no usable /dev/kvm

All three answer to the same calls, so that a story is written once.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from cloche_api import Api
from paths import BUILD, CLOCHE, LIBEXEC


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Host:
    kind = None
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
        self.api = Api("127.0.0.1", port, key)

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
        text = self.sh(f"""
            set -- $(pgrep -f '[c]loched.*{self.mark}')
            fds=0; for p; do fds=$((fds + $(ls /proc/$p/fd | wc -l))); done
            echo daemons $#
            echo fds $fds
            echo vmms $(pgrep -c -f '[v]mm.*' -P ${{1:-0}} || true)
            echo files $(find {self.state}/sandboxes {self.run} 2>/dev/null | wc -l)
            echo cgroups $(find /sys/fs/cgroup -type d -path '*{self.cgroup}*' 2>/dev/null | wc -l)
            echo mounts $(wc -l </proc/mounts)
        """)
        return {k: int(v) for k, v in (line.split() for line in text.splitlines())}


class LocalHost(Host):
    """cloched as a child of ours, with folders of its own."""

    def __init__(self, where, images, options):
        self.where = pathlib.Path(where)
        self.state, self.run = self.where / "state", self.where / "run"
        self.import_dir = self.where / "import"
        for d in (self.state, self.run, self.import_dir):
            d.mkdir(mode=0o755)
        for image in images:
            (self.import_dir / image.name).symlink_to(image)
        self.mark = str(self.state)
        self.cgroup = f"cloche-test-{os.getpid()}-{self.kind}"
        self.port = free_port()
        self.options = options
        self.daemon = None
        self.log = self.where / "cloched.log"
        self.start()
        self.connect((self.state / "admin.key").read_text().strip(), self.port)

    def start(self):
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(
                [BUILD / "src/cloched/cloched", f"--state-dir={self.state}", f"--run-dir={self.run}",
                 f"--listen=127.0.0.1:{self.port}", f"--import-dir={self.import_dir}",
                 f"--libexec-dir={LIBEXEC}", f"--cgroup={self.cgroup}", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.connect("", self.port)
        self.wait_healthy(120)

    def check_alive(self):
        if self.daemon.poll() is not None:
            raise AssertionError(f"cloched ended with {self.daemon.returncode}:\n{self.log_tail()}")

    def log_tail(self, n=60):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n:])

    def pids(self):
        out = subprocess.run(["pgrep", "-f", f"cloched.*{self.mark}"], capture_output=True, text=True)
        return [int(p) for p in out.stdout.split()]

    def kill_daemon(self):
        """kill -9 of every process of the daemon; the sandboxes are left alone."""
        pids = self.pids()
        assert pids
        for p in pids:
            os.kill(p, signal.SIGKILL)
        self.daemon.wait()

    def restart_after_kill(self):
        self.kill_daemon()
        key = self.key
        self.start()
        self.connect(key, self.port)

    def sh(self, script):
        r = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr
        return r.stdout

    def put(self, path, data):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_bytes(data)

    def close(self):
        try:
            for row in self.api.sandboxes():
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

    def __init__(self, where, image):
        super().__init__(where, [image], [
            f"--vmm={BUILD}/tests/tools/process_vmm", "--kvm=/dev/null", "--no-jail", "--memory-mib=512"])


class KvmHost(LocalHost):
    kind, slow = "kvm", 10

    def __init__(self, where, image):
        super().__init__(where, [image], ["--memory-mib=512", "--boot-timeout-seconds=300"])


class MachineHost(Host):
    """A machine of its own: `cloche machine start` with a state folder and a port of the tests."""
    kind, slow = "machine", 10
