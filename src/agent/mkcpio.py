#!/usr/bin/env python3
"""Writes a newc cpio archive with the agent as /init and /dev/console: the second initramfs.

usage: mkcpio.py AGENT OUTPUT
"""
import stat
import sys


def entry(ino, name, mode, data=b"", rdev=(0, 0)):
    """One archive member: header, name and data, each padded to four bytes."""
    fields = (ino, mode, 0, 0, 1, 0, len(data), 0, 0, rdev[0], rdev[1], len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % f for f in fields)
    out = head + name.encode() + b"\0"
    out += b"\0" * (-len(out) % 4)
    return out + data + b"\0" * (-len(data) % 4)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as f:
        agent = f.read()
    members = [
        entry(1, "dev", stat.S_IFDIR | 0o755),
        entry(2, "dev/console", stat.S_IFCHR | 0o600, rdev=(5, 1)),
        entry(3, "init", stat.S_IFREG | 0o755, agent),
        entry(0, "TRAILER!!!", 0),
    ]
    archive = b"".join(members)
    archive += b"\0" * (-len(archive) % 512)
    with open(sys.argv[2], "wb") as f:
        f.write(archive)


if __name__ == "__main__":
    main()
