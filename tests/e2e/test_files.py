"""Files of a sandbox through the API and `cloche cp`."""
import hashlib
import os

import pytest

from cloche_api import ApiError


@pytest.mark.parametrize("size", [0, 1, 65536, 20_000_003])
def test_a_file_comes_back_as_it_went(box, work, size):
    data = os.urandom(size)
    stat = box.write(f"{work}/f", data, mode="0640")
    assert (stat["size"], stat["mode"]) == (size, "0640")
    assert box.read(f"{work}/f") == data
    assert box.out(["sha256sum", f"{work}/f"]).split()[0] == hashlib.sha256(data).hexdigest()


def test_a_write_replaces_the_whole_file_at_once(box, work):
    box.write(f"{work}/f", b"a" * 1000)
    inode = box.out(["stat", "-c", "%i", f"{work}/f"])
    box.write(f"{work}/f", b"b")
    assert box.read(f"{work}/f") == b"b"
    assert box.out(["stat", "-c", "%i", f"{work}/f"]) != inode
    assert [e["path"] for e in box.call("GET", f"/files/list?path={work}")["data"]] == [f"{work}/f"]


def test_a_wrong_digest_leaves_the_old_file(box, work):
    box.write(f"{work}/f", b"old")
    status, _, _ = box.api.raw("PUT", f"{box.path}/files?path={work}/f", b"new", {"X-Content-Sha256": "0" * 64})
    assert status == 400
    assert box.read(f"{work}/f") == b"old"


def test_ranges(box, work):
    box.write(f"{work}/f", b"0123456789")
    assert box.read(f"{work}/f", {"Range": "bytes=2-4"}) == b"234"
    assert box.read(f"{work}/f", {"Range": "bytes=7-"}) == b"789"


@pytest.mark.parametrize("path,code,status", [
    ("/no/such/file", "not_found", 404), ("/tmp", None, 400), ("relative", "validation_failed", 400),
    ("/a%00b", None, 400), ("", "validation_failed", 400), ("/" + "x" * 300, "name_too_long", 400)])
def test_fault_46_bad_paths_are_refused_with_reason(box, path, code, status):
    with pytest.raises(ApiError) as e:
        box.call("GET", f"/files?path={path}")
    assert e.value.status == status
    assert code is None or e.value.code == code
    assert e.value.error["message"] and e.value.error["fix"]


def test_dots_stay_in_the_sandbox(box):
    """A path with ".." is resolved by the guest's kernel, in the guest."""
    try:
        assert box.read("/tmp/../../../etc/passwd") == box.out("cat /etc/passwd").encode()
    except ApiError as e:
        assert e.code == "validation_failed"


def test_permission_is_the_users(box, work):
    with pytest.raises(ApiError) as e:
        box.write("/etc/cloche-test", b"x", user="nobody")
    assert e.value.code == "permission_denied" and e.value.error["fix"]


def tree(path):
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def test_cp_takes_folders_there_and_back(host, box, work, tmp_path):
    src = tmp_path / "src"
    (src / "a/b").mkdir(parents=True)
    (src / "empty").mkdir()
    (src / "a/b/bin").write_bytes(os.urandom(3_000_000))
    (src / "a/ü name").write_text("x")
    (src / "run").write_text("#!/bin/sh\n")
    (src / "run").chmod(0o755)
    want = tree(src)
    (src / "link").symlink_to("/etc/passwd")
    r = host.cloche("cp", str(src), f"{box.id}:{work}")
    assert r.returncode == 0, r.stderr
    assert b"link" in r.stderr, "links are left out, and named"
    assert box.out(["stat", "-c", "%a", f"{work}/src/run"]) == "755\n"
    r = host.cloche("cp", f"{box.id}:{work}/src", str(tmp_path / "back"))
    assert r.returncode == 0, r.stderr
    assert tree(tmp_path / "back") == want
    assert (tmp_path / "back/run").stat().st_mode & 0o777 == 0o755


def test_cp_of_one_file_and_of_pipes(host, box, work, tmp_path):
    (tmp_path / "f").write_bytes(b"one\0two")
    assert host.cloche("cp", str(tmp_path / "f"), f"{box.id}:{work}/g").returncode == 0
    assert host.cloche("cp", f"{box.id}:{work}/g", "-").stdout == b"one\0two"
    assert host.cloche("cp", "-", f"{box.id}:{work}/h", input=b"piped").returncode == 0
    assert box.read(f"{work}/h") == b"piped"
    r = host.cloche("cp", f"{box.id}:{work}/none", str(tmp_path / "x"))
    assert r.returncode == 125 and b"there is no" in r.stderr
    assert not (tmp_path / "x").exists()


def test_fault_42_links_in_a_sandbox_do_not_lead_a_download_out(host, box, work, tmp_path):
    box.out(f"cd {work} && mkdir d && ln -s /etc d/etc && ln -s /etc/passwd d/p && echo ok > d/f")
    r = host.cloche("cp", f"{box.id}:{work}/d", str(tmp_path / "d"))
    assert r.returncode == 0, r.stderr
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["f"]
    assert b"symbolic link" in r.stderr
