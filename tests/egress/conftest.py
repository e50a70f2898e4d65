import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from world import World  # noqa: E402

NEEDED = ["ip", "nginx", "dnsmasq", "curl"]


def why_not():
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not os.access("/dev/net/tun", os.W_OK):
        return "needs /dev/net/tun"
    missing = [p for p in NEEDED if not shutil.which(p)]
    if missing:
        return "needs " + ", ".join(missing)
    if "EGRESS_HOST" not in os.environ or "CLOCHE_EGRESS" not in os.environ:
        return "needs EGRESS_HOST and CLOCHE_EGRESS (meson sets them)"
    return None


@pytest.fixture(scope="session")
def world():
    reason = why_not()
    if reason:
        pytest.skip(reason)
    w = World(["--lookup-rate", "300"])
    yield w
    w.close()
    asan = list(w.dir.glob("asan*"))
    assert not asan, asan
