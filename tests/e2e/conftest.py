"""Fixtures. `host` runs each story on every kind of host that this machine can have.

CLOCHE_E2E names the kinds to use ("process,machine"); without it: process, and kvm where /dev/kvm
is usable, else machine. A kind that cannot run says why and counts as skipped.
"""
import os

import pytest

import hosts

KINDS = ["process", "kvm", "machine"]


def wanted():
    names = os.environ.get("CLOCHE_E2E")
    # pytest keeps a session's fixture while its parameter is the same object: one string a kind,
    # or every test would get a host, and a machine to boot, of its own.
    return [k for k in KINDS if k in names.split(",")] if names else KINDS


def pytest_generate_tests(metafunc):
    if "host" not in metafunc.fixturenames:
        return
    real_only = metafunc.definition.get_closest_marker("real")
    no_kernel = pytest.mark.skip(reason="process: needs a sandbox with a kernel of its own")
    metafunc.parametrize("host", [pytest.param(k, marks=[no_kernel] if real_only and k == "process" else [])
                                  for k in wanted()], indirect=True, scope="session")


def pytest_configure(config):
    config.addinivalue_line("markers", "real: needs a sandbox with its own kernel")


@pytest.fixture(scope="session")
def host(request, tmp_path_factory):
    why_not = hosts.why_not(request.param)
    if why_not:
        pytest.skip(f"{request.param}: {why_not}")
    h = hosts.make(request.param, tmp_path_factory.mktemp(request.param))
    yield h
    h.close()


@pytest.fixture(scope="session")
def box(host):
    """One sandbox for the tests that leave it as they found it; its disk is small, one fills it."""
    b = host.api.create(name="box", diskMiB=1024)
    yield b
    b.delete()


@pytest.fixture
def new(host):
    """Makes sandboxes that are gone after the test."""
    made = []

    def make(**fields):
        made.append(host.api.create(**fields))
        return made[-1]
    yield make
    for b in made:
        try:
            b.delete()
        except Exception as e:
            if getattr(e, "code", "") != "sandbox_not_found":
                raise


@pytest.fixture
def work(host, box):
    """A folder in the sandbox for the test."""
    path = box.out("mktemp -d").strip()
    yield path
    box.exec(["rm", "-rf", path])
