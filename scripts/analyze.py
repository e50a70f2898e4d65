"""Runs gcc -fanalyzer over every source of ours in a build folder's compile commands."""
import concurrent.futures
import json
import shlex
import subprocess
import sys


def analyze(build, entry):
    args = shlex.split(entry["command"])
    at = args.index("-o")
    args[at + 1] = "/dev/null"
    for flag in ("-MD",):
        while flag in args:
            args.remove(flag)
    for flag in ("-MQ", "-MF"):
        while flag in args:
            i = args.index(flag)
            del args[i:i + 2]
    if not entry["file"].endswith("base/err.c"):
        args += ["-include", "../scripts/analysis.h"]
    args += ["-fanalyzer", "-fdiagnostics-color=never", "-Werror",
             # Leaks are LeakSanitizer's work: the analyzer takes the end of a path for one.
             "-Wno-analyzer-malloc-leak", "-Wno-analyzer-file-leak"]
    done = subprocess.run(args, cwd=build, capture_output=True, text=True)
    return done.returncode, done.stderr


def main():
    build = sys.argv[1]
    with open(f"{build}/compile_commands.json", encoding="utf-8") as f:
        entries = [e for e in json.load(f) if e["file"].startswith("../src/")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for code, text in pool.map(lambda e: analyze(build, e), entries):
            if code:
                failed += 1
                print(text, end="")
    print(f"{len(entries)} files, {failed} with findings")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
