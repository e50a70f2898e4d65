"""The VMM's bare-metal guests (tests/guest) inside the machine, where KVM is: meson runs them natively."""
import re
import shutil
import subprocess

import pytest

from paths import BUILD


@pytest.mark.real
def test_guest_payloads(host):
    if host.kind != "machine":
        pytest.skip("the suite 'guest' of the build runs them on this host's /dev/kvm")
    runner = BUILD / "tests/guest/run_guest"
    folder = host.home / "import/.guest-tests"
    folder.mkdir()
    for f in (runner, BUILD / "tests/guest/payload.elf", BUILD / "src/vmm/cloche-vmm"):
        shutil.copy(f, folder)
    libraries = subprocess.run(["ldd", runner], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"=> (/\S+/lib(?:cmocka|jansson)\S+)", libraries):
        shutil.copy(path, folder)
    there = "/mnt/images/.guest-tests"
    # Programs are copied first: the share is not for executing.
    out = host.shell.run(f"cp -r {there} /tmp/guest-tests && cd /tmp/guest-tests && "
                         "LD_LIBRARY_PATH=. ./run_guest ./cloche-vmm ./payload.elf; echo status $?", seconds=1800)
    assert out.strip().endswith("status 0"), out
    assert re.search(r"\[  PASSED  \] [1-9]\d* test", out), out
