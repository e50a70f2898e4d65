"""The figures, one function each: takes the setup, returns the values it measured."""
import contextlib
import pathlib
import tempfile
import time

import hosts

REGISTRY = {}


class NotHere(Exception):
    """This figure cannot be measured on this machine; the text says why."""


class Figure:
    def __init__(self, name, unit, what, measure):
        self.name, self.unit, self.what, self.measure = name, unit, what, measure


def figure(unit, what):
    def add(f):
        REGISTRY[f.__name__] = Figure(f.__name__, unit, what, f)
        return f
    return add


class Setup:
    """A host with real sandboxes and one running sandbox, both made when first asked for."""

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.kind = "kvm" if hosts.why_not("kvm") is None else "machine"
        self._host = self._box = None
        return self

    def __exit__(self, *exc):
        self.stack.close()

    @property
    def host(self):
        if not self._host:
            why = hosts.why_not(self.kind)
            if why:
                raise NotHere(why)
            where = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="cloche-bench-")))
            self._host = hosts.make(self.kind, where)
            self.stack.callback(self._host.close)
        return self._host

    @property
    def box(self):
        if not self._box:
            self._box = self.host.api.create(name="bench")
        return self._box


def timed_ms(call, n, warm=1):
    values = []
    for i in range(n + warm):
        start = time.perf_counter()
        call()
        if i >= warm:
            values.append((time.perf_counter() - start) * 1000)
    return values


@figure("ms", "create a sandbox by cold boot: request to the answer, which comes when the agent has adopted it")
def boot_to_agent_ms(setup):
    values = []
    for i in range(11):
        start = time.perf_counter()
        b = setup.host.api.create()
        if i:
            values.append((time.perf_counter() - start) * 1000)
        b.delete()
    return values


@figure("ms", "`true` in a running sandbox: request to the whole answer")
def exec_true_ms(setup):
    return timed_ms(lambda: setup.box.exec(["true"]), 100, 5)


@figure("ms", "`python3 -c 'print(6*7)'` in a running sandbox, warm: request to the whole answer")
def exec_python_ms(setup):
    def run():
        assert setup.box.out(["python3", "-c", "print(6*7)"]) == "42\n"
    return timed_ms(run, 30, 3)


import egress_figures  # noqa: E402

egress_figures.register(figure, NotHere)
