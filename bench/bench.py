"""Measures and records: build/bench.jsonl (one object per figure) and the table of docs/benchmarks.md.

    bench/bench.py [NAME]     all figures, or one

Every figure is a function of bench/figures.py. A figure that cannot be measured here says why and
leaves its row in the table as it was.
"""
import datetime
import json
import os
import pathlib
import platform
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))

import figures  # noqa: E402

RESULTS = ROOT / "build/bench.jsonl"
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"


def percentile(values, p):
    """Nearest rank: a value that was measured."""
    values = sorted(values)
    return values[max(0, -(-len(values) * p // 100) - 1)]


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gib():
    with open("/proc/meminfo", encoding="utf-8") as f:
        return round(int(f.readline().split()[1]) / (1 << 20))


def host_text(kind):
    return f"{cpu_model()}, {os.cpu_count()} CPUs, {memory_gib()} GiB, Linux {platform.release()}, {kind}"


def number(v):
    return f"{v:.3g}" if v < 1000 else f"{v:.0f}"


def load():
    try:
        lines = RESULTS.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {row["name"]: row for row in map(json.loads, lines)}


def write(rows):
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(r) + "\n" for r in rows.values()), encoding="utf-8")
    table = ["| figure | unit | p50 | p90 | p99 | n | what it is |", "|---|---|---|---|---|---|---|"]
    for r in rows.values():
        what = figures.REGISTRY[r["name"]].what if r["name"] in figures.REGISTRY else ""
        table.append(f"| `{r['name']}` | {r['unit']} | {number(r['p50'])} | {number(r['p90'])} | "
                     f"{number(r['p99'])} | {r['n']} | {what} |")
    hosts = "".join(f"* {h}\n" for h in dict.fromkeys(r["host"] for r in rows.values()))
    day = datetime.date.today().isoformat()
    text = f"{BEGIN}\n\nMeasured {day} on\n\n{hosts}\n" + "\n".join(table) + f"\n\n{END}"
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + text + after, encoding="utf-8")


def main():
    only = sys.argv[1] if len(sys.argv) > 1 else None
    if only and only not in figures.REGISTRY:
        print(f"bench: there is no figure \"{only}\"; there are: {', '.join(figures.REGISTRY)}", file=sys.stderr)
        return 2
    rows, failed = load(), 0
    with figures.Setup() as setup:
        for name, f in figures.REGISTRY.items():
            if only and name != only:
                continue
            try:
                values = f.measure(setup)
            except figures.NotHere as e:
                print(f"{name}: not measured: {e}")
                failed += bool(only)
                continue
            except Exception as e:  # the other figures are still worth having; the status tells
                print(f"{name}: FAILED: {type(e).__name__}: {e}", flush=True)
                failed += 1
                continue
            row = {"name": name, "unit": f.unit, "p50": percentile(values, 50), "p90": percentile(values, 90),
                   "p99": percentile(values, 99), "n": len(values), "host": host_text(setup.kind)}
            rows[name] = row
            print(f"{name}: p50 {number(row['p50'])} p90 {number(row['p90'])} p99 {number(row['p99'])} "
                  f"{f.unit} (n {row['n']})", flush=True)
    write(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
